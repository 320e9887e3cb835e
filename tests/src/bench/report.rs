//! The report, a page of Markdown that reads well on a terminal, too.

use std::fmt::Write;

use super::args::{Args, PageCache};
use super::claims::{self, Claim, megabytes};
use super::dataset::length;
use super::machine::Machine;
use super::timed::Cost;
use super::{Replay, Results};

const METHOD: &str = "\
## What is measured

The data is made by a real etcd: every key is written once, a full snapshot is taken, then the keys
are written again in random order, one write in ten a delete, each write a revision of its own. A
watch records those writes in the peer's format. Keys and values look like Kubernetes objects: JSON
whose names repeat around hex digits that do not. Every object is one gzip member of level 6, as the
peer writes it.

* **restore** and **compact** are `mainstay-restorer` as a user runs it, a process that reads a bucket of
  provider `Local` and syncs what it writes. What they made is given to the etcd that made the data, and
  must have the HashKV of the source; the bench fails if it does not.
* **(a) replay** is the peer's way: inflate the base, `etcdutl snapshot restore`, start an etcd that does
  not sync, send one transaction per revision, each when the one before is answered.
* **(b)** is `etcdutl snapshot restore` of the inflated base alone.
* **(c) the floor** is what no restore can avoid: inflating every object once, with a thread per core
  and the product's decoder, plus writing and syncing a file as large as the restored database.
* **verify** checks the restored directory, `etcdutl snapshot status` the database inside it.

Times are wall time, memory is the largest resident set the kernel saw, files mapped into memory included. 1 MB is
1 000 000 bytes.
";

/// The whole page.
pub(super) fn render(
    args: &Args,
    machine: &Machine,
    results: &[Results],
) -> anyhow::Result<String> {
    let mut page =
        String::from("# Benchmarks\n\nWritten by `make bench`; ratios are of one run.\n\n");
    facts(&mut page, args, machine, results)?;
    page.push_str("\n## Targets\n\n");
    targets(&mut page, &claims::check(results))?;
    guesses(&mut page, results)?;
    for one in results {
        writeln!(page, "\n## Figures, {}× the data\n", one.scale)?;
        figures(&mut page, one)?;
    }
    page.push('\n');
    page.push_str(METHOD);
    Ok(page)
}

fn facts(
    page: &mut String,
    args: &Args,
    machine: &Machine,
    results: &[Results],
) -> anyhow::Result<()> {
    let page_cache = match args.page_cache {
        PageCache::Cold => "dropped before every measured program",
        PageCache::Warm => "warm",
    };
    writeln!(page, "| | |\n| --- | --- |")?;
    writeln!(page, "| date | {} |", args.date)?;
    self::machine(page, machine)?;
    for one in results {
        let written_bytes = one.floor.written_bytes;
        let speed = rate(written_bytes, one.floor.write.seconds);
        writeln!(
            page,
            "| disk, writing {} and syncing | {speed} |",
            megabytes(written_bytes)
        )?;
    }
    if let Some(one) = results.first() {
        writeln!(page, "| etcd | {} |", one.dataset.manifest.etcd)?;
    }
    writeln!(page, "| page cache | {page_cache} |")?;
    writeln!(
        page,
        "| runs | {}, the median counts; of memory the most |",
        args.runs
    )?;
    Ok(())
}

/// What figures depend on.
pub(super) fn machine(page: &mut String, machine: &Machine) -> anyhow::Result<()> {
    writeln!(
        page,
        "| machine | {} cores, {} |",
        machine.cores, machine.processor
    )?;
    writeln!(page, "| memory | {} |", megabytes(machine.memory_bytes))?;
    writeln!(page, "| kernel | Linux {} |", machine.kernel)?;
    writeln!(page, "| load before the bench | {} |", machine.load)?;
    Ok(())
}

/// Every target beside what was measured.
pub(super) fn targets(page: &mut String, claims: &[Claim]) -> anyhow::Result<()> {
    writeln!(
        page,
        "| data | | to reach | measured | |\n| --- | --- | --- | --- | --- |"
    )?;
    for claim in claims {
        let verdict = if claim.is_met { "PASS" } else { "miss" };
        let Claim {
            data,
            what,
            target,
            measured,
            ..
        } = claim;
        writeln!(
            page,
            "| {data} | {what} | {target} | {measured} | {verdict} |"
        )?;
    }
    Ok(())
}

fn guesses(page: &mut String, results: &[Results]) -> anyhow::Result<()> {
    let guessed = results.iter().filter(|one| one.replay.is_extrapolated());
    for one in guessed {
        let Replay {
            revisions_sent,
            revisions,
            ..
        } = one.replay;
        writeln!(
            page,
            "\nThe replay (a) at {}× is extrapolated: {revisions_sent} of {revisions} revisions were \
             sent, the rest is taken to need as long each.",
            one.scale
        )?;
    }
    Ok(())
}

fn figures(page: &mut String, one: &Results) -> anyhow::Result<()> {
    let shape = one.dataset.manifest.shape;
    writeln!(
        page,
        "{} keys of {} B, then {} writes in {} deltas. The backup is {}, of which the base is {}; \
         inflated it is {}. The restored database is {}.\n",
        shape.keys,
        shape.value_bytes,
        shape.writes,
        shape.deltas,
        megabytes(one.dataset.stored_bytes()?),
        megabytes(length(&one.dataset.base)?),
        megabytes(one.floor.inflated_bytes),
        megabytes(one.restored.database_bytes)
    )?;
    head(page)?;
    row(page, "**restore**", one.restored.cost)?;
    if let Some(cost) = one.compact {
        row(page, "**compact**", cost)?;
    }
    if let Some(verified) = one.verified {
        row(page, "**verify** of the restored directory", verified.ours)?;
        let what = "`etcdutl snapshot status` of its database";
        row(page, what, verified.etcdutl)?;
    }
    baselines(page, one)
}

/// What measured programs are told in.
pub(super) fn head(page: &mut String) -> anyhow::Result<()> {
    writeln!(
        page,
        "| | time | processor time | peak memory |\n| --- | --- | --- | --- |"
    )?;
    Ok(())
}

fn baselines(page: &mut String, one: &Results) -> anyhow::Result<()> {
    let replay = &one.replay;
    let sent = if replay.is_extrapolated() {
        "(a) a transaction per revision, extrapolated"
    } else {
        "(a) a transaction per revision"
    };
    let restore = "(a), (b) `etcdutl snapshot restore` of the base";
    let fold = "behind (a): compact, defragment, save and compress";
    row(
        page,
        "(a) replay through etcd, in all",
        replay.restore_seconds(),
    )?;
    row(
        page,
        "(a) inflating the base into a file",
        replay.expand_seconds,
    )?;
    row(page, restore, replay.etcdutl)?;
    row(page, "(a) starting etcd", replay.boot_seconds)?;
    row(page, sent, replay.all_revisions_seconds())?;
    if let Some(seconds) = replay.fold_seconds {
        row(page, fold, seconds)?;
    }
    row(page, "(c) the floor, in all", one.floor.seconds())?;
    row(page, "(c) inflating every object", one.floor.inflate)?;
    row(page, "(c) writing and syncing", one.floor.write)
}

/// What is known about a figure: its time at least.
pub(super) struct Figure {
    seconds: f64,
    cpu_seconds: Option<f64>,
    peak_bytes: Option<u64>,
}

impl From<f64> for Figure {
    fn from(seconds: f64) -> Self {
        Self {
            seconds,
            cpu_seconds: None,
            peak_bytes: None,
        }
    }
}

impl From<Cost> for Figure {
    fn from(cost: Cost) -> Self {
        Self {
            seconds: cost.seconds,
            cpu_seconds: Some(cost.cpu_seconds),
            peak_bytes: cost.peak_bytes,
        }
    }
}

/// One measured program.
pub(super) fn row(page: &mut String, what: &str, figure: impl Into<Figure>) -> anyhow::Result<()> {
    let Figure {
        seconds,
        cpu_seconds,
        peak_bytes,
    } = figure.into();
    let cpu = cpu_seconds.map_or_else(String::new, |seconds| format!(" {seconds:.2} s"));
    let peak = peak_bytes.map_or_else(String::new, |bytes| format!(" {}", megabytes(bytes)));
    writeln!(page, "| {what} | {seconds:.2} s |{cpu} |{peak} |")?;
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a speed needs three digits")]
fn rate(bytes: u64, seconds: f64) -> String {
    format!("{:.0} MB/s", bytes as f64 / 1e6 / seconds)
}

//! Renders the report of the restorer's benchmark as Markdown, which is also printed to the terminal.

use std::fmt::Write;

use super::args::{BenchArgs, PageCache};
use super::dataset::file_length;
use super::machine::Machine;
use super::targets::{self, TargetResult, format_megabytes};
use super::timed::Cost;
use super::{Replay, ScaleResults};

const METHOD: &str = "\
## What is measured

A real etcd creates the data: every key is written once, a full snapshot is taken, then the keys are written again in random order. One write in ten is a
delete, and each write is a revision of its own. A watch records these writes in the format of etcd-backup-restore. Keys and values look like Kubernetes
objects: JSON with repeated names and random hex digits. Every object is one gzip member of level 6, as etcd-backup-restore writes it.

- **restore** and **compact** run `mainstay-restorer` as a user does. It reads a bucket of the provider `Local` and syncs what it writes. The etcd that created the
  data starts on the result and must report the HashKV of the source; otherwise the benchmark fails.
- **(a) replay** is the method of etcd-backup-restore: inflate the full snapshot, `etcdutl snapshot restore`, start an etcd without fsync, and send one transaction per
  revision, one after the other.
- **(b)** is `etcdutl snapshot restore` of the inflated full snapshot alone.
- **(c) lower bound** is what every restore has to do: inflate every object once with one thread per core, and write and sync a file of the size of the restored
  database.
- **verify** checks the restored directory, `etcdutl snapshot status` the database in it.

Times are wall time. Memory is the maximum resident set, including mapped files. 1 MB is 1 000 000 bytes.
";

pub(super) fn render(
    args: &BenchArgs,
    machine: &Machine,
    results: &[ScaleResults],
) -> anyhow::Result<String> {
    let mut page = String::from(
        "# Benchmarks of the restorer\n\n`make bench` writes this page. It compares the restorer with etcd's own tools. Ratios are of one run.\n\n",
    );
    write_facts(&mut page, args, machine, results)?;
    page.push_str("\n## Targets\n\n");
    write_targets(&mut page, &targets::check_targets(results))?;
    write_extrapolations(&mut page, results)?;
    for one in results {
        writeln!(page, "\n## Figures, {}× the data\n", one.scale)?;
        write_figures(&mut page, one)?;
    }
    page.push('\n');
    page.push_str(METHOD);
    Ok(page)
}

fn write_facts(
    page: &mut String,
    args: &BenchArgs,
    machine: &Machine,
    results: &[ScaleResults],
) -> anyhow::Result<()> {
    let page_cache = match args.page_cache {
        PageCache::Cold => "dropped before every measured program",
        PageCache::Warm => "warm",
    };
    writeln!(page, "| | |\n| --- | --- |")?;
    writeln!(page, "| date | {} |", args.date)?;
    write_machine(page, machine)?;
    for one in results {
        let written_bytes = one.floor.written_bytes;
        let speed = format_rate(written_bytes, one.floor.write.seconds);
        writeln!(
            page,
            "| disk, writing {} and syncing | {speed} |",
            format_megabytes(written_bytes)
        )?;
    }
    if let Some(one) = results.first() {
        writeln!(page, "| etcd | {} |", one.dataset.manifest.etcd)?;
    }
    writeln!(page, "| page cache | {page_cache} |")?;
    writeln!(
        page,
        "| runs | {}; median of times, maximum of memory |",
        args.runs
    )?;
    Ok(())
}

/// The machine the figures depend on.
pub(super) fn write_machine(page: &mut String, machine: &Machine) -> anyhow::Result<()> {
    writeln!(
        page,
        "| machine | {} cores, {} |",
        machine.cores, machine.processor
    )?;
    writeln!(
        page,
        "| memory | {} |",
        format_megabytes(machine.memory_bytes)
    )?;
    writeln!(page, "| kernel | Linux {} |", machine.kernel)?;
    writeln!(page, "| load before the bench | {} |", machine.load)?;
    Ok(())
}

/// A table of targets and measured values.
pub(super) fn write_targets(page: &mut String, claims: &[TargetResult]) -> anyhow::Result<()> {
    writeln!(
        page,
        "| data | | target | measured | |\n| --- | --- | --- | --- | --- |"
    )?;
    for claim in claims {
        let verdict = if claim.is_met { "PASS" } else { "miss" };
        let TargetResult {
            subject,
            metric,
            target,
            measured,
            ..
        } = claim;
        writeln!(
            page,
            "| {subject} | {metric} | {target} | {measured} | {verdict} |"
        )?;
    }
    Ok(())
}

fn write_extrapolations(page: &mut String, results: &[ScaleResults]) -> anyhow::Result<()> {
    let guessed = results.iter().filter(|one| one.replay.is_extrapolated());
    for one in guessed {
        let Replay {
            revisions_sent,
            revisions,
            ..
        } = one.replay;
        writeln!(
            page,
            "\nThe replay (a) at {}× is extrapolated from {revisions_sent} of {revisions} revisions.",
            one.scale
        )?;
    }
    Ok(())
}

fn write_figures(page: &mut String, one: &ScaleResults) -> anyhow::Result<()> {
    let shape = one.dataset.manifest.shape;
    writeln!(
        page,
        "{} keys of {} B, then {} writes in {} deltas. The backup is {}, of which the base is {}; \
         inflated it is {}. The restored database is {}.\n",
        shape.keys,
        shape.value_bytes,
        shape.writes,
        shape.deltas,
        format_megabytes(one.dataset.stored_bytes()?),
        format_megabytes(file_length(&one.dataset.base)?),
        format_megabytes(one.floor.inflated_bytes),
        format_megabytes(one.restored.database_bytes)
    )?;
    write_table_head(page)?;
    write_row(page, "**restore**", one.restored.cost)?;
    if let Some(cost) = one.compact {
        write_row(page, "**compact**", cost)?;
    }
    if let Some(verified) = one.verified {
        write_row(
            page,
            "**verify** of the restored directory",
            verified.restorer,
        )?;
        let what = "`etcdutl snapshot status` of its database";
        write_row(page, what, verified.etcdutl)?;
    }
    write_baselines(page, one)
}

/// The header of a table of measured programs.
pub(super) fn write_table_head(page: &mut String) -> anyhow::Result<()> {
    writeln!(
        page,
        "| | time | CPU time | peak memory |\n| --- | --- | --- | --- |"
    )?;
    Ok(())
}

fn write_baselines(page: &mut String, one: &ScaleResults) -> anyhow::Result<()> {
    let replay = &one.replay;
    let sent = if replay.is_extrapolated() {
        "(a) a transaction per revision, extrapolated"
    } else {
        "(a) a transaction per revision"
    };
    let restore = "(a), (b) `etcdutl snapshot restore` of the base";
    let fold = "after (a): compact, defragment, save and compress";
    write_row(
        page,
        "(a) replay through etcd, total",
        replay.restore_seconds(),
    )?;
    write_row(
        page,
        "(a) inflating the base into a file",
        replay.inflate_seconds,
    )?;
    write_row(page, restore, replay.etcdutl)?;
    write_row(page, "(a) starting etcd", replay.start_seconds)?;
    write_row(page, sent, replay.all_revisions_seconds())?;
    if let Some(seconds) = replay.finish_seconds {
        write_row(page, fold, seconds)?;
    }
    write_row(page, "(c) lower bound, total", one.floor.seconds())?;
    write_row(page, "(c) inflating every object", one.floor.inflate)?;
    write_row(page, "(c) writing and syncing", one.floor.write)
}

/// A measurement; CPU time and memory are absent where only the time was taken.
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

/// The table row of one measured program.
pub(super) fn write_row(
    page: &mut String,
    what: &str,
    figure: impl Into<Figure>,
) -> anyhow::Result<()> {
    let Figure {
        seconds,
        cpu_seconds,
        peak_bytes,
    } = figure.into();
    let cpu = cpu_seconds.map_or_else(String::new, |seconds| format!(" {seconds:.2} s"));
    let peak = peak_bytes.map_or_else(String::new, |bytes| format!(" {}", format_megabytes(bytes)));
    writeln!(page, "| {what} | {seconds:.2} s |{cpu} |{peak} |")?;
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a speed needs three digits")]
fn format_rate(bytes: u64, seconds: f64) -> String {
    format!("{:.0} MB/s", bytes as f64 / 1e6 / seconds)
}

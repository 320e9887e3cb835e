//! Measures the product against a real etcd, on one machine, in one run.
//!
//! ```text
//! etcd ─► dataset (kept) ─┬─► ours: restore, verify, compact ─► etcd: the same HashKV?
//!                         ├─► floor: inflate everything, write and sync the result
//!                         └─► replay: etcdutl + one transaction per revision
//!                                         └──────────► ratios ─► table, docs/internals/benchmarks.md
//! ```
//!
//! **Comes in**: sizes, how often, how much to replay. **Goes out**: a report with every figure and
//! the targets beside the ratios.
//!
//! **Holds**: what is compared is measured in the same run; a figure that was extrapolated says
//! so; a missed target is a word in the report, a wrong result is an error. **Does not do**: judge by
//! time. A slow machine fails nothing.

mod args;
mod claims;
mod controller;
mod dataset;
mod floor;
mod load;
mod machine;
mod ours;
mod replay;
mod report;
mod sidecar;
mod timed;
mod usage;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use tokio::runtime::Runtime;

pub use args::{Args, Mode, PageCache, Part};
pub use controller::ControllerArgs;
pub use sidecar::SidecarArgs;

use dataset::Dataset;
use floor::Floor;
use machine::Machine;
use ours::{Bench, Restored, Verified};
use replay::Replay;
use timed::Cost;

/// What the names of scratch directories start with.
const WORK: &str = "work-";

/// Everything measured on one dataset.
#[derive(Clone, Debug)]
struct Results {
    scale: u32,
    restored: Restored,
    floor: Floor,
    replay: Replay,
    compact: Option<Cost>,
    verified: Option<Verified>,
    dataset: Dataset,
}

/// Runs the bench.
pub fn main(args: &Args) -> anyhow::Result<()> {
    match &args.mode {
        Some(Mode::Timed { report, command }) => return timed::run_timed(report, command),
        Some(Mode::Sidecar(args)) => return sidecar::main(args),
        Some(Mode::Controller(args)) => return controller::main(args),
        None => {}
    }
    let machine = Machine::observe();
    let data = args.cache.data()?;
    let program = args.program()?;
    let _lock = claim(&data)?;
    let runtime = Runtime::new().context("start a runtime")?;
    let mut results = Vec::new();
    for scale in &args.scale {
        results.push(measure(&runtime, args, *scale, (&data, &program))?);
    }
    let text = report::render(args, &machine, &results)?;
    io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .context("print the report")?;
    if let Some(path) = &args.write {
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Makes the directory of the data this bench's own: two at once would spoil each other's figures.
/// What a bench that was killed left there goes.
fn claim(data: &Path) -> anyhow::Result<File> {
    fs::create_dir_all(data).context("make the directory of the data")?;
    let lock = File::create(data.join(".lock")).context("create the lock")?;
    lock.try_lock()
        .with_context(|| format!("another bench works in {}", data.display()))?;
    for entry in fs::read_dir(data).context("list the data")? {
        let entry = entry.context("list the data")?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(WORK) || name.ends_with(dataset::UNFINISHED) {
            dataset::remove(&entry.path())?;
        }
    }
    Ok(lock)
}

fn measure(
    runtime: &Runtime,
    args: &Args,
    scale: u32,
    (data, program): (&Path, &Path),
) -> anyhow::Result<Results> {
    let dataset = runtime.block_on(Dataset::provide(data, scale))?;
    // Beside the data: on the same disk, and not in a memory file system.
    let scratch = tempfile::Builder::new().prefix(WORK).tempdir_in(data);
    let scratch = scratch.context("make a scratch directory")?;
    let (runs, page_cache) = (args.runs.max(1), args.page_cache);
    let bench = Bench {
        restorer: program,
        dataset: &dataset,
        scratch: scratch.path(),
        runs,
        page_cache,
    };
    let say = |what: &str| eprintln!("bench: scale {scale}: {what}");
    let has = |part: Part| args.parts.contains(&part);

    say("restore, and the floor in turns with it");
    let (restored, floor) = restore(&bench)?;
    say("verify");
    let verified = has(Part::Verify)
        .then(|| bench.verify(&restored))
        .transpose()?;
    say("HashKV of the restored directory");
    let expected = dataset.manifest.hash;
    runtime
        .block_on(bench.expect(&restored.data_dir, expected))
        .context("the restored etcd")?;
    dataset::remove(&restored.data_dir)?;
    say("compact");
    let compact = has(Part::Compact)
        .then(|| runtime.block_on(bench.compact()))
        .transpose()?;
    say("replay through etcd");
    let most = if args.full_replay.contains(&scale) {
        usize::MAX
    } else {
        args.replay_sample.max(1)
    };
    let replay = runtime.block_on(replay::measure(
        &dataset,
        scratch.path(),
        most,
        (runs, page_cache),
    ))?;
    Ok(Results {
        scale,
        restored,
        floor,
        replay,
        compact,
        verified,
        dataset,
    })
}

/// What is compared closely is measured in turns: on a shared machine neighbouring minutes are alike.
fn restore(bench: &Bench<'_>) -> anyhow::Result<(Restored, Floor)> {
    let mut floors = Vec::with_capacity(bench.runs);
    let mut costs = Vec::with_capacity(bench.runs);
    loop {
        let restored = bench.restore()?;
        let Bench {
            dataset,
            scratch,
            page_cache,
            ..
        } = *bench;
        let size = restored.database_bytes;
        floors.push(Floor::measure(dataset, scratch, size, page_cache)?);
        costs.push(restored.cost);
        if floors.len() < bench.runs {
            continue;
        }
        let floor = Floor::median(&floors).context("no run")?;
        let cost = timed::median(&costs);
        return Ok((Restored { cost, ..restored }, floor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_bench_is_refused_and_a_dead_ones_leftovers_go() {
        let data = tempfile::tempdir().unwrap();
        for name in ["work-x/db", "4-abc.making/bucket", "1-abc/bucket"] {
            fs::create_dir_all(data.path().join(name)).unwrap();
        }
        let first = claim(data.path()).unwrap();
        assert!(!data.path().join("work-x").exists());
        assert!(!data.path().join("4-abc.making").exists());
        assert!(data.path().join("1-abc/bucket").exists());
        let refused = claim(data.path()).unwrap_err();
        assert!(refused.to_string().contains("another bench"), "{refused}");
        drop(first);
        claim(data.path()).unwrap();
    }
}

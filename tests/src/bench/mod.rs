//! Benchmarks the restorer against etcd's own tools, on one machine, in one run.
//!
//! ```text
//! etcd ─► dataset (kept) ─┬─► ours: restore, verify, compact ─► etcd: the same HashKV?
//!                         ├─► floor: lower bound: inflate everything, write and sync the result
//!                         └─► replay: etcdutl + one transaction per revision
//!                                         └──────────► ratios ─► table, docs/internals/benchmarks.md
//! ```
//!
//! Input: sizes, number of runs, number of revisions to replay. Output: a report with every figure, and the targets
//! next to the ratios.
//!
//! **Invariants**: compared figures are measured in the same run; extrapolated figures are marked; a missed target is
//! reported, a wrong result is an error. No time limit fails the benchmark, so a slow machine does not.

mod args;
mod controller;
mod dataset;
mod floor;
mod load;
mod machine;
mod replay;
mod report;
mod restorer;
mod sidecar;
mod targets;
mod timed;
mod usage;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use tokio::runtime::Runtime;

pub use args::{BenchArgs, BenchMode, PageCache, RestorerPart};
pub use controller::ControllerBenchArgs;
pub use sidecar::SidecarBenchArgs;

use dataset::Dataset;
use floor::RestoreFloor;
use machine::Machine;
use replay::Replay;
use restorer::{RestoredDir, RestorerBench, VerifyCosts};
use timed::Cost;

/// Prefix of the names of scratch directories.
const WORK_DIR_PREFIX: &str = "work-";

/// All measurements of one dataset.
#[derive(Clone, Debug)]
struct ScaleResults {
    scale: u32,
    restored: RestoredDir,
    floor: RestoreFloor,
    replay: Replay,
    compact: Option<Cost>,
    verified: Option<VerifyCosts>,
    dataset: Dataset,
}

/// Runs the benchmark.
pub fn main(args: &BenchArgs) -> anyhow::Result<()> {
    match &args.mode {
        Some(BenchMode::Timed { report, command }) => return timed::run_timed(report, command),
        Some(BenchMode::Sidecar(args)) => return sidecar::main(args),
        Some(BenchMode::Controller(args)) => return controller::main(args),
        None => {}
    }
    let machine = Machine::detect();
    let data = args.cache.data_dir()?;
    let program = args.find_restorer()?;
    let _lock = lock_data_dir(&data)?;
    let runtime = Runtime::new().context("failed to start the async runtime")?;
    let mut results = Vec::new();
    for scale in &args.scale {
        results.push(measure_scale(&runtime, args, *scale, (&data, &program))?);
    }
    let text = report::render(args, &machine, &results)?;
    io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .context("failed to print the report")?;
    if let Some(path) = &args.write {
        fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

/// Locks the data directory: two parallel benchmarks would distort each other's figures. Removes leftovers of a benchmark
/// that was killed.
fn lock_data_dir(data: &Path) -> anyhow::Result<File> {
    fs::create_dir_all(data).context("failed to create the data directory")?;
    let lock = File::create(data.join(".lock")).context("failed to create the lock file")?;
    lock.try_lock()
        .with_context(|| format!("another benchmark is running in {}", data.display()))?;
    for entry in fs::read_dir(data).context("failed to list the data directory")? {
        let entry = entry.context("failed to list the data directory")?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(WORK_DIR_PREFIX) || name.ends_with(dataset::UNFINISHED_SUFFIX) {
            dataset::remove_dir(&entry.path())?;
        }
    }
    Ok(lock)
}

fn measure_scale(
    runtime: &Runtime,
    args: &BenchArgs,
    scale: u32,
    (data, program): (&Path, &Path),
) -> anyhow::Result<ScaleResults> {
    let dataset = runtime.block_on(Dataset::open_or_create(data, scale))?;
    // Next to the data: on the same disk, not in a tmpfs.
    let scratch = tempfile::Builder::new()
        .prefix(WORK_DIR_PREFIX)
        .tempdir_in(data);
    let scratch = scratch.context("failed to create a scratch directory")?;
    let (runs, page_cache) = (args.runs.max(1), args.page_cache);
    let bench = RestorerBench {
        restorer: program,
        dataset: &dataset,
        scratch: scratch.path(),
        runs,
        page_cache,
    };
    let say = |what: &str| eprintln!("bench: scale {scale}: {what}");
    let has = |part: RestorerPart| args.parts.contains(&part);

    say("measuring restore and the lower bound alternately");
    let (restored, floor) = measure_restore(&bench)?;
    say("verify");
    let verified = has(RestorerPart::Verify)
        .then(|| bench.verify(&restored))
        .transpose()?;
    say("verifying HashKV of the restored directory");
    let expected = dataset.manifest.hash;
    runtime
        .block_on(bench.verify_hash(&restored.data_dir, expected))
        .context("restored etcd")?;
    dataset::remove_dir(&restored.data_dir)?;
    say("compact");
    let compact = has(RestorerPart::Compact)
        .then(|| runtime.block_on(bench.compact()))
        .transpose()?;
    say("measuring the replay through etcd");
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
    Ok(ScaleResults {
        scale,
        restored,
        floor,
        replay,
        compact,
        verified,
        dataset,
    })
}

/// Compared programs are measured alternately, because the load of a shared machine varies slowly.
fn measure_restore(bench: &RestorerBench<'_>) -> anyhow::Result<(RestoredDir, RestoreFloor)> {
    let mut floors = Vec::with_capacity(bench.runs);
    let mut costs = Vec::with_capacity(bench.runs);
    loop {
        let restored = bench.restore()?;
        let RestorerBench {
            dataset,
            scratch,
            page_cache,
            ..
        } = *bench;
        let size = restored.database_bytes;
        floors.push(RestoreFloor::measure(dataset, scratch, size, page_cache)?);
        costs.push(restored.cost);
        if floors.len() < bench.runs {
            continue;
        }
        let floor = RestoreFloor::median(&floors).context("no measured run")?;
        let cost = timed::median_cost(&costs);
        return Ok((RestoredDir { cost, ..restored }, floor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_benchmark_is_refused_and_stale_files_are_deleted() {
        let data = tempfile::tempdir().unwrap();
        for name in ["work-x/db", "4-abc.making/bucket", "1-abc/bucket"] {
            fs::create_dir_all(data.path().join(name)).unwrap();
        }
        let first = lock_data_dir(data.path()).unwrap();
        assert!(!data.path().join("work-x").exists());
        assert!(!data.path().join("4-abc.making").exists());
        assert!(data.path().join("1-abc/bucket").exists());
        let refused = lock_data_dir(data.path()).unwrap_err();
        assert!(
            refused.to_string().contains("another benchmark"),
            "{refused}"
        );
        drop(first);
        lock_data_dir(data.path()).unwrap();
    }
}

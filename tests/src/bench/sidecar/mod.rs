//! Measures the sidecar with a real etcd: the cost of full snapshots, and the capture of many writes.
//!
//! ```text
//! etcd of 200 MB, of 2 GB ─┬─► sidecar: full snapshot to local files, gzip and zstd
//!                          └─► etcdctl snapshot save, then gzip -1
//! etcd under 10 000 writes/s ──► sidecar: capture lag, CPU time relative to etcd
//! ```
//!
//! Both sides of a ratio are measured alternately on the same etcd. No time limit fails the benchmark.

mod capture;
mod full_snapshots;
mod report;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use mainstay_testkit::SidecarOptions;
use tokio::runtime::Runtime;

use super::args::CacheArgs;
use super::machine::Machine;

/// Measure the sidecar with a real etcd
#[derive(Clone, Debug, Parser)]
pub struct SidecarBenchArgs {
    /// Number of keys of 1 000 B in the databases for full snapshots
    #[arg(long, value_delimiter = ',', default_value = "150000,1500000")]
    pub keys: Vec<usize>,

    /// Number of snapshots of each kind; the median is reported
    #[arg(long, default_value_t = 3)]
    pub runs: usize,

    /// Writes of 1 000 B per second while the capture is measured
    #[arg(long, default_value_t = 10_000)]
    pub rate: usize,

    /// Duration of the writes
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,

    #[command(flatten)]
    pub(super) cache: CacheArgs,

    /// Also write the report to this file
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,

    /// Date shown in the report
    #[arg(long, default_value = "not dated")]
    pub date: String,
}

/// The prefix of backups.
const PREFIX: &str = "etcd-main";
/// The container of backups, below the home directory of the sidecar.
const BUCKET: &str = "bucket";

/// Runs the benchmark of the sidecar.
pub(super) fn main(args: &SidecarBenchArgs) -> anyhow::Result<()> {
    let machine = Machine::detect();
    let data = args.cache.data_dir()?;
    let _lock = super::lock_data_dir(&data)?;
    let runtime = Runtime::new().context("failed to start the async runtime")?;
    let mut fulls = Vec::new();
    for keys in &args.keys {
        fulls.push(runtime.block_on(full_snapshots::measure(&data, *keys, args.runs.max(1)))?);
    }
    let flow = runtime.block_on(capture::measure(&data, args.rate, args.seconds))?;
    let text = report::render(args, &machine, &fulls, &flow)?;
    io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .context("failed to print the report")?;
    if let Some(path) = &args.write {
        fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

/// A sidecar with default options and a `Local` store below `home`; it takes no scheduled snapshots.
fn build_sidecar_options(client_url: &str, home: &str) -> SidecarOptions {
    SidecarOptions::for_member(client_url)
        .flags(&[
            ("storage-provider", "Local"),
            ("store-container", BUCKET),
            ("store-prefix", PREFIX),
            ("schedule", "0 0 1 1 *"),
            ("log-level", "info"),
        ])
        .variable("HOME", home)
}

//! Measures the sidecar beside a real etcd: what a full snapshot costs, and what following many writes does.
//!
//! ```text
//! etcd of 200 MB, of 2 GB ─┬─► sidecar: full snapshot to local files, gzip and zstd
//!                          └─► etcdctl snapshot save, then gzip -1
//! etcd under 10 000 writes/s ──► sidecar: how far behind it is, what it uses beside etcd
//! ```
//!
//! **Holds**: both sides of a ratio are measured in turns on the same etcd. **Does not do**: judge by time.

mod flow;
mod full;
mod page;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use mainstay_testkit::SidecarOptions;
use tokio::runtime::Runtime;

use super::args::CacheArgs;
use super::machine::Machine;

/// Measures the sidecar beside a real etcd.
#[derive(Clone, Debug, Parser)]
pub struct SidecarBenchArgs {
    /// Keys of 1 000 B in the databases whose full snapshots are measured
    #[arg(long, value_delimiter = ',', default_value = "150000,1500000")]
    pub keys: Vec<usize>,

    /// How often each snapshot is taken; the median counts
    #[arg(long, default_value_t = 3)]
    pub runs: usize,

    /// Writes of 1 000 B a second while the capture is measured
    #[arg(long, default_value_t = 10_000)]
    pub rate: usize,

    /// For how long they go on
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,

    #[command(flatten)]
    pub(super) cache: CacheArgs,

    /// Write the report to this file, too
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,

    /// The date the report carries
    #[arg(long, default_value = "not dated")]
    pub date: String,
}

/// The prefix of backups.
const PREFIX: &str = "etcd-main";
/// The container of backups, below the home of the sidecar.
const BUCKET: &str = "bucket";

/// Runs the bench of the sidecar.
pub(super) fn main(args: &SidecarBenchArgs) -> anyhow::Result<()> {
    let machine = Machine::detect();
    let data = args.cache.data_dir()?;
    let _lock = super::lock_data_dir(&data)?;
    let runtime = Runtime::new().context("start a runtime")?;
    let mut fulls = Vec::new();
    for keys in &args.keys {
        fulls.push(runtime.block_on(full::measure(&data, *keys, args.runs.max(1)))?);
    }
    let flow = runtime.block_on(flow::measure(&data, args.rate, args.seconds))?;
    let text = page::render(args, &machine, &fulls, &flow)?;
    io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .context("print the report")?;
    if let Some(path) = &args.write {
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// A sidecar as it runs by default, with a store of local files below `home`, quiet unless asked.
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

//! The command line of the benchmarks.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};

use super::controller::ControllerBenchArgs;
use super::sidecar::SidecarBenchArgs;

/// Measure restore, compact and verify against etcd's own tools, on data of a real etcd
#[derive(Clone, Debug, Parser)]
#[command(name = "bench", args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// Another benchmark, or an internal mode.
    #[command(subcommand)]
    pub mode: Option<BenchMode>,

    /// Sizes of the data, in units of 400 000 keys and 500 000 writes; measured one after the other
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub scale: Vec<u32>,

    /// What to measure
    #[arg(long, value_delimiter = ',', default_value = "restore,compact,verify")]
    pub parts: Vec<RestorerPart>,

    /// Runs of each program; the median is reported
    #[arg(long, default_value_t = 3)]
    pub runs: usize,

    /// Revisions replayed through etcd; the time of the rest is extrapolated
    #[arg(long, value_name = "REVISIONS", default_value_t = 50_000)]
    pub replay_sample: usize,

    /// Sizes for which every revision is replayed and the result compacted, as etcd-backup-restore does
    #[arg(long, value_name = "SCALE", value_delimiter = ',')]
    pub full_replay: Vec<u32>,

    /// State of the page cache when a program starts; cold needs permission to drop caches
    #[arg(long, value_name = "STATE", default_value = "cold")]
    pub page_cache: PageCache,

    /// The program to measure [default: mainstay-restorer in the directory of this program]
    #[arg(long, value_name = "FILE", env = "MAINSTAY_RESTORER")]
    pub restorer: Option<PathBuf>,

    #[command(flatten)]
    pub(super) cache: CacheArgs,

    /// Also write the report to this file
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,

    /// Date shown in the report
    #[arg(long, default_value = "not dated")]
    pub date: String,
}

/// The cache of benchmark data.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CacheArgs {
    /// Directory in which data is kept between runs, below `bench` [default: ~/.cache/etcd-mainstay]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_CACHE")]
    cache: Option<PathBuf>,
}

/// Other benchmarks and internal modes.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchMode {
    /// Measure the sidecar with a real etcd
    Sidecar(SidecarBenchArgs),
    /// Measure the controller with many clusters on a real API server
    Controller(ControllerBenchArgs),
    /// Run one command and write its cost as JSON
    #[command(hide = true)]
    Timed {
        /// File for the cost
        #[arg(long)]
        report: PathBuf,
        /// The command
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

/// A command of the restorer that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RestorerPart {
    /// `restore`; always measured, the others need its result.
    Restore,
    /// `compact`
    Compact,
    /// `verify --data-dir`
    Verify,
}

/// State of the page cache when a measured program starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PageCache {
    /// Dropped before each program.
    Cold,
    /// As previous work left it.
    Warm,
}

impl CacheArgs {
    /// The directory of the data.
    pub(super) fn data_dir(&self) -> anyhow::Result<PathBuf> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let default = || {
            let caches = set("XDG_CACHE_HOME").map(PathBuf::from);
            let caches = caches.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))?;
            Some(caches.join("etcd-mainstay"))
        };
        let cache = self.cache.clone().or_else(default);
        Ok(cache
            .context("no cache directory: set MAINSTAY_CACHE or HOME")?
            .join("bench"))
    }
}

impl BenchArgs {
    /// The program to measure.
    pub fn find_restorer(&self) -> anyhow::Result<PathBuf> {
        if let Some(program) = &self.restorer {
            return Ok(program.clone());
        }
        let own = std::env::current_exe().context("failed to find the path of this program")?;
        let program = own.with_file_name("mainstay-restorer");
        anyhow::ensure!(
            program.exists(),
            "{} not found; build it with `cargo build --release -p mainstay-restorer`",
            program.display()
        );
        Ok(program)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        BenchArgs::command().debug_assert();
    }

    #[test]
    fn scale_flag_accepts_several_sizes() {
        let args = BenchArgs::parse_from(["bench", "--scale", "1,4"]);
        assert_eq!(args.scale, [1, 4]);
    }
}

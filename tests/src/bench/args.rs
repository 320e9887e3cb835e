//! The command line of the bench.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};

use super::controller::ControllerBenchArgs;
use super::sidecar::SidecarBenchArgs;

/// Measures restore, compact and verify against a real etcd, on data a real etcd made.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench", args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// Another bench, or a mode the bench starts itself in.
    #[command(subcommand)]
    pub mode: Option<BenchMode>,

    /// How many times 400 000 keys and 500 000 writes; several sizes are measured one after the
    /// other
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub scale: Vec<u32>,

    /// What to measure
    #[arg(long, value_delimiter = ',', default_value = "restore,compact,verify")]
    pub parts: Vec<RestorerPart>,

    /// How often each program is run; the median counts
    #[arg(long, default_value_t = 3)]
    pub runs: usize,

    /// Revisions replayed through etcd; the time of the rest is extrapolated
    #[arg(long, value_name = "REVISIONS", default_value_t = 50_000)]
    pub replay_sample: usize,

    /// Sizes of which every revision is replayed, and the result folded into a snapshot as the peer does
    #[arg(long, value_name = "SCALE", value_delimiter = ',')]
    pub full_replay: Vec<u32>,

    /// Whether files are in memory when a program starts; cold needs the right to drop caches
    #[arg(long, value_name = "STATE", default_value = "cold")]
    pub page_cache: PageCache,

    /// The program to measure [default: the one beside this program]
    #[arg(long, value_name = "FILE", env = "MAINSTAY_RESTORER")]
    pub restorer: Option<PathBuf>,

    #[command(flatten)]
    pub(super) cache: CacheArgs,

    /// Write the report to this file, too
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,

    /// The date the report carries
    #[arg(long, default_value = "not dated")]
    pub date: String,
}

/// Where data is kept.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CacheArgs {
    /// Where the data is kept between runs, below `bench` [default: ~/.cache/etcd-mainstay]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_CACHE")]
    cache: Option<PathBuf>,
}

/// Other benches, and modes the bench starts itself in.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchMode {
    /// Measures the sidecar beside a real etcd
    Sidecar(SidecarBenchArgs),
    /// Measures the controller with many clusters on a real API server
    Controller(ControllerBenchArgs),
    /// Runs one command and writes what it cost, as JSON
    #[command(hide = true)]
    Timed {
        /// Where to write it
        #[arg(long)]
        report: PathBuf,
        /// The command
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

/// A program of the restorer that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RestorerPart {
    /// `restore`; always measured, the others need its result.
    Restore,
    /// `compact`
    Compact,
    /// `verify --data-dir`
    Verify,
}

/// What the machine's page cache holds when a measured program starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PageCache {
    /// Nothing: it is dropped before.
    Cold,
    /// Whatever the work before left in it.
    Warm,
}

impl CacheArgs {
    /// The directory data is kept in.
    pub(super) fn data_dir(&self) -> anyhow::Result<PathBuf> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let default = || {
            let caches = set("XDG_CACHE_HOME").map(PathBuf::from);
            let caches = caches.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))?;
            Some(caches.join("etcd-mainstay"))
        };
        let cache = self.cache.clone().or_else(default);
        Ok(cache
            .context("neither MAINSTAY_CACHE nor HOME is set")?
            .join("bench"))
    }
}

impl BenchArgs {
    /// The program to measure.
    pub fn find_restorer(&self) -> anyhow::Result<PathBuf> {
        if let Some(program) = &self.restorer {
            return Ok(program.clone());
        }
        let own = std::env::current_exe().context("find this program")?;
        let program = own.with_file_name("mainstay-restorer");
        anyhow::ensure!(
            program.exists(),
            "{} is missing: cargo build --release -p mainstay-restorer",
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
    fn the_command_line_is_consistent() {
        BenchArgs::command().debug_assert();
    }

    #[test]
    fn two_sizes_are_measured_when_asked_for() {
        let args = BenchArgs::parse_from(["bench", "--scale", "1,4"]);
        assert_eq!(args.scale, [1, 4]);
    }
}

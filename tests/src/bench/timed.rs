//! Runs a program and tells what it cost: wall time, processor time, the most memory it held.
//!
//! The bench starts itself as a small process in between, which has exactly one child. Then what
//! the kernel tells of ended children is about that one, and the memory of the bench itself,
//! which a child shares until it has become another program, is not counted.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde::{Deserialize, Serialize};

use super::args::PageCache;

/// What one run cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Cost {
    /// From start to end.
    pub(super) seconds: f64,
    /// On all processors, in the program and in the kernel for it.
    pub(super) cpu_seconds: f64,
    /// The largest resident set, where it is known.
    pub(super) peak_bytes: Option<u64>,
}

/// A program with its arguments and its home.
#[derive(Clone, Debug)]
pub(super) struct TimedProgram {
    command: Vec<OsString>,
    home: OsString,
}

impl TimedProgram {
    /// A program without arguments yet.
    pub(super) fn new(path: &Path, home: &Path) -> Self {
        Self {
            command: vec![path.into()],
            home: home.into(),
        }
    }

    /// Adds arguments.
    #[must_use]
    pub(super) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Adds a flag and its value.
    #[must_use]
    pub(super) fn arg_pair(self, flag: &str, value: &Path) -> Self {
        self.args([OsStr::new(flag), value.as_os_str()])
    }

    /// Runs it once; also returns what it wrote to standard output.
    pub(super) fn run(&self, page_cache: PageCache) -> anyhow::Result<(Cost, String)> {
        settle_disk(page_cache)?;
        let report = tempfile::NamedTempFile::new().context("make a temporary file")?;
        let own = std::env::current_exe().context("find this program")?;
        let output = Command::new(own)
            .env_clear()
            .env("HOME", &self.home)
            .arg("timed")
            .arg("--report")
            .arg(report.path())
            .arg("--")
            .args(&self.command)
            .output()
            .with_context(|| format!("run {}", self.command_line()))?;
        self.expect_success(&output)?;
        let cost = fs::read(report.path()).context("read what a run cost")?;
        let cost = serde_json::from_slice(&cost).context("read what a run cost")?;
        Ok((cost, String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    fn expect_success(&self, output: &Output) -> anyhow::Result<()> {
        ensure!(
            output.status.success(),
            "{} ended with {}:\n{}{}",
            self.command_line(),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    fn command_line(&self) -> String {
        self.command
            .join(OsStr::new(" "))
            .to_string_lossy()
            .into_owned()
    }
}

/// Lets what earlier work wrote reach the disk, and drops what is cached if asked to.
pub(super) fn settle_disk(page_cache: PageCache) -> anyhow::Result<()> {
    rustix::fs::sync();
    match page_cache {
        PageCache::Warm => Ok(()),
        PageCache::Cold => fs::write("/proc/sys/vm/drop_caches", "1\n")
            .context("drop the page cache; without the right to, use --page-cache warm"),
    }
}

/// The mode the bench starts itself in: runs `command` and writes its cost to `report`.
pub(super) fn run_timed(report: &Path, command: &[OsString]) -> anyhow::Result<()> {
    let (program, arguments) = command.split_first().context("no command")?;
    let started = Instant::now();
    let status = Command::new(program)
        .args(arguments)
        .status()
        .with_context(|| format!("start {}", program.display()))?;
    let seconds = started.elapsed().as_secs_f64();
    ensure!(status.success(), "ended with {status}");
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("ask what the child used")?;
    let kibibytes = u64::try_from(usage.max_rss()).context("a resident set is not negative")?;
    let cost = Cost {
        seconds,
        cpu_seconds: cpu_time(&usage).as_secs_f64(),
        peak_bytes: Some(kibibytes * 1024),
    };
    fs::write(report, serde_json::to_vec(&cost)?).context("write what the child used")
}

/// What a piece of this program's own work costs; its memory is not told.
pub(super) fn time_in_process<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(Cost, T)> {
    let used = || -> anyhow::Result<Duration> {
        let usage = getrusage(UsageWho::RUSAGE_SELF).context("ask what this program used")?;
        Ok(cpu_time(&usage))
    };
    let before = used()?;
    let started = Instant::now();
    let done = work()?;
    let cost = Cost {
        seconds: started.elapsed().as_secs_f64(),
        cpu_seconds: used()?.saturating_sub(before).as_secs_f64(),
        peak_bytes: None,
    };
    Ok((cost, done))
}

fn cpu_time(usage: &Usage) -> Duration {
    to_duration(usage.user_time()) + to_duration(usage.system_time())
}

fn to_duration(time: TimeVal) -> Duration {
    let micros = time
        .tv_sec()
        .saturating_mul(1_000_000)
        .saturating_add(time.tv_usec());
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// The cost of several runs: the median of each figure, memory the largest of all.
pub(super) fn median_cost(costs: &[Cost]) -> Cost {
    Cost {
        seconds: median_of(costs.iter().map(|cost| cost.seconds)),
        cpu_seconds: median_of(costs.iter().map(|cost| cost.cpu_seconds)),
        peak_bytes: costs.iter().filter_map(|cost| cost.peak_bytes).max(),
    }
}

/// The value in the middle, the lower of two.
fn median_of(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
        .get(values.len().saturating_sub(1) / 2)
        .copied()
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_times_and_the_most_memory_count() {
        let cost = |seconds, peak_bytes| Cost {
            seconds,
            cpu_seconds: seconds,
            peak_bytes,
        };
        let told = median_cost(&[cost(3.0, Some(10)), cost(1.0, Some(30)), cost(2.0, None)]);
        assert_eq!(told, cost(2.0, Some(30)));
    }

    #[test]
    fn a_command_that_fails_has_no_cost() {
        let report = tempfile::NamedTempFile::new().unwrap();
        let error = run_timed(report.path(), &["false".into()]).unwrap_err();
        assert!(error.to_string().contains("ended with"), "{error}");
    }

    #[test]
    fn the_memory_of_the_child_is_told() {
        let report = tempfile::NamedTempFile::new().unwrap();
        // dd holds one block of the size asked for.
        let command = [
            "dd",
            "if=/dev/zero",
            "of=/dev/null",
            "bs=96M",
            "count=1",
            "status=none",
        ];
        run_timed(report.path(), &command.map(OsString::from)).unwrap();
        let cost: Cost = serde_json::from_slice(&fs::read(report.path()).unwrap()).unwrap();
        assert!(
            (96 << 20..512 << 20).contains(&cost.peak_bytes.unwrap()),
            "{cost:?}"
        );
        assert!(cost.seconds > 0.0, "{cost:?}");
    }
}

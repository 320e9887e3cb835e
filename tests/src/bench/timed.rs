//! Runs a program and measures its cost: wall time, CPU time, peak memory.
//!
//! The benchmark starts itself as a small intermediate process with exactly one child. The kernel's resource usage of
//! ended children then covers only that child, and the memory of the benchmark, which a forked child shares until exec, is
//! not counted.

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

/// The cost of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Cost {
    /// Wall time in seconds.
    pub(super) seconds: f64,
    /// User and system CPU time on all cores, in seconds.
    pub(super) cpu_seconds: f64,
    /// Maximum resident set in bytes; `None` if unknown.
    pub(super) peak_bytes: Option<u64>,
}

/// A program with its arguments and home directory.
#[derive(Clone, Debug)]
pub(super) struct TimedProgram {
    command: Vec<OsString>,
    home: OsString,
}

impl TimedProgram {
    /// A program without arguments.
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

    /// Runs the program once; also returns its stdout.
    pub(super) fn run(&self, page_cache: PageCache) -> anyhow::Result<(Cost, String)> {
        settle_disk(page_cache)?;
        let report = tempfile::NamedTempFile::new().context("failed to create a temporary file")?;
        let own = std::env::current_exe().context("failed to find the path of this program")?;
        let output = Command::new(own)
            .env_clear()
            .env("HOME", &self.home)
            .arg("timed")
            .arg("--report")
            .arg(report.path())
            .arg("--")
            .args(&self.command)
            .output()
            .with_context(|| format!("failed to run {}", self.command_line()))?;
        self.expect_success(&output)?;
        let cost = fs::read(report.path()).context("failed to read the cost of a run")?;
        let cost = serde_json::from_slice(&cost).context("failed to read the cost of a run")?;
        Ok((cost, String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    fn expect_success(&self, output: &Output) -> anyhow::Result<()> {
        ensure!(
            output.status.success(),
            "{} exited with {}:\n{}{}",
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

/// Syncs dirty pages of earlier work, and drops the page cache for [`PageCache::Cold`].
pub(super) fn settle_disk(page_cache: PageCache) -> anyhow::Result<()> {
    rustix::fs::sync();
    match page_cache {
        PageCache::Warm => Ok(()),
        PageCache::Cold => fs::write("/proc/sys/vm/drop_caches", "1\n")
            .context("failed to drop the page cache; without permission, use --page-cache warm"),
    }
}

/// The internal mode: runs `command` and writes its cost to `report`.
pub(super) fn run_timed(report: &Path, command: &[OsString]) -> anyhow::Result<()> {
    let (program, arguments) = command.split_first().context("no command given")?;
    let started = Instant::now();
    let status = Command::new(program)
        .args(arguments)
        .status()
        .with_context(|| format!("failed to start {}", program.display()))?;
    let seconds = started.elapsed().as_secs_f64();
    ensure!(status.success(), "exited with {status}");
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)
        .context("failed to read the resource usage of the child")?;
    let kibibytes = u64::try_from(usage.max_rss()).context("resident set is negative")?;
    let cost = Cost {
        seconds,
        cpu_seconds: cpu_time(&usage).as_secs_f64(),
        peak_bytes: Some(kibibytes * 1024),
    };
    fs::write(report, serde_json::to_vec(&cost)?).context("failed to write the cost of the run")
}

/// Measures work of this program itself, without memory.
pub(super) fn time_in_process<T>(
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(Cost, T)> {
    let used = || -> anyhow::Result<Duration> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)
            .context("failed to read the resource usage of this program")?;
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

/// The cost of several runs: the median of times, the maximum of memory.
pub(super) fn median_cost(costs: &[Cost]) -> Cost {
    Cost {
        seconds: median_of(costs.iter().map(|cost| cost.seconds)),
        cpu_seconds: median_of(costs.iter().map(|cost| cost.cpu_seconds)),
        peak_bytes: costs.iter().filter_map(|cost| cost.peak_bytes).max(),
    }
}

/// The median; the lower of the two middle values for an even number.
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
    fn cost_is_the_median_time_and_the_peak_memory() {
        let cost = |seconds, peak_bytes| Cost {
            seconds,
            cpu_seconds: seconds,
            peak_bytes,
        };
        let result = median_cost(&[cost(3.0, Some(10)), cost(1.0, Some(30)), cost(2.0, None)]);
        assert_eq!(result, cost(2.0, Some(30)));
    }

    #[test]
    fn failed_command_has_no_cost() {
        let report = tempfile::NamedTempFile::new().unwrap();
        let error = run_timed(report.path(), &["false".into()]).unwrap_err();
        assert!(error.to_string().contains("exited with"), "{error}");
    }

    #[test]
    fn peak_memory_of_the_child_is_reported() {
        let report = tempfile::NamedTempFile::new().unwrap();
        // dd allocates one block of the given size.
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

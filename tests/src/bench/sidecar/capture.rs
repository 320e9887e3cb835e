//! Measures the capture lag of the sidecar under a steady stream of writes.
//!
//! Writers record when etcd answered each write. A sampler polls the captured revision of the sidecar; the lag is the age
//! of the oldest answered write that is not captured.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use etcd_client::KvClient;
use mainstay_testkit::{EtcdServer, SidecarProcess};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::super::WORK_DIR_PREFIX;
use super::super::args::PageCache;
use super::super::dataset::{ETCD_RELEASE, etcd_options};
use super::super::load::seeded_value;
use super::super::timed::settle_disk;
use super::super::usage;
use super::build_sidecar_options;

/// Parallel writers. etcd queues 128 changes per watcher; one that falls behind gets at most 1 000 revisions every 100 ms.
const WRITERS: usize = 100;
/// Keys that each writer overwrites in turn.
const KEYS_PER_WRITER: usize = 100;
const VALUE_BYTES: usize = 1_000;
/// A tmpfs.
const MEMORY_DIR: &str = "/dev/shm";
/// Interval of polls of the sidecar.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_mins(1);

/// The measurements.
#[derive(Clone, Copy, Debug)]
pub(super) struct CaptureFigures {
    pub(super) seconds: f64,
    /// Writes answered by etcd.
    pub(super) writes: u64,
    pub(super) samples: usize,
    /// Lag in seconds: p50, p99, max.
    pub(super) lag_seconds: [f64; 3],
    pub(super) sidecar_cpu_seconds: f64,
    pub(super) etcd_cpu_seconds: f64,
    pub(super) peak_bytes: u64,
    /// Number of revision ranges that were not captured.
    pub(super) gaps: u64,
}

/// Times of etcd's answers by revision, in microseconds since the start; zero means no answer yet.
struct AckTimes {
    started: Instant,
    base_revision: i64,
    acked_at: Vec<AtomicU64>,
}

impl AckTimes {
    fn record(&self, revision: i64) {
        let slot = usize::try_from(revision - self.base_revision).ok();
        if let Some(slot) = slot.and_then(|slot| self.acked_at.get(slot)) {
            slot.store(self.elapsed_micros(), Ordering::Relaxed);
        }
    }

    /// Age of the first answered write after `captured`, in seconds.
    fn lag_seconds(&self, captured: i64) -> f64 {
        let first = usize::try_from(captured + 1 - self.base_revision).unwrap_or_default();
        let waiting = self.acked_at.get(first..).unwrap_or_default();
        // Answers to parallel writers arrive out of order, by at most the number of writers.
        let oldest = waiting
            .iter()
            .take(WRITERS)
            .map(|at| at.load(Ordering::Relaxed))
            .filter(|at| *at > 0)
            .min();
        oldest.map_or(0.0, |at| {
            Duration::from_micros(self.elapsed_micros().saturating_sub(at)).as_secs_f64()
        })
    }

    fn elapsed_micros(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn count(&self) -> u64 {
        let answered = self
            .acked_at
            .iter()
            .filter(|at| at.load(Ordering::Relaxed) > 0);
        answered.count() as u64
    }
}

/// Writes `rate` times a second, for `seconds`.
pub(super) async fn measure(
    data: &Path,
    rate: usize,
    seconds: u64,
) -> anyhow::Result<CaptureFigures> {
    eprintln!("bench: {rate} writes a second for {seconds} s");
    let scratch = tempfile::Builder::new()
        .prefix(WORK_DIR_PREFIX)
        .tempdir_in(data);
    let scratch = scratch.context("failed to create a scratch directory")?;
    // Without fsync the kernel writes hundreds of megabytes at once; with fsync a disk is too slow. Hence a tmpfs.
    let fast = create_fast_dir(scratch.path())?;
    let options = etcd_options(fast.path()).with_fsync();
    let mut etcd = EtcdServer::start(ETCD_RELEASE, options).await;
    let home = scratch.path().to_str().context("path is not valid UTF-8")?;
    let sidecar = SidecarProcess::start(build_sidecar_options(etcd.client_url(), home)).await;
    // Dirty pages of earlier work must not compete for the disk.
    settle_disk(PageCache::Warm)?;
    let captures = async || sidecar.status().await["captured"].as_i64();
    let deadline = Instant::now() + TIMEOUT;
    while captures().await.is_none() {
        ensure!(
            Instant::now() < deadline,
            "sidecar does not capture any revision"
        );
        sleep(SAMPLE_INTERVAL).await;
    }
    let total = usize::try_from(seconds).context("duration is too long")? * rate;
    let answers = Arc::new(AckTimes {
        started: Instant::now(),
        base_revision: etcd.revision().await.0 + 1,
        acked_at: (0..total).map(|_| AtomicU64::new(0)).collect(),
    });
    let before = (
        usage::cpu_seconds(sidecar.pid())?,
        usage::cpu_seconds(etcd.pid())?,
    );
    let mut writers = start_writers(&etcd, &answers, total, rate).await;
    let mut behind = Vec::new();
    let mut tick = interval(SAMPLE_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while !writers.is_empty() {
        tokio::select! {
            Some(ended) = writers.join_next() => ended.context("a writer panicked")??,
            _ = tick.tick() => {
                if let Some(captured) = captures().await {
                    behind.push(answers.lag_seconds(captured));
                }
            }
        }
    }
    let seconds = answers.started.elapsed().as_secs_f64();
    let flow = CaptureFigures {
        seconds,
        writes: answers.count(),
        samples: behind.len(),
        lag_seconds: percentiles(&mut behind),
        sidecar_cpu_seconds: usage::cpu_seconds(sidecar.pid())? - before.0,
        etcd_cpu_seconds: usage::cpu_seconds(etcd.pid())? - before.1,
        peak_bytes: usage::peak_bytes(sidecar.pid())?,
        gaps: sidecar.sum_metric("mainstay_gaps_total").await,
    };
    etcd.stop().await;
    Ok(flow)
}

/// A directory in a tmpfs, or below `other` if there is none.
fn create_fast_dir(other: &Path) -> anyhow::Result<TempDir> {
    let memory = Path::new(MEMORY_DIR);
    let place = if memory.is_dir() { memory } else { other };
    let directory = tempfile::Builder::new()
        .prefix(WORK_DIR_PREFIX)
        .tempdir_in(place);
    directory.context("failed to create a directory for etcd")
}

async fn start_writers(
    etcd: &EtcdServer,
    answers: &Arc<AckTimes>,
    writes: usize,
    rate: usize,
) -> JoinSet<anyhow::Result<()>> {
    let pause = Duration::from_secs_f64(f64::from(u32::try_from(WRITERS).unwrap_or(u32::MAX)))
        / u32::try_from(rate.max(1)).unwrap_or(u32::MAX);
    let mut tasks = JoinSet::new();
    let mut connections: Vec<KvClient> = Vec::new();
    for _ in 0..4 {
        connections.push(etcd.client().await.kv_client());
    }
    for (writer, kv) in (0..WRITERS).zip(connections.iter().cycle()) {
        let share = writes / WRITERS + usize::from(writer < writes % WRITERS);
        let (kv, answers) = (kv.clone(), Arc::clone(answers));
        tasks.spawn(run_writer(kv, answers, writer, (share, pause)));
    }
    tasks
}

async fn run_writer(
    mut kv: KvClient,
    answers: Arc<AckTimes>,
    writer: usize,
    (share, pause): (usize, Duration),
) -> anyhow::Result<()> {
    // The writers are staggered within one interval.
    sleep(pause.mul_f64(f64::from(u32::try_from(writer)?) / f64::from(u32::try_from(WRITERS)?)))
        .await;
    let mut tick = interval(pause);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0..share {
        tick.tick().await;
        let key = format!(
            "/registry/bench/{writer:03}/{:03}",
            number % KEYS_PER_WRITER
        );
        let answer = kv.put(key, seeded_value(number, VALUE_BYTES), None).await;
        let answer = answer.context("failed to put a key")?;
        let header = answer.header().context("response has no header")?;
        answers.record(header.revision());
    }
    Ok(())
}

/// p50, p99 and max.
fn percentiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let at = |part: usize| {
        let rank = (values.len() * part).div_ceil(100).max(1) - 1;
        values.get(rank).copied().unwrap_or(f64::NAN)
    };
    [at(50), at(99), at(100)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p99_of_a_hundred_values_is_the_99th() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let format = |values: &mut [f64]| format!("{:?}", percentiles(values));
        assert_eq!(format(&mut values), "[50.0, 99.0, 100.0]");
        assert_eq!(format(&mut [7.0]), "[7.0, 7.0, 7.0]");
    }

    #[test]
    fn lag_counts_from_the_oldest_acknowledged_uncaptured_write() {
        let answers = AckTimes {
            started: Instant::now().checked_sub(Duration::from_secs(10)).unwrap(),
            base_revision: 2,
            acked_at: [1_000_000, 0, 4_000_000, 3_000_000]
                .map(AtomicU64::new)
                .into(),
        };
        let near = |seconds: f64, expected: f64| (seconds - expected).abs() < 1.0;
        assert!(near(answers.lag_seconds(1), 9.0));
        assert!(
            near(answers.lag_seconds(2), 7.0),
            "a write without an answer is skipped"
        );
        assert!(near(answers.lag_seconds(5), 0.0), "all captured");
    }
}

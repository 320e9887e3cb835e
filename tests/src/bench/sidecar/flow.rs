//! A steady stream of writes, and how closely the sidecar follows it.
//!
//! Writers note when etcd answered for each revision. A sampler asks the sidecar what it has captured; it is as far
//! behind as the oldest answered write it has not captured is old.

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

/// Writers at work at the same time. More than 128 make etcd lose sight of its watchers: see the page.
const WRITERS: usize = 100;
/// Keys each of them writes over and over.
const KEYS_PER_WRITER: usize = 100;
const VALUE_BYTES: usize = 1_000;
/// Where files are memory.
const MEMORY_DIR: &str = "/dev/shm";
/// How often the sidecar is asked.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_mins(1);

/// What was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct CaptureFigures {
    pub(super) seconds: f64,
    /// Writes etcd answered.
    pub(super) writes: u64,
    pub(super) samples: usize,
    /// Seconds behind, in the middle, of 99 in 100, and at worst.
    pub(super) lag_seconds: [f64; 3],
    pub(super) sidecar_cpu_seconds: f64,
    pub(super) etcd_cpu_seconds: f64,
    pub(super) peak_bytes: u64,
    /// Ranges it could not capture.
    pub(super) gaps: u64,
}

/// When etcd answered for each revision, in microseconds since the start; zero is not yet.
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

    /// How long the first answered write behind `captured` has been waiting.
    fn lag_seconds(&self, captured: i64) -> f64 {
        let first = usize::try_from(captured + 1 - self.base_revision).unwrap_or_default();
        let waiting = self.acked_at.get(first..).unwrap_or_default();
        // Answers come out of order among writers, by no more than there are writers.
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
        let answered = self.acked_at.iter().filter(|at| at.load(Ordering::Relaxed) > 0);
        answered.count() as u64
    }
}

/// Writes `rate` times a second, for `seconds`.
pub(super) async fn measure(data: &Path, rate: usize, seconds: u64) -> anyhow::Result<CaptureFigures> {
    eprintln!("bench: {rate} writes a second for {seconds} s");
    let scratch = tempfile::Builder::new().prefix(WORK_DIR_PREFIX).tempdir_in(data);
    let scratch = scratch.context("make a scratch directory")?;
    // One that never syncs leaves the kernel hundreds of megabytes to write at once; one that does needs a fast disk.
    let fast = create_fast_dir(scratch.path())?;
    let options = etcd_options(fast.path()).with_fsync();
    let mut etcd = EtcdServer::start(ETCD_RELEASE, options).await;
    let home = scratch.path().to_str().context("a path that is text")?;
    let sidecar = SidecarProcess::start(build_sidecar_options(etcd.client_url(), home)).await;
    // What earlier work wrote must not compete for the disk.
    settle_disk(PageCache::Warm)?;
    let captures = async || sidecar.status().await["captured"].as_i64();
    let deadline = Instant::now() + TIMEOUT;
    while captures().await.is_none() {
        ensure!(Instant::now() < deadline, "the sidecar captures nothing");
        sleep(SAMPLE_INTERVAL).await;
    }
    let total = usize::try_from(seconds).context("seconds")? * rate;
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
                if let Some(wait_until_captured) = captures().await {
                    behind.push(answers.lag_seconds(wait_until_captured));
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

/// A directory in memory, or below `other` where there is none.
fn create_fast_dir(other: &Path) -> anyhow::Result<TempDir> {
    let memory = Path::new(MEMORY_DIR);
    let place = if memory.is_dir() { memory } else { other };
    let directory = tempfile::Builder::new().prefix(WORK_DIR_PREFIX).tempdir_in(place);
    directory.context("make a directory for etcd")
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
    // The writers take turns within one pause.
    sleep(pause.mul_f64(f64::from(u32::try_from(writer)?) / f64::from(u32::try_from(WRITERS)?)))
        .await;
    let mut tick = interval(pause);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0..share {
        tick.tick().await;
        let key = format!("/registry/bench/{writer:03}/{:03}", number % KEYS_PER_WRITER);
        let answer = kv.put(key, seeded_value(number, VALUE_BYTES), None).await;
        let answer = answer.context("write a key")?;
        let header = answer.header().context("an answer without a header")?;
        answers.record(header.revision());
    }
    Ok(())
}

/// The value in the middle, the one 99 of 100 are at most, and the largest.
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
    fn ninety_nine_of_a_hundred_are_at_most_the_99th() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let told = |values: &mut [f64]| format!("{:?}", percentiles(values));
        assert_eq!(told(&mut values), "[50.0, 99.0, 100.0]");
        assert_eq!(told(&mut [7.0]), "[7.0, 7.0, 7.0]");
    }

    #[test]
    fn the_oldest_answered_write_that_is_not_captured_counts() {
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
            "not answered yet, so the next one"
        );
        assert!(near(answers.lag_seconds(5), 0.0), "all captured");
    }
}

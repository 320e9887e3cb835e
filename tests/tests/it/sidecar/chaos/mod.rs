//! Injects random faults for a configurable time; then the bucket must restore what etcd had.
//!
//! ```text
//! Writer ─► etcd ◄─ faults (members, sidecars, network, store) ◄─ seed
//!            │ sampled: hash at a revision
//!            ▼
//! sidecars ─► S3 ─► restore at sampled revisions ── the same hash?
//!                └► restore the end ── every acknowledged write?
//!                └► gaps ── each in a log?
//! ```
//!
//! `make test` injects each kind of fault once. `soak` runs for `MAINSTAY_CHAIN_MINUTES` (default 2); `MAINSTAY_CHAIN_SEED`
//! repeats a run as far as timing allows.

mod checks;
mod faults;
mod samples;

use std::time::{Duration, Instant};

use jiff::Timestamp;
use mainstay_testkit::{EtcdCluster, EtcdOptions, EtcdRelease, FaultProxy, ProxyMode};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::sleep;

use super::harness::SHORT_RETRY_TIMEOUT;
use super::{SidecarHarness, SidecarStore, WriterPool};
use crate::servers::SeaweedFs;
use faults::ChaosFault;
use samples::HashSamples;

const CLIENT_COUNT: usize = 3;
const WRITE_INTERVAL: Duration = Duration::from_millis(15);
/// A full snapshot every minute, so that short runs have several.
const CHAOS_FLAGS: [(&str, &str); 2] = [("schedule", "* * * * *"), SHORT_RETRY_TIMEOUT];

/// The faults injected at the same time.
type FaultRound = (ChaosFault, Option<ChaosFault>);

/// Every kind of fault once, alone and in pairs.
const FAULT_ROUNDS: [FaultRound; 7] = [
    (ChaosFault::MemberKilled(0), None),
    (
        ChaosFault::SidecarKilled(1),
        Some(ChaosFault::Compaction(500)),
    ),
    (
        ChaosFault::LeaderMoved,
        Some(ChaosFault::Store(ProxyMode::RespondWith(503))),
    ),
    (ChaosFault::MemberIsolated(2), None),
    (
        ChaosFault::MemberPaused(1),
        Some(ChaosFault::Store(ProxyMode::Closed)),
    ),
    (
        ChaosFault::SidecarStopped(2),
        Some(ChaosFault::FullRequested),
    ),
    (
        ChaosFault::Defragmentation(0),
        Some(ChaosFault::Store(ProxyMode::Unresponsive)),
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn backup_restores_the_etcd_state_after_each_kind_of_fault() {
    const SEED: u64 = 2;
    run_fault_rounds(SEED, FAULT_ROUNDS.into_iter(), 3).await;
}

mod soak {
    use super::*;

    /// Number of restores; each starts a server.
    const RESTORE_COUNT: usize = 8;

    #[tokio::test(flavor = "multi_thread")]
    async fn backup_restores_the_etcd_state_after_random_faults() {
        let seed = env_number("MAINSTAY_CHAIN_SEED")
            .unwrap_or_else(|| Timestamp::now().as_millisecond().unsigned_abs());
        let minutes = env_number("MAINSTAY_CHAIN_MINUTES").unwrap_or(2);
        eprintln!("MAINSTAY_CHAIN_SEED={seed} MAINSTAY_CHAIN_MINUTES={minutes}");
        let end = Instant::now() + Duration::from_mins(minutes);
        let rounds = random_rounds(seed).take_while(|_| Instant::now() < end);
        run_fault_rounds(seed, rounds, RESTORE_COUNT).await;
    }

    /// An endless sequence of random faults.
    fn random_rounds(seed: u64) -> impl Iterator<Item = FaultRound> {
        let mut random = StdRng::seed_from_u64(seed);
        std::iter::repeat_with(move || {
            let first = ChaosFault::pick_random(&mut random);
            let second = random
                .random_bool(0.4)
                .then(|| ChaosFault::pick_random(&mut random));
            (first, second.filter(|second| !first.conflicts_with(second)))
        })
    }
}

async fn run_fault_rounds(seed: u64, rounds: impl Iterator<Item = FaultRound>, restores: usize) {
    let versions = EtcdRelease::all();
    let version = versions[usize::try_from(seed).unwrap() % versions.len()];
    eprintln!("seed {seed}, etcd {version}");
    let options = EtcdOptions::new();
    let cluster = EtcdCluster::start_with_proxies(version, 3, &options);
    let (weed, cluster) = tokio::join!(SeaweedFs::start(), cluster);
    let gate = FaultProxy::start(&weed.endpoint);
    let mut stage =
        SidecarHarness::start_on(cluster, SidecarStore::s3(&weed, gate.url()), &CHAOS_FLAGS).await;
    stage.wait_until_settled().await;
    let writer = WriterPool::start(&stage.client_urls(), CLIENT_COUNT, WRITE_INTERVAL, seed);
    stage.wait_until_stored().await;

    let mut samples = HashSamples::default();
    let mut random = StdRng::seed_from_u64(seed);
    for round in rounds {
        eprintln!("{} {round:?}", Timestamp::now());
        inject_and_heal(&mut stage, &gate, round, &mut random).await;
        samples.record(&stage.cluster).await;
        writer.wait_for_writes(random.random_range(20..100)).await;
        samples.record(&stage.cluster).await;
    }

    let acks = writer.stop().await;
    eprintln!(
        "{} writes were acknowledged, {} hashes sampled",
        acks.count(),
        samples.len()
    );
    let tried = (&samples, restores);
    checks::check_everything(&stage, &acks, tried, &format!("seed {seed}")).await;
}

/// Injects one or two faults, then repairs the cluster.
async fn inject_and_heal(
    stage: &mut SidecarHarness,
    gate: &FaultProxy,
    round: FaultRound,
    random: &mut StdRng,
) {
    let (first, second) = round;
    first.inject(stage, gate).await;
    if let Some(second) = &second {
        second.inject(stage, gate).await;
    }
    sleep(Duration::from_millis(random.random_range(300..4_000))).await;
    if let Some(second) = &second {
        second.clear(stage, gate).await;
    }
    first.clear(stage, gate).await;
    for member in &mut stage.cluster.members {
        member
            .wait_until_healthy()
            .await
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A number from the environment.
fn env_number(variable: &str) -> Option<u64> {
    let text = std::env::var_os(variable)?.into_string().unwrap();
    Some(
        text.parse()
            .unwrap_or_else(|error| panic!("{variable} is {text}: {error}")),
    )
}

//! The long test: everything that can break breaks, at random, for as long as one likes; then the bucket must give
//! back what etcd had.
//!
//! ```text
//! Writer ─► etcd ◄─ faults (members, sidecars, wires, store) ◄─ seed
//!            │ sampled: hash at a revision
//!            ▼
//! sidecars ─► S3 ─► restore at sampled revisions ── the same hash?
//!                └► restore the end ── every acknowledged write?
//!                └► holes ── each named in a log?
//! ```
//!
//! `make test` has each kind of fault once. `soak` goes on for `MAINSTAY_CHAIN_MINUTES` (2); `MAINSTAY_CHAIN_SEED` repeats a
//! run as far as timing allows.

mod faults;
mod judge;
mod samples;

use std::time::{Duration, Instant};

use jiff::Timestamp;
use mainstay_testkit::{EtcdCluster, EtcdOptions, EtcdVersion, Gate, Gating};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::sleep;

use super::stage::IMPATIENT;
use super::{Place, Stage, Writer};
use crate::servers::Weed;
use faults::Fault;
use samples::Samples;

const CLIENTS: usize = 3;
const PACE: Duration = Duration::from_millis(15);
/// A full snapshot every minute, so that short runs have several.
const FLAGS: [(&str, &str); 2] = [("schedule", "* * * * *"), IMPATIENT];

/// What breaks at once.
type Round = (Fault, Option<Fault>);

/// Every kind of fault once, alone and in pairs.
const EACH_KIND: [Round; 7] = [
    (Fault::MemberKilled(0), None),
    (Fault::SidecarKilled(1), Some(Fault::Compaction(500))),
    (
        Fault::LeaderMoved,
        Some(Fault::Store(Gating::Answering(503))),
    ),
    (Fault::MemberCutOff(2), None),
    (Fault::MemberPaused(1), Some(Fault::Store(Gating::Closed))),
    (Fault::SidecarStopped(2), Some(Fault::FullAsked)),
    (
        Fault::Defragmentation(0),
        Some(Fault::Store(Gating::Silent)),
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_fault_leaves_a_bucket_that_gives_back_what_etcd_had() {
    const SEED: u64 = 2;
    whatever_breaks(SEED, EACH_KIND.into_iter(), 3).await;
}

mod soak {
    use super::*;

    /// Restores that are tried; each starts a server.
    const RESTORES: usize = 8;

    #[tokio::test(flavor = "multi_thread")]
    async fn whatever_breaks_the_bucket_gives_back_what_etcd_had() {
        let seed = setting("MAINSTAY_CHAIN_SEED")
            .unwrap_or_else(|| Timestamp::now().as_millisecond().unsigned_abs());
        let minutes = setting("MAINSTAY_CHAIN_MINUTES").unwrap_or(2);
        eprintln!("MAINSTAY_CHAIN_SEED={seed} MAINSTAY_CHAIN_MINUTES={minutes}");
        let end = Instant::now() + Duration::from_mins(minutes);
        let rounds = drawn(seed).take_while(|_| Instant::now() < end);
        whatever_breaks(seed, rounds, RESTORES).await;
    }

    /// Faults without an end.
    fn drawn(seed: u64) -> impl Iterator<Item = Round> {
        let mut random = StdRng::seed_from_u64(seed);
        std::iter::repeat_with(move || {
            let first = Fault::draw(&mut random);
            let second = random.random_bool(0.4).then(|| Fault::draw(&mut random));
            (first, second.filter(|second| !first.collides_with(second)))
        })
    }
}

async fn whatever_breaks(seed: u64, rounds: impl Iterator<Item = Round>, restores: usize) {
    let version = EtcdVersion::all()[usize::try_from(seed % 3).unwrap()];
    eprintln!("seed {seed}, etcd {version}");
    let options = EtcdOptions::new();
    let cluster = EtcdCluster::start_wired(version, 3, &options);
    let (weed, cluster) = tokio::join!(Weed::start(), cluster);
    let gate = Gate::before(&weed.endpoint);
    let mut stage = Stage::on(cluster, Place::s3(&weed, gate.url()), &FLAGS).await;
    stage.settled().await;
    let writer = Writer::start(&stage.client_urls(), CLIENTS, PACE, seed);
    stage.stored().await;

    let mut samples = Samples::default();
    let mut random = StdRng::seed_from_u64(seed);
    for round in rounds {
        eprintln!("{} {round:?}", Timestamp::now());
        break_and_heal(&mut stage, &gate, round, &mut random).await;
        samples.take(&stage.cluster).await;
        writer.goes_on(random.random_range(20..100)).await;
        samples.take(&stage.cluster).await;
    }

    let acks = writer.stop().await;
    eprintln!(
        "{} writes were acknowledged, {} hashes sampled",
        acks.count(),
        samples.len()
    );
    let tried = (&samples, restores);
    judge::everything(&stage, &acks, tried, &format!("seed {seed}")).await;
}

/// One or two faults at a time, and a whole cluster afterwards.
async fn break_and_heal(stage: &mut Stage, gate: &Gate, round: Round, random: &mut StdRng) {
    let (first, second) = round;
    first.begin(stage, gate).await;
    if let Some(second) = &second {
        second.begin(stage, gate).await;
    }
    sleep(Duration::from_millis(random.random_range(300..4_000))).await;
    if let Some(second) = &second {
        second.end(stage, gate).await;
    }
    first.end(stage, gate).await;
    for member in &mut stage.cluster.members {
        member
            .wait_until_healthy()
            .await
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A number from the environment.
fn setting(variable: &str) -> Option<u64> {
    let text = std::env::var_os(variable)?.into_string().unwrap();
    Some(
        text.parse()
            .unwrap_or_else(|error| panic!("{variable} is {text}: {error}")),
    )
}

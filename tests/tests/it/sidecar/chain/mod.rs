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
//! `STEWARD_CHAIN_MINUTES` says how long (2), `STEWARD_CHAIN_SEED` repeats a run as far as timing allows.

mod faults;
mod judge;
mod samples;

use std::time::{Duration, Instant};

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use steward_testkit::{EtcdCluster, EtcdOptions, EtcdVersion, Gate};
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

#[tokio::test(flavor = "multi_thread")]
async fn whatever_breaks_the_bucket_gives_back_what_etcd_had() {
    let seed = setting("STEWARD_CHAIN_SEED")
        .unwrap_or_else(|| Timestamp::now().as_millisecond().unsigned_abs());
    let minutes = setting("STEWARD_CHAIN_MINUTES").unwrap_or(2);
    let version = EtcdVersion::all()[usize::try_from(seed % 3).unwrap()];
    eprintln!("STEWARD_CHAIN_SEED={seed} STEWARD_CHAIN_MINUTES={minutes}, etcd {version}");

    let weed = Weed::start().await;
    let gate = Gate::before(&weed.endpoint);
    let cluster = EtcdCluster::start_wired(version, 3, &EtcdOptions::new()).await;
    let mut stage = Stage::on(cluster, Place::s3(&weed, gate.url()), &FLAGS).await;
    stage.settled().await;
    let writer = Writer::start(&stage.client_urls(), CLIENTS, PACE, seed);
    stage.stored().await;

    let mut samples = Samples::default();
    break_things(&mut stage, &gate, &writer, &mut samples, (seed, minutes)).await;

    let acks = writer.stop().await;
    eprintln!(
        "{} writes were acknowledged, {} hashes sampled",
        acks.count(),
        samples.len()
    );
    judge::everything(&stage, &acks, &samples, seed).await;
}

/// One or two faults at a time, and a whole cluster between.
async fn break_things(
    stage: &mut Stage,
    gate: &Gate,
    writer: &Writer,
    samples: &mut Samples,
    (seed, minutes): (u64, u64),
) {
    let mut random = StdRng::seed_from_u64(seed);
    let until = Instant::now() + Duration::from_mins(minutes);
    while Instant::now() < until {
        let first = Fault::draw(&mut random);
        let second = random.random_bool(0.4).then(|| Fault::draw(&mut random));
        let second = second.filter(|second| !first.collides_with(second));
        eprintln!("{} {first:?} {second:?}", Timestamp::now());
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
        samples.take(&stage.cluster).await;
        writer.goes_on(random.random_range(20..100)).await;
        samples.take(&stage.cluster).await;
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

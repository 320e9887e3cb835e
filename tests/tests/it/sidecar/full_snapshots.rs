//! Full snapshots: when they are taken, and what is captured meanwhile.

use std::fs;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use mainstay_ids::Revision;
use mainstay_testkit::{
    EtcdCluster, EtcdOptions, EtcdRelease, EtcdServer, FaultProxy, ProxyMode, SidecarProcess,
};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use tempfile::TempDir;
use tokio::time::sleep;

use super::harness::TIMEOUT;
use super::outages::start_servers;
use super::{SidecarHarness, SidecarStore, WriterPool};

const VERSION: EtcdRelease = EtcdRelease::NEWEST;
const WRITE_INTERVAL: Duration = Duration::from_millis(10);

fn full_names(stage: &SidecarHarness) -> Vec<String> {
    let names = stage.backup().snapshot_names().into_iter();
    names.filter(|name| name.starts_with("Full-")).collect()
}

/// Incompressible data.
async fn fill_random(etcd: &EtcdServer, megabytes: usize) {
    let mut random = StdRng::seed_from_u64(51);
    let mut client = etcd.client().await;
    let mut value = vec![0; 1 << 20];
    for i in 0..megabytes {
        random.fill_bytes(&mut value);
        client
            .put(format!("/big/{i:03}"), value.clone(), None)
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn full_snapshot_is_taken_at_start_on_demand_and_as_final() {
    let mut stage = SidecarHarness::start_local(VERSION, 1).await;
    stage.wait_until_settled().await;
    let writer = WriterPool::start(&stage.client_urls(), 2, WRITE_INTERVAL, 52);
    writer.wait_for_writes(50).await;
    stage.wait_until_stored().await;
    assert_eq!(full_names(&stage).len(), 1, "at the start");

    let before = stage.cluster.members[0].revision().await;
    let (code, answer) = stage.sidecars[0].request("/snapshot/full").await;
    assert_eq!(code, 200, "{answer:#}");
    assert!(
        answer["lastRevision"].as_i64().unwrap() >= before.0,
        "{answer:#}"
    );
    assert_eq!(answer["isFinal"], false, "{answer:#}");
    assert_eq!(
        full_names(&stage).last().map(String::as_str),
        answer["snapName"].as_str()
    );

    writer.wait_for_writes(50).await;
    let (code, answer) = stage.sidecars[0].request("/snapshot/full?final=true").await;
    assert_eq!(code, 200, "{answer:#}");
    assert_eq!(answer["isFinal"], true, "{answer:#}");
    let name = answer["snapName"].as_str().unwrap();
    assert!(name.ends_with(".gz.final"), "{name}");

    // After a final snapshot, the next session starts with a regular one.
    stage.sidecars[0].stop().await;
    stage.sidecars[0].restart().await;
    writer.wait_for_writes(50).await;
    let acks = writer.stop().await;
    stage
        .assert_restores_with(&acks, "on demand and final")
        .await;
    let found = full_names(&stage);
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(!found.last().unwrap().contains(".final"), "{found:?}");
}

/// After a final snapshot a regular one is due at once and stored before the first delta. The revisions up to it must be
/// restorable nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn full_snapshot_ahead_of_the_deltas_leaves_no_gap() {
    let flags = [("delta-snapshot-period", "1h")];
    let mut stage = SidecarHarness::start_local_with(VERSION, 1, &EtcdOptions::new(), &flags).await;
    stage.wait_until_settled().await;
    let writer = WriterPool::start(&stage.client_urls(), 2, Duration::from_millis(2), 55);
    for round in 0..6 {
        writer.wait_for_writes(60).await;
        let (code, answer) = stage.sidecars[0].request("/snapshot/full?final=true").await;
        assert_eq!(code, 200, "{answer:#}");
        if round % 2 == 0 {
            stage.sidecars[0].kill();
        } else {
            stage.sidecars[0].stop().await;
        }
        stage.sidecars[0].restart().await;
        stage.wait_until_settled().await;
    }
    let acks = writer.stop().await;
    let (code, answer) = stage.sidecars[0].request("/snapshot/delta").await;
    assert_eq!(code, 200, "{answer:#}");
    stage
        .assert_restores_with(&acks, "full snapshots ahead")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_snapshot_is_taken_on_schedule() {
    let flags = [("schedule", "* * * * *")];
    let begun = Timestamp::now().as_second() / 60;
    let stage = SidecarHarness::start_local_with(VERSION, 1, &EtcdOptions::new(), &flags).await;
    stage.wait_until_settled().await;
    let writer = WriterPool::start(&stage.client_urls(), 1, WRITE_INTERVAL, 53);
    let deadline = Instant::now() + TIMEOUT;
    while full_names(&stage).len() < 2 {
        assert!(
            Instant::now() < deadline,
            "{:?}",
            stage.backup().snapshot_names()
        );
        sleep(Duration::from_millis(500)).await;
    }
    let acks = writer.stop().await;
    stage.assert_restores_with(&acks, "by schedule").await;
    let log = stage.sidecars[0].read_log();
    assert!(log.contains("because=\"scheduled\""), "{log}");
    let found = full_names(&stage);
    let minute = unix_seconds(&found[1]) / 60;
    assert!(minute > begun, "{found:?}: taken before the minute began");
}

/// The time of a snapshot, from its name.
fn unix_seconds(name: &str) -> i64 {
    let field = name.split(['-', '.']).nth(3).unwrap();
    field.parse().unwrap()
}

/// The revisions of the full snapshots that a sidecar started, from its log.
fn snapshot_revisions(sidecar: &SidecarProcess) -> Vec<i64> {
    let log = sidecar.read_log();
    let begun = log
        .lines()
        .filter(|line| line.contains("taking a full snapshot"));
    let revision = |line: &str| {
        let (_, rest) = line.split_once(" revision=").unwrap();
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    begun.map(revision).collect()
}

/// The revisions captured during the next full snapshot, until several are after its own revision.
async fn captured_during_full(sidecar: &SidecarProcess, before: usize) -> Vec<i64> {
    let deadline = Instant::now() + TIMEOUT;
    let mut captured = Vec::new();
    loop {
        assert!(Instant::now() < deadline, "only {captured:?} is captured");
        sleep(Duration::from_millis(100)).await;
        let Some(named) = snapshot_revisions(sidecar).get(before).copied() else {
            continue;
        };
        let status = sidecar.status().await;
        assert_eq!(status["fullUnderWay"], true, "too quick: {captured:?}");
        captured.push(status["captured"].as_i64().unwrap());
        captured.dedup();
        if captured
            .iter()
            .filter(|revision| **revision > named)
            .count()
            > 2
        {
            return captured;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deltas_continue_during_a_slow_full_snapshot() {
    let (weed, cluster) = start_servers().await;
    let gate = FaultProxy::start(&weed.endpoint);
    // Slow enough that a part of several megabytes almost times out.
    let flags = [("store-retry-timeout", "1m")];
    let stage =
        SidecarHarness::start_on(cluster, SidecarStore::s3(&weed, gate.url()), &flags).await;
    stage.wait_until_settled().await;
    fill_random(&stage.cluster.members[0], 12).await;
    stage.wait_until_stored().await;
    let writer = WriterPool::start(&stage.client_urls(), 1, WRITE_INTERVAL, 54);

    gate.set_mode(ProxyMode::Slow(300_000));
    let before = snapshot_revisions(&stage.sidecars[0]).len();
    let asked = stage.sidecars[0].request("/snapshot/full");
    let watched = async {
        let captured = captured_during_full(&stage.sidecars[0], before).await;
        gate.set_mode(ProxyMode::Open);
        captured
    };
    let ((code, answer), captured) = tokio::join!(asked, watched);
    assert_eq!(code, 200, "{answer:#}");
    assert!(captured.is_sorted(), "{captured:?}");
    let named = Revision(answer["lastRevision"].as_i64().unwrap());
    assert!(
        captured.last() > Some(&named.0),
        "{captured:?} behind {named}"
    );

    let parts = stage.sidecars[0]
        .read_metric("mainstay_upload_parts_total")
        .await;
    assert!(parts >= 3, "12 MB in {parts} parts");

    writer.wait_for_writes(30).await;
    let acks = writer.stop().await;
    stage
        .assert_restores_with(&acks, "a slow full snapshot")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_snapshot_leaves_no_object_and_is_retried() {
    let home = TempDir::new().unwrap();
    let place = SidecarStore::local(home.path());
    let cluster = EtcdCluster::start(VERSION, 1, &EtcdOptions::new()).await;
    fill_random(&cluster.members[0], 20).await;
    let gate = FaultProxy::start(cluster.members[0].client_url());
    gate.set_mode(ProxyMode::CutAfter(8 << 20));
    let sidecar = SidecarProcess::start(SidecarHarness::sidecar_options(gate.url(), &place)).await;
    let deadline = Instant::now() + TIMEOUT;
    while sidecar.status().await["lastFull"].is_null() {
        assert!(Instant::now() < deadline, "no full snapshot");
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(
        gate.fault_count(),
        1,
        "the connection must be cut exactly once"
    );
    // The sidecar detects either the broken stream first, or that the leader is unknown.
    let mut failures = 0;
    for class in ["etcd", "interrupted"] {
        let series = format!("etcdbr_snapshotter_failure{{error=\"{class}\"}}");
        failures += sidecar.read_metric(&series).await;
    }
    assert!(failures >= 1, "the failure is not counted");
    let reached = place.backup.verify();
    assert_eq!(reached, cluster.members[0].revision().await);
    // No second object and no partial object is left.
    let folder = home.path().join("bucket/etcd-main/v2");
    let files: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
}

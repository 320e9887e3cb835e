//! The store belongs to a different history than etcd, which lost its data or was restored to an earlier state.

use std::time::{Duration, Instant};

use mainstay_ids::Revision;
use mainstay_testkit::{EtcdCluster, EtcdOptions, EtcdRelease, SidecarProcess};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use tempfile::TempDir;

use super::harness::TIMEOUT;
use super::outages::wait_for_error;
use super::{SidecarHarness, SidecarStore, WriterPool};
use crate::support::start_etcd_on;

const VERSION: EtcdRelease = EtcdRelease::NEWEST;
const WRITE_INTERVAL: Duration = Duration::from_millis(10);
const FOREIGN_GAPS_METRIC: &str = "mainstay_gaps_total{cause=\"foreign-history\"}";

/// A backup whose etcd and sidecar have stopped; returns its objects and its newest revision.
async fn create_orphaned_backup(seed: u64) -> (SidecarHarness, Vec<String>, Revision) {
    let mut stage = SidecarHarness::start_local(VERSION, 1).await;
    stage.wait_until_settled().await;
    let writer = WriterPool::start(&stage.client_urls(), 1, WRITE_INTERVAL, seed);
    writer.wait_for_writes(50).await;
    writer.stop().await;
    let reached = stage.wait_until_stored().await;
    stage.sidecars[0].stop().await;
    stage.cluster.members[0].kill();
    let names = stage.backup().snapshot_names();
    (stage, names, reached)
}

/// Also checks after a stop, because a stopping sidecar stores all captured events.
async fn assert_nothing_stored(stage: &mut SidecarHarness, before: &[String]) {
    stage.wait_for_leader_checks(0, 3).await;
    stage.sidecars[0].stop().await;
    assert_eq!(stage.backup().snapshot_names(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_with_foreign_history_stays_refused_after_passing_the_store() {
    let (stage, before, reached) = create_orphaned_backup(44).await;
    let cluster = EtcdCluster::start(VERSION, 1, &EtcdOptions::new()).await;
    let mut empty = SidecarHarness::start_on(cluster, stage.store.clone(), &[]).await;
    empty.wait_until_settled().await;
    wait_for_error(&empty.sidecars[0], "store-ahead").await;
    let mut client = empty.cluster.members[0].client().await;
    for i in 0..reached.0 + 20 {
        client.put(format!("other/{i}"), "v", None).await.unwrap();
    }
    // The running sidecar detects it, and a restarted one detects it at once.
    wait_for_error(&empty.sidecars[0], "foreign-history").await;
    assert!(empty.sum_metric(FOREIGN_GAPS_METRIC).await >= 1);
    empty.sidecars[0].stop().await;
    empty.sidecars[0].restart().await;
    empty.wait_until_settled().await;
    wait_for_error(&empty.sidecars[0], "foreign-history").await;
    for path in ["/snapshot/full", "/snapshot/delta"] {
        let (code, answer) = empty.sidecars[0].request(path).await;
        assert_eq!(code, 500, "{path}: {answer:#}");
    }
    assert_nothing_stored(&mut empty, &before).await;
}

/// Restored to an earlier state with a bumped revision: the two histories cannot be confused, and backups continue.
#[tokio::test(flavor = "multi_thread")]
async fn restored_etcd_with_bumped_revision_continues_with_a_full_snapshot() {
    const BUMP: i64 = 1_000_000;
    let mut stage = SidecarHarness::start_local(VERSION, 1).await;
    stage.wait_until_settled().await;
    let mut client = stage.cluster.members[0].client().await;
    let mut reached = Revision(0);
    for value in ["old", "new"] {
        client.put("k", value, None).await.unwrap();
        reached = stage.wait_until_stored().await;
    }
    stage.sidecars[0].stop().await;
    let before = stage.backup().snapshot_names();

    let directory = TempDir::new().unwrap();
    let data_dir = directory.path().join("data");
    let to = reached.previous().to_string();
    let bump = BUMP.to_string();
    let flags = [
        "--to-revision",
        &to,
        "--bump-revision",
        &bump,
        "--mark-compacted",
    ];
    stage.backup().restore(&data_dir, &flags);
    let cluster = EtcdCluster::from_members(vec![start_etcd_on(VERSION, &data_dir).await]);
    let stage = SidecarHarness::start_on(cluster, stage.store.clone(), &[]).await;
    stage.wait_until_settled().await;
    let put = stage.cluster.members[0]
        .client()
        .await
        .put("k", "again", None)
        .await;
    let put = Revision(put.unwrap().header().unwrap().revision());
    assert_eq!(stage.wait_until_stored().await, put);
    let new: Vec<String> = stage
        .backup()
        .snapshot_names()
        .into_iter()
        .filter(|name| !before.contains(name))
        .collect();
    let fields: Vec<&str> = new[0].split('-').collect();
    assert_eq!(fields[0], "Full", "{new:?}");
    assert!(fields[2].parse::<i64>().unwrap() > BUMP, "{new:?}");
    let log = stage.sidecars[0].read_log();
    assert!(log.contains("ends in a different history"), "{log}");
    assert_eq!(
        stage.assert_restores("restored earlier and bumped").await,
        put
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn store_ahead_of_etcd_is_not_written_to() {
    let mut stage = SidecarHarness::start_local(VERSION, 1).await;
    stage.wait_until_settled().await;
    let writer = WriterPool::start(&stage.client_urls(), 1, WRITE_INTERVAL, 43);
    writer.wait_for_writes(50).await;
    writer.stop().await;
    stage.wait_until_stored().await;
    stage.sidecars[0].stop().await;
    let before = stage.backup().snapshot_names();

    // Another etcd with the same prefix: a cluster that lost its data and started empty.
    let cluster = EtcdCluster::start(VERSION, 1, &EtcdOptions::new()).await;
    let mut empty = SidecarHarness::start_on(cluster, stage.store.clone(), &[]).await;
    empty.wait_until_settled().await;
    empty.cluster.members[0]
        .client()
        .await
        .put("k", "v", None)
        .await
        .unwrap();
    let text = wait_for_error(&empty.sidecars[0], "store-ahead").await;
    assert!(
        text.contains("belongs to a different etcd history"),
        "{text}"
    );
    for path in ["/snapshot/full", "/snapshot/delta"] {
        let (code, answer) = empty.sidecars[0].request(path).await;
        assert_eq!(code, 500, "{path}: {answer:#}");
    }
    let counted = empty.sum_metric("mainstay_gaps_total{cause=\"store-ahead\"}");
    assert!(counted.await >= 1);
    assert_nothing_stored(&mut empty, &before).await;
}

/// A cluster with a number of incompressible writes.
async fn start_cluster_with(writes: i64, bytes: usize, seed: u64) -> EtcdCluster {
    let cluster = EtcdCluster::start(VERSION, 1, &EtcdOptions::new()).await;
    let mut client = cluster.members[0].client().await;
    let mut random = StdRng::seed_from_u64(seed);
    let mut value = vec![0; bytes];
    for i in 0..writes {
        random.fill_bytes(&mut value);
        client
            .put(format!("{i}"), value.clone(), None)
            .await
            .unwrap();
    }
    cluster
}

/// A backup that consists of one full snapshot, and its cluster.
async fn create_full_only_backup(home: &TempDir, bytes: usize) -> (SidecarHarness, Vec<String>) {
    let cluster = start_cluster_with(20, bytes, 1).await;
    let flags = [("delta-snapshot-period", "1h")];
    let mut stage =
        SidecarHarness::start_on(cluster, SidecarStore::local(home.path()), &flags).await;
    stage.wait_until_stored().await;
    stage.sidecars[0].stop().await;
    let names = stage.backup().snapshot_names();
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(names[0].starts_with("Full-"), "{names:?}");
    (stage, names)
}

#[tokio::test(flavor = "multi_thread")]
async fn full_snapshot_of_a_foreign_history_is_not_continued() {
    let home = TempDir::new().unwrap();
    let (stage, before) = create_full_only_backup(&home, 10).await;
    let other = start_cluster_with(40, 10, 2).await;
    let mut other = SidecarHarness::start_on(other, stage.store.clone(), &[]).await;
    other.wait_until_settled().await;
    wait_for_error(&other.sidecars[0], "foreign-history").await;
    assert_nothing_stored(&mut other, &before).await;
}

/// Comparing a large full snapshot would require reading all of it, so the sidecar starts with a new full snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn large_full_snapshot_of_a_foreign_history_gets_no_delta() {
    let home = TempDir::new().unwrap();
    let (stage, before) = create_full_only_backup(&home, 1 << 20).await;
    let other = start_cluster_with(40, 10, 3).await;
    let other = SidecarHarness::start_on(other, stage.store.clone(), &[]).await;
    let begun = other.wait_until_stored().await;
    let mut client = other.cluster.members[0].client().await;
    client.put("behind", "it", None).await.unwrap();
    let reached = other.wait_until_stored().await;
    let ranges = other.backup().restorable_ranges();
    let names = other.backup().snapshot_names();
    assert_eq!(ranges.last(), Some(&(begun, reached)), "{names:?}");
    assert_eq!(ranges.len(), 2, "the old one stands alone: {names:?}");
    assert_eq!(
        ranges[0].0, ranges[0].1,
        "no delta may extend the old snapshot: {names:?}"
    );
    assert!(names.contains(&before[0]), "{names:?}");
    assert_eq!(
        other.assert_restores("after its own full snapshot").await,
        reached
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn full_snapshot_of_the_same_history_is_continued_without_a_gap() {
    let home = TempDir::new().unwrap();
    let (mut stage, before) = create_full_only_backup(&home, 10).await;
    let mut client = stage.cluster.members[0].client().await;
    for value in ["one", "two", "three"] {
        client.put("k", value, None).await.unwrap();
    }
    stage.sidecars[0].restart().await;
    stage.wait_until_settled().await;
    let newest = stage.cluster.members[0].revision().await;
    stage.wait_until_captured(newest).await;
    let (code, answer) = stage.sidecars[0].request("/snapshot/delta").await;
    assert_eq!(code, 200, "{answer:#}");
    let names = stage.backup().snapshot_names();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(names[0], before[0], "{names:?}");
    assert_eq!(stage.backup().restorable_ranges().len(), 1, "{names:?}");
    assert_eq!(stage.assert_restores("after a full snapshot").await, newest);
}

/// Retention that keeps one full snapshot and runs every other second.
const EAGER_RETENTION: [(&str, &str); 4] = [
    ("garbage-collection-period", "2s"), // 1s and less disables it
    ("garbage-collection-policy", "LimitBased"),
    ("max-backups", "1"),
    ("delta-snapshot-retention-period", "0s"),
];
const FROZEN_METRIC: &str = "mainstay_retention_frozen{reason=\"unverified-history\"}";

/// Two Etcds with one prefix by mistake: the second one's policy must not delete the first one's snapshots.
#[tokio::test(flavor = "multi_thread")]
async fn retention_stops_when_history_is_foreign() {
    let mut stage = SidecarHarness::start_local(VERSION, 1).await;
    stage.wait_until_settled().await;
    let mut client = stage.cluster.members[0].client().await;
    for chain in 0..3 {
        client.put("k", format!("{chain}"), None).await.unwrap();
        let (code, answer) = stage.sidecars[0].request("/snapshot/full").await;
        assert_eq!(code, 200, "{answer:#}");
    }
    stage.wait_until_stored().await;
    stage.sidecars[0].stop().await;
    let before = stage.backup().snapshot_names();

    let other = EtcdCluster::start(VERSION, 1, &EtcdOptions::new()).await;
    let other = SidecarHarness::start_on(other, stage.store.clone(), &EAGER_RETENTION).await;
    other.wait_until_settled().await;
    let deadline = Instant::now() + TIMEOUT;
    while other.sum_metric(FROZEN_METRIC).await != 1 {
        assert!(Instant::now() < deadline, "retention is not frozen");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(other.backup().snapshot_names(), before);
    drop(other);

    // The same policy beside the etcd that wrote the backup deletes.
    let url = stage.cluster.members[0].client_url();
    let options = SidecarHarness::sidecar_options(url, &stage.store).flags(&EAGER_RETENTION);
    let own = SidecarProcess::start(options).await;
    let count_fulls = |names: Vec<String>| {
        let fulls = names.iter().filter(|name| name.starts_with("Full-"));
        fulls.count()
    };
    let fulls_before = count_fulls(before);
    let deadline = Instant::now() + TIMEOUT;
    while count_fulls(stage.backup().snapshot_names()) >= fulls_before {
        let log = own.read_log();
        assert!(Instant::now() < deadline, "nothing is deleted: {log}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

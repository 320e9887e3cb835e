//! A store that holds another history than etcd: one that lost its data, or was set back.

use std::time::Duration;

use mainstay_ids::Revision;
use mainstay_testkit::{EtcdCluster, EtcdOptions, EtcdVersion};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use tempfile::TempDir;

use super::outages::until_trouble;
use super::{Place, Stage, Writer};
use crate::support::boot;

const VERSION: EtcdVersion = EtcdVersion::V3_5New;
const PACE: Duration = Duration::from_millis(10);
const FOREIGN: &str = "mainstay_gaps_total{cause=\"foreign-history\"}";

/// A backup of some writes, the etcd and the sidecar of which are gone; what it holds.
async fn orphaned(seed: u64) -> (Stage, Vec<String>, Revision) {
    let mut stage = Stage::local(VERSION, 1).await;
    stage.settled().await;
    let writer = Writer::start(&stage.client_urls(), 1, PACE, seed);
    writer.goes_on(50).await;
    writer.stop().await;
    let reached = stage.stored().await;
    stage.sidecars[0].stop().await;
    stage.cluster.members[0].kill();
    let names = stage.backup().names();
    (stage, names, reached)
}

/// Also when it ends, which is when a sidecar stores all it has.
async fn nothing_is_stored(stage: &mut Stage, before: &[String]) {
    stage.has_looked(0, 3).await;
    stage.sidecars[0].stop().await;
    assert_eq!(stage.backup().names(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_overtakes_the_store_with_another_history_stays_refused() {
    let (stage, before, reached) = orphaned(44).await;
    let cluster = EtcdCluster::start(VERSION, 1, &EtcdOptions::new()).await;
    let mut empty = Stage::on(cluster, stage.place.clone(), &[]).await;
    empty.settled().await;
    until_trouble(&empty.sidecars[0], "store-ahead").await;
    let mut client = empty.cluster.members[0].client().await;
    for i in 0..reached.0 + 20 {
        client.put(format!("other/{i}"), "v", None).await.unwrap();
    }
    // It sees that by itself, and a new one sees it at once.
    until_trouble(&empty.sidecars[0], "foreign-history").await;
    assert!(empty.metric(FOREIGN).await >= 1);
    empty.sidecars[0].stop().await;
    empty.sidecars[0].restart().await;
    empty.settled().await;
    until_trouble(&empty.sidecars[0], "foreign-history").await;
    for path in ["/snapshot/full", "/snapshot/delta"] {
        let (code, answer) = empty.sidecars[0].ask(path).await;
        assert_eq!(code, 500, "{path}: {answer:#}");
    }
    nothing_is_stored(&mut empty, &before).await;
}

/// Set back, but with a revision beyond everything: the two histories cannot be mixed up, and backups go on.
#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_set_back_with_a_bumped_revision_goes_on_behind_a_full_snapshot() {
    const BUMP: i64 = 1_000_000;
    let mut stage = Stage::local(VERSION, 1).await;
    stage.settled().await;
    let mut client = stage.cluster.members[0].client().await;
    let mut reached = Revision(0);
    for value in ["old", "new"] {
        client.put("k", value, None).await.unwrap();
        reached = stage.stored().await;
    }
    stage.sidecars[0].stop().await;
    let before = stage.backup().names();

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
    let cluster = EtcdCluster::of(vec![boot(VERSION, &data_dir).await]);
    let stage = Stage::on(cluster, stage.place.clone(), &[]).await;
    stage.settled().await;
    let put = stage.cluster.members[0]
        .client()
        .await
        .put("k", "again", None)
        .await;
    let put = Revision(put.unwrap().header().unwrap().revision());
    assert_eq!(stage.stored().await, put);
    let new: Vec<String> = stage
        .backup()
        .names()
        .into_iter()
        .filter(|name| !before.contains(name))
        .collect();
    let fields: Vec<&str> = new[0].split('-').collect();
    assert_eq!(fields[0], "Full", "{new:?}");
    assert!(fields[2].parse::<i64>().unwrap() > BUMP, "{new:?}");
    let log = stage.sidecars[0].log();
    assert!(log.contains("ends in another history"), "{log}");
    assert_eq!(stage.comes_back("set back and bumped").await, put);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_ahead_of_etcd_is_not_written_into() {
    let mut stage = Stage::local(VERSION, 1).await;
    stage.settled().await;
    let writer = Writer::start(&stage.client_urls(), 1, PACE, 43);
    writer.goes_on(50).await;
    writer.stop().await;
    stage.stored().await;
    stage.sidecars[0].stop().await;
    let before = stage.backup().names();

    // Another etcd with the same prefix: a cluster that lost its data and was started empty.
    let cluster = EtcdCluster::start(VERSION, 1, &EtcdOptions::new()).await;
    let mut empty = Stage::on(cluster, stage.place.clone(), &[]).await;
    empty.settled().await;
    empty.cluster.members[0]
        .client()
        .await
        .put("k", "v", None)
        .await
        .unwrap();
    let told = until_trouble(&empty.sidecars[0], "store-ahead").await;
    assert!(told.contains("does not continue this backup"), "{told}");
    for path in ["/snapshot/full", "/snapshot/delta"] {
        let (code, answer) = empty.sidecars[0].ask(path).await;
        assert_eq!(code, 500, "{path}: {answer:#}");
    }
    let counted = empty.metric("mainstay_gaps_total{cause=\"store-ahead\"}");
    assert!(counted.await >= 1);
    nothing_is_stored(&mut empty, &before).await;
}

/// A cluster with so many writes of so many bytes that do not compress.
async fn cluster_with(writes: i64, bytes: usize, seed: u64) -> EtcdCluster {
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

/// A backup of one full snapshot and nothing else, beside the cluster it is of.
async fn only_a_full(home: &TempDir, bytes: usize) -> (Stage, Vec<String>) {
    let cluster = cluster_with(20, bytes, 1).await;
    let flags = [("delta-snapshot-period", "1h")];
    let mut stage = Stage::on(cluster, Place::local(home.path()), &flags).await;
    stage.stored().await;
    stage.sidecars[0].stop().await;
    let names = stage.backup().names();
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(names[0].starts_with("Full-"), "{names:?}");
    (stage, names)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_snapshot_of_another_history_is_not_continued() {
    let home = TempDir::new().unwrap();
    let (stage, before) = only_a_full(&home, 10).await;
    let other = cluster_with(40, 10, 2).await;
    let mut other = Stage::on(other, stage.place.clone(), &[]).await;
    other.settled().await;
    until_trouble(&other.sidecars[0], "foreign-history").await;
    nothing_is_stored(&mut other, &before).await;
}

/// To see that it is of another history it would have to be read whole, so the new history begins with one of its own.
#[tokio::test(flavor = "multi_thread")]
async fn no_delta_is_put_onto_a_large_full_snapshot_of_another_history() {
    let home = TempDir::new().unwrap();
    let (stage, before) = only_a_full(&home, 1 << 20).await;
    let other = cluster_with(40, 10, 3).await;
    let other = Stage::on(other, stage.place.clone(), &[]).await;
    let begun = other.stored().await;
    let mut client = other.cluster.members[0].client().await;
    client.put("behind", "it", None).await.unwrap();
    let reached = other.stored().await;
    let ranges = other.backup().restorable();
    let names = other.backup().names();
    assert_eq!(ranges.last(), Some(&(begun, reached)), "{names:?}");
    assert_eq!(ranges.len(), 2, "the old one stands alone: {names:?}");
    assert_eq!(
        ranges[0].0, ranges[0].1,
        "the old one stands alone: {names:?}"
    );
    assert!(names.contains(&before[0]), "{names:?}");
    assert_eq!(other.comes_back("behind its own snapshot").await, reached);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_snapshot_of_the_own_history_is_continued_without_a_hole() {
    let home = TempDir::new().unwrap();
    let (mut stage, before) = only_a_full(&home, 10).await;
    let mut client = stage.cluster.members[0].client().await;
    for value in ["missed", "by", "nobody"] {
        client.put("k", value, None).await.unwrap();
    }
    stage.sidecars[0].restart().await;
    stage.settled().await;
    let newest = stage.cluster.members[0].revision().await;
    stage.captured(newest).await;
    let (code, answer) = stage.sidecars[0].ask("/snapshot/delta").await;
    assert_eq!(code, 200, "{answer:#}");
    let names = stage.backup().names();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(names[0], before[0], "{names:?}");
    assert_eq!(stage.backup().restorable().len(), 1, "{names:?}");
    assert_eq!(stage.comes_back("behind a full snapshot").await, newest);
}

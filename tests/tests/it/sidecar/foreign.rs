//! A store that holds another history than etcd: one that lost its data, or was set back.

use std::time::{Duration, Instant};

use steward_ids::Revision;
use steward_testkit::{EtcdCluster, EtcdOptions, EtcdVersion, SidecarProcess};
use tempfile::TempDir;
use tokio::time::sleep;

use super::outages::trouble;
use super::{Stage, Writer};
use crate::support::boot;

const VERSION: EtcdVersion = EtcdVersion::V3_5New;
const PACE: Duration = Duration::from_millis(10);
const FOREIGN: &str = "steward_gaps_total{cause=\"foreign-history\"}";

/// Waits for `/status` to tell of this trouble.
async fn until_trouble(sidecar: &SidecarProcess, class: &str) {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let told = trouble(sidecar).await;
        if told["class"] == class {
            return;
        }
        assert!(Instant::now() < deadline, "no {class}, but {told:#}");
        sleep(Duration::from_millis(200)).await;
    }
}

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
    assert_eq!(empty.metric(FOREIGN).await, 1);
    empty.sidecars[0].stop().await;
    empty.sidecars[0].restart().await;
    empty.settled().await;
    until_trouble(&empty.sidecars[0], "foreign-history").await;
    for path in ["/snapshot/full", "/snapshot/delta"] {
        let (code, answer) = empty.sidecars[0].ask(path).await;
        assert_eq!(code, 500, "{path}: {answer:#}");
    }
    sleep(Duration::from_secs(3)).await;
    assert_eq!(empty.backup().names(), before);
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
    assert!(log.contains("end in another history"), "{log}");
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
    let empty = Stage::on(cluster, stage.place.clone(), &[]).await;
    empty.settled().await;
    empty.cluster.members[0]
        .client()
        .await
        .put("k", "v", None)
        .await
        .unwrap();
    let told = trouble(&empty.sidecars[0]).await;
    assert_eq!(told["class"], "store-ahead", "{told:#}");
    assert!(
        told["text"]
            .as_str()
            .unwrap()
            .contains("does not continue this backup"),
        "{told:#}"
    );
    for path in ["/snapshot/full", "/snapshot/delta"] {
        let (code, answer) = empty.sidecars[0].ask(path).await;
        assert_eq!(code, 500, "{path}: {answer:#}");
    }
    sleep(Duration::from_secs(3)).await;
    assert_eq!(empty.backup().names(), before);
    assert_eq!(
        empty
            .metric("steward_gaps_total{cause=\"store-ahead\"}")
            .await,
        1
    );
}

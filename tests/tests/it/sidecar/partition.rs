//! A leader is partitioned from its peers, while its sidecar still reaches the store.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mainstay_testkit::{EtcdOptions, EtcdRelease, newest_version};
use tokio::time::sleep;

use super::{SidecarHarness, WriterPool};

const WRITE_INTERVAL: Duration = Duration::from_millis(10);
const TIMEOUT: Duration = Duration::from_mins(2);
/// Several periods: a delta is due every second.
const MIN_OBJECTS: usize = 4;

/// The sidecars that logged each new object as stored.
fn object_writers(stage: &SidecarHarness, before: &[String]) -> BTreeMap<String, Vec<usize>> {
    let names = stage.backup().snapshot_names().into_iter();
    let new: Vec<String> = names.filter(|name| !before.contains(name)).collect();
    let stored: Vec<_> = (0..stage.sidecars.len())
        .map(|i| stage.objects_stored_by(i))
        .collect();
    let writers = |name: &String| {
        (0..stored.len())
            .filter(|i| stored[*i].contains(name))
            .collect()
    };
    new.into_iter()
        .map(|name| (name.clone(), writers(&name)))
        .collect()
}

/// Waits for new deltas until each object is logged by a sidecar: a log line follows the listing with a delay.
async fn wait_for_writers(
    stage: &SidecarHarness,
    before: &[String],
) -> BTreeMap<String, Vec<usize>> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let writers = object_writers(stage, before);
        if writers.len() >= MIN_OBJECTS && writers.values().all(|tell| !tell.is_empty()) {
            return writers;
        }
        assert!(
            Instant::now() < deadline,
            "no deltas of the new leader, or not all are logged: {writers:?}"
        );
        sleep(Duration::from_millis(300)).await;
    }
}

newest_version! {
    async fn partitioned_leader_stores_nothing_more(version) {
        let stage = SidecarHarness::start_local(version, 3).await;
        let writer = WriterPool::start(&stage.client_urls(), 2, WRITE_INTERVAL, 21);
        stage.wait_until_settled().await;
        writer.wait_for_writes(50).await;
        stage.wait_until_stored().await;
        let before = stage.wait_until_settled().await;

        stage.cluster.isolate(before);
        // Uploads that started before the cut may still complete until the session has ended.
        stage.wait_for_session_end(before).await;
        let at_the_cut = stage.backup().snapshot_names();
        stage.wait_for_handover(before).await;
        for (name, writers) in wait_for_writers(&stage, &at_the_cut).await {
            assert!(!writers.contains(&before), "the partitioned sidecar stored {name}");
        }
        let status = stage.sidecars[before].status().await;
        assert_eq!(status["standing"], "unknown", "{status:#}");
        let (code, answer) = stage.sidecars[before].request("/snapshot/full").await;
        assert_ne!(code, 200, "a snapshot of a partitioned member must fail: {answer:#}");

        stage.cluster.heal();
        writer.wait_for_writes(50).await;
        let acks = writer.stop().await;
        stage.assert_restores_with(&acks, "a leader was partitioned").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn partition_that_ends_before_an_election_changes_nothing() {
    // A partition of this length does not lead to an election, even on a busy machine.
    let options = EtcdOptions::new().long_election_timeout();
    let stage = SidecarHarness::start_local_with(EtcdRelease::NEWEST, 3, &options, &[]).await;
    let writer = WriterPool::start(&stage.client_urls(), 2, WRITE_INTERVAL, 22);
    let leader = stage.wait_until_settled().await;
    writer.wait_for_writes(50).await;
    for _ in 0..5 {
        stage.cluster.isolate(leader);
        sleep(Duration::from_millis(300)).await;
        stage.cluster.heal();
        writer.wait_for_writes(20).await;
    }
    let acks = writer.stop().await;
    stage.assert_restores_with(&acks, "short partitions").await;
}

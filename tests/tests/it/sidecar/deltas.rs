//! Deltas: complete transactions, leases with their TTL, no event duplicated and none missing.

use std::time::Duration;

use etcd_client::PutOptions;
use mainstay_ids::{LeaseId, Revision};
use mainstay_testkit::{
    EtcdOptions, EtcdRelease, EtcdServer, Workload, each_version, newest_version,
};
use tempfile::TempDir;

use super::harness::TIMEOUT;
use super::{SidecarHarness, WriterPool};
use crate::support::start_etcd_on;

const VERSION: EtcdRelease = EtcdRelease::NEWEST;

fn first_member(stage: &SidecarHarness) -> &EtcdServer {
    &stage.cluster.members[0]
}

/// Deltas in the bucket, as ranges of revisions.
fn delta_ranges(stage: &SidecarHarness) -> Vec<(Revision, Revision)> {
    let names = stage.backup().snapshot_names().into_iter();
    let deltas = names.filter(|name| name.starts_with("Incr-"));
    deltas
        .map(|name| {
            let mut fields = name.split('-').skip(1).map(|text| text.parse().unwrap());
            (
                Revision(fields.next().unwrap()),
                Revision(fields.next().unwrap()),
            )
        })
        .collect()
}

newest_version! {
    async fn largest_transactions_stay_complete(version) {
        let options = EtcdOptions::new().huge_transactions();
        let stage = SidecarHarness::start_local_with(version, 1, &options, &[]).await;
        stage.wait_until_settled().await;
        let mut load = Workload::new(31);
        load.run(first_member(&stage), 20).await;
        stage.wait_until_stored().await;
        load.run_huge_transaction(first_member(&stage), 10_000, 1 << 20).await;
        load.run(first_member(&stage), 20).await;
        load.run_huge_transaction(first_member(&stage), 10_000, 64 << 20).await;
        load.run(first_member(&stage), 20).await;
        stage.wait_until_stored().await;
        let reached = stage.assert_restores("huge transactions").await;
        assert_eq!(reached, load.revision());
        assert_eq!(stage.backup().restorable_ranges().len(), 1);
        assert_eq!(stage.sum_metric("mainstay_gaps_total{cause=\"lost\"}").await, 0);
    }
}

each_version! {
    async fn leases_are_restored_with_their_granted_ttl(version) {
        let stage = SidecarHarness::start_local(version, 1).await;
        stage.wait_until_settled().await;
        let mut client = first_member(&stage).client().await;
        // After the full snapshot: only the deltas contain these leases.
        client.put("first", "", None).await.unwrap();
        stage.wait_until_stored().await;
        let mut granted = Vec::new();
        for seconds in [4_000, 50_000, 600_000] {
            let id = client.lease_grant(seconds, None).await.unwrap().id();
            let options = PutOptions::new().with_lease(id);
            client.put(format!("on-{seconds}"), "v", Some(options)).await.unwrap();
            granted.push((LeaseId::from_signed(id), seconds));
        }
        stage.wait_until_stored().await;
        let directory = TempDir::new().unwrap();
        let data_dir = directory.path().join("data");
        stage.backup().restore(&data_dir, &[]);
        let restored = start_etcd_on(version, &data_dir).await;
        let mut found: Vec<_> = restored.list_leases().await.iter().map(|l| (l.id, l.granted_ttl)).collect();
        found.sort_unstable();
        granted.sort_unstable();
        assert_eq!(found, granted);
    }

    async fn a_lease_granted_again_under_its_number_comes_back_with_its_new_life(version) {
        let stage = SidecarHarness::start_local(version, 1).await;
        stage.wait_until_settled().await;
        let mut client = first_member(&stage).client().await;
        client.put("first", "", None).await.unwrap();
        stage.wait_until_stored().await;
        for seconds in [4_000, 50_000] {
            let options = etcd_client::LeaseGrantOptions::new().with_id(7);
            client.lease_grant(seconds, Some(options)).await.unwrap();
            let options = PutOptions::new().with_lease(7);
            client.put("on", seconds.to_string(), Some(options)).await.unwrap();
            stage.wait_until_captured(first_member(&stage).revision().await).await;
            if seconds == 4_000 {
                client.lease_revoke(7).await.unwrap();
            }
        }
        stage.wait_until_stored().await;
        let directory = TempDir::new().unwrap();
        let data_dir = directory.path().join("data");
        stage.backup().restore(&data_dir, &[]);
        let restored = start_etcd_on(version, &data_dir).await;
        let found: Vec<_> = restored.list_leases().await.iter().map(|l| (l.id, l.granted_ttl)).collect();
        assert_eq!(found, [(LeaseId(7), 50_000)]);
    }

    async fn nothing_is_doubled_or_lost_when_etcd_restarts_under_the_watch(version) {
        let mut stage = SidecarHarness::start_local(version, 1).await;
        stage.wait_until_settled().await;
        let writer = WriterPool::start(&stage.client_urls(), 2, Duration::from_millis(5), 32);
        for round in 0..4 {
            writer.wait_for_writes(60).await;
            if round % 2 == 0 {
                stage.cluster.members[0].kill();
            } else {
                stage.cluster.members[0].stop().await;
            }
            stage.cluster.members[0].restart().await;
        }
        writer.wait_for_writes(60).await;
        let acks = writer.stop().await;
        stage.assert_restores_with(&acks, "etcd restarted").await;
        let deltas = delta_ranges(&stage);
        assert!(deltas.is_sorted_by(|one, next| one.1 < next.0), "an overlap: {deltas:?}");
        assert_eq!(stage.sum_metric("mainstay_gaps_total{cause=\"lost\"}").await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn delta_is_stored_when_it_reaches_the_memory_limit() {
    let flags = [
        ("delta-snapshot-period", "1h"),
        ("delta-snapshot-memory-limit", "262144"),
    ];
    let stage = SidecarHarness::start_local_with(VERSION, 1, &EtcdOptions::new(), &flags).await;
    stage.wait_until_settled().await;
    stage.wait_until_stored().await;
    let mut client = first_member(&stage).client().await;
    let value = vec![b'x'; 10_000];
    let mut last = Revision(0);
    // Each half is several times the limit, so most of it is stored; a remainder stays in memory.
    for half in 1..=2 {
        for i in 0..100 {
            let put = client.put(format!("{half}/{i:03}"), value.clone(), None);
            last = Revision(put.await.unwrap().header().unwrap().revision());
        }
        let stored = tokio::time::timeout(TIMEOUT, async {
            while delta_ranges(&stage).len() < half {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        let found = || delta_ranges(&stage);
        stored.await.unwrap_or_else(|_| panic!("{:?}", found()));
    }
    let (code, answer) = stage.sidecars[0].request("/snapshot/delta").await;
    assert_eq!(code, 200, "{answer:#}");
    assert_eq!(stage.assert_restores("by size").await, last);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_captured_before_sigterm_are_stored() {
    let flags = [("delta-snapshot-period", "1h")];
    let mut stage = SidecarHarness::start_local_with(VERSION, 1, &EtcdOptions::new(), &flags).await;
    stage.wait_until_stored().await;
    for round in 0..3 {
        let writer = WriterPool::start(
            &stage.client_urls(),
            2,
            Duration::from_millis(2),
            33 + round,
        );
        writer.wait_for_writes(100).await;
        let acks = writer.stop().await;
        let newest = acks.newest_revision();
        stage.wait_until_captured(newest).await;
        let status = stage.sidecars[0].stop().await;
        assert!(status.success(), "{status}");
        let reached = stage.backup().verify();
        assert!(
            reached >= newest,
            "{newest} was captured, {reached} comes back"
        );
        stage.sidecars[0].restart().await;
        stage.wait_until_settled().await;
    }
    stage.assert_restores("after three clean stops").await;
    assert_eq!(stage.backup().restorable_ranges().len(), 1);
}

/// etcd splits a watch response with hundreds of large events into fragments.
#[tokio::test(flavor = "multi_thread")]
async fn fragmented_watch_responses_are_captured_completely() {
    let mut stage = SidecarHarness::start_local(VERSION, 1).await;
    stage.wait_until_settled().await;
    stage.wait_until_stored().await;
    stage.sidecars[0].kill();
    let mut load = Workload::new(34)
        .with_values_up_to(200_000)
        .with_transactions_up_to(30);
    load.run(first_member(&stage), 900).await;
    stage.sidecars[0].restart().await;
    stage.wait_until_stored().await;
    assert_eq!(stage.assert_restores("in fragments").await, load.revision());
    assert_eq!(stage.backup().restorable_ranges().len(), 1);
}

//! A store that is unavailable, returns errors, or changes its credentials.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use mainstay_ids::Revision;
use mainstay_testkit::{
    EtcdCluster, EtcdOptions, EtcdRelease, FaultProxy, ProxyMode, SidecarProcess,
};
use tokio::time::sleep;

use super::harness::{SHORT_RETRY_TIMEOUT, TIMEOUT};
use super::{SidecarHarness, SidecarStore, WriterPool};
use crate::servers::SeaweedFs;

const VERSION: EtcdRelease = EtcdRelease::NEWEST;
const WRITE_INTERVAL: Duration = Duration::from_millis(10);
const COMPACTED_GAPS_METRIC: &str = "mainstay_gaps_total{cause=\"compacted\"}";
const LOST_GAPS_METRIC: &str = "mainstay_gaps_total{cause=\"lost\"}";

/// An S3 server and a member.
pub(super) async fn start_servers() -> (SeaweedFs, EtcdCluster) {
    let options = EtcdOptions::new();
    tokio::join!(SeaweedFs::start(), EtcdCluster::start(VERSION, 1, &options))
}

/// One member, whose sidecar reaches a real S3 server through a proxy.
async fn start_behind_proxy(flags: &[(&str, &str)]) -> (SeaweedFs, FaultProxy, SidecarHarness) {
    let (weed, cluster) = start_servers().await;
    let gate = FaultProxy::start(&weed.endpoint);
    let flags = [&[SHORT_RETRY_TIMEOUT], flags].concat();
    let stage =
        SidecarHarness::start_on(cluster, SidecarStore::s3(&weed, gate.url()), &flags).await;
    stage.wait_until_settled().await;
    (weed, gate, stage)
}

/// Waits until `/status` reports an error of this class; returns its text.
pub(super) async fn wait_for_error(sidecar: &SidecarProcess, class: &str) -> String {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = sidecar.status().await;
        let trouble = &status["trouble"];
        if trouble["class"] == class {
            return trouble["text"].as_str().unwrap_or_default().to_owned();
        }
        assert!(
            Instant::now() < deadline,
            "no error of class {class}:\n{status:#}"
        );
        sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until `/status` reports no error.
async fn wait_for_no_error(sidecar: &SidecarProcess) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = sidecar.status().await;
        if status["trouble"].is_null() {
            return;
        }
        assert!(Instant::now() < deadline, "the error remains:\n{status:#}");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn temporary_store_outage_loses_nothing() {
    let (_weed, gate, stage) = start_behind_proxy(&[]).await;
    let writer = WriterPool::start(&stage.client_urls(), 2, WRITE_INTERVAL, 41);
    writer.wait_for_writes(50).await;
    stage.wait_until_stored().await;
    for mode in [
        ProxyMode::Closed,
        ProxyMode::RespondWith(503),
        ProxyMode::Unresponsive,
        ProxyMode::RespondWith(500),
    ] {
        let fault_count = gate.fault_count();
        gate.set_mode(mode);
        writer.wait_for_writes(50).await;
        wait_for_error(&stage.sidecars[0], "store").await;
        assert!(
            gate.fault_count() > fault_count,
            "{mode:?} affected no request"
        );
        gate.set_mode(ProxyMode::Open);
        stage.wait_until_stored().await;
        wait_for_no_error(&stage.sidecars[0]).await;
    }
    let acks = writer.stop().await;
    stage
        .assert_restores_with(&acks, "after an outage of the store")
        .await;
    assert_eq!(
        stage.sum_metric(COMPACTED_GAPS_METRIC).await + stage.sum_metric(LOST_GAPS_METRIC).await,
        0
    );
}

/// Memory is bounded, so a long outage of the store leads to a gap when etcd compacts. The gap is counted, logged, and
/// bridged by a full snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn history_compacted_during_an_outage_is_counted_and_bridged() {
    let flags = [("delta-snapshot-memory-limit", "262144")];
    let (_weed, gate, stage) = start_behind_proxy(&flags).await;
    let writer = WriterPool::start(&stage.client_urls(), 1, WRITE_INTERVAL, 42);
    writer.wait_for_writes(50).await;
    let acks = writer.stop().await;
    stage.wait_until_stored().await;

    gate.set_mode(ProxyMode::Closed);
    let etcd = &stage.cluster.members[0];
    let mut client = etcd.client().await;
    let fillers = (0..3_000).map(|i| {
        let mut kv = client.kv_client();
        async move {
            kv.put(format!("/filler/{i:04}"), vec![b'x'; 8_000], None)
                .await
        }
    });
    let written = stream::iter(fillers).buffer_unordered(20);
    written.try_for_each(async |_| Ok(())).await.unwrap();
    let buffered = stage.sum_metric("mainstay_delta_buffer_bytes").await;
    assert!(buffered < 3 << 20, "{buffered} bytes are held in memory");
    etcd.compact(etcd.revision().await).await;
    // At the compacted revision etcd returns the hash from before the compaction, so the comparison needs a later revision.
    client.put("compacted", "", None).await.unwrap();
    gate.set_mode(ProxyMode::Open);

    let deadline = Instant::now() + TIMEOUT;
    while stage.sum_metric(COMPACTED_GAPS_METRIC).await == 0 {
        assert!(Instant::now() < deadline, "no gap was counted");
        sleep(Duration::from_millis(200)).await;
    }
    let stored = stage.wait_until_stored().await;
    let reached = stage.assert_restores("after a gap").await;
    assert!(reached >= stored);
    let ranges = stage.backup().restorable_ranges();
    assert_eq!(ranges.len(), 2, "before and after the gap: {ranges:?}");
    assert!(
        ranges[0].1 >= acks.newest_revision(),
        "what was stored before is still there: {ranges:?}"
    );
    assert!(
        stage.sidecars[0]
            .read_log()
            .contains("are missing: etcd compacted them")
    );
    // The full snapshot that bridges the gap. A loaded store may have stored another one without confirming it in time.
    let behind = format!("Full-00000000-{:08}", acks.newest_revision().0 + 1_000);
    let names = stage.backup().snapshot_names();
    assert!(
        names
            .iter()
            .any(|name| **name > *behind && name.starts_with("Full-")),
        "{names:?}"
    );

    client.put("after", "", None).await.unwrap();
    stage.wait_until_stored().await;
    stage
        .assert_restores("deltas continue after the new full snapshot")
        .await;
}

fn write_credentials(directory: &Path, (id, secret): (&str, &str)) {
    let fields = [
        ("region", "us-east-1"),
        ("accessKeyID", id),
        ("secretAccessKey", secret),
    ];
    // Each file is replaced atomically: a partial key must not be read.
    let beside = directory.with_extension("new");
    for (name, value) in fields {
        fs::write(&beside, value).unwrap();
        fs::rename(&beside, directory.join(name)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_replaced_on_disk_are_used() {
    let (weed, cluster) = start_servers().await;
    let place = SidecarStore::s3(&weed, &weed.endpoint);
    let directory = weed.credentials();
    let directory = Path::new(&directory);
    write_credentials(directory, (SeaweedFs::KEY_ID, "not the secret"));
    let stage = SidecarHarness::start_on(cluster, place, &[SHORT_RETRY_TIMEOUT]).await;
    stage.wait_until_settled().await;
    wait_for_error(&stage.sidecars[0], "store").await;

    let mut last = Revision(0);
    for keys in [
        (SeaweedFs::KEY_ID, SeaweedFs::SECRET),
        (SeaweedFs::OTHER_KEY_ID, SeaweedFs::OTHER_SECRET),
    ] {
        write_credentials(directory, keys);
        let put = stage.cluster.members[0]
            .client()
            .await
            .put("k", keys.0, None)
            .await
            .unwrap();
        last = Revision(put.header().unwrap().revision());
        assert_eq!(stage.wait_until_stored().await, last);
    }
    let log = stage.sidecars[0].read_log();
    assert!(
        log.matches("credentials of the object store reloaded")
            .count()
            >= 2,
        "{log}"
    );
    assert_eq!(stage.assert_restores("with new credentials").await, last);
}

/// The default of --store-retry-timeout.
const DEFAULT_RETRY_TIMEOUT: [(&str, &str); 1] = [("store-retry-timeout", "10m")];

/// One member, whose sidecar is leader and sends requests to an unavailable store.
async fn start_behind_closed_proxy() -> (SeaweedFs, FaultProxy, SidecarHarness) {
    let (weed, cluster) = start_servers().await;
    let gate = FaultProxy::start(&weed.endpoint);
    gate.set_mode(ProxyMode::Closed);
    let stage = SidecarHarness::start_on(
        cluster,
        SidecarStore::s3(&weed, gate.url()),
        &DEFAULT_RETRY_TIMEOUT,
    )
    .await;
    stage.wait_until_settled().await;
    let deadline = Instant::now() + TIMEOUT;
    while gate.fault_count() == 0 {
        assert!(Instant::now() < deadline, "no request to the store");
        sleep(Duration::from_millis(50)).await;
    }
    (weed, gate, stage)
}

/// A stop takes at most ten seconds, although store requests are retried for ten minutes. The wait detects a hang long
/// before that.
#[tokio::test(flavor = "multi_thread")]
async fn unresponsive_store_does_not_delay_a_stop() {
    let (_weed, gate, mut stage) = start_behind_closed_proxy().await;
    let status = stage.sidecars[0].stop().await;
    assert!(status.success(), "{status}");

    // The same during a full snapshot.
    gate.set_mode(ProxyMode::Open);
    stage.sidecars[0].restart().await;
    stage.wait_until_stored().await;
    let fault_count = gate.fault_count();
    gate.set_mode(ProxyMode::Unresponsive);
    let full = reqwest::get(format!("{}/snapshot/full", stage.sidecars[0].url()));
    let asking = tokio::spawn(full);
    let deadline = Instant::now() + TIMEOUT;
    while stage.sidecars[0].status().await["fullUnderWay"] != true
        || gate.fault_count() == fault_count
    {
        assert!(Instant::now() < deadline, "no full snapshot is taken");
        sleep(Duration::from_millis(50)).await;
    }
    let status = stage.sidecars[0].stop().await;
    assert!(status.success(), "{status}");
    asking.await.unwrap().ok(); // the answer does not matter
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_changes_while_the_store_is_unresponsive() {
    let (_weed, _gate, mut stage) = start_behind_closed_proxy().await;
    for _ in 0..2 {
        stage.cluster.members[0].kill();
        let deadline = Instant::now() + TIMEOUT;
        while stage.sidecars[0].is_leader().await {
            assert!(
                Instant::now() < deadline,
                "the sidecar is leader without an etcd"
            );
            sleep(Duration::from_millis(50)).await;
        }
        stage.cluster.members[0].restart().await;
        stage.wait_until_settled().await;
    }
}

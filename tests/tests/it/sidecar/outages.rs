//! A store that is gone, refuses, or changes its keys.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use mainstay_ids::Revision;
use mainstay_testkit::{EtcdCluster, EtcdOptions, EtcdVersion, Gate, Gating, SidecarProcess};
use tokio::time::sleep;

use super::stage::{IMPATIENT, PATIENCE};
use super::{Place, Stage, Writer};
use crate::servers::Weed;

const VERSION: EtcdVersion = EtcdVersion::V3_5New;
const PACE: Duration = Duration::from_millis(10);
const COMPACTED: &str = "mainstay_gaps_total{cause=\"compacted\"}";
const LOST: &str = "mainstay_gaps_total{cause=\"lost\"}";

/// An S3 server and a member.
pub(super) async fn servers() -> (Weed, EtcdCluster) {
    let options = EtcdOptions::new();
    tokio::join!(Weed::start(), EtcdCluster::start(VERSION, 1, &options))
}

/// One member, whose sidecar reaches a real S3 server through a gate.
async fn behind_a_gate(flags: &[(&str, &str)]) -> (Weed, Gate, Stage) {
    let (weed, cluster) = servers().await;
    let gate = Gate::before(&weed.endpoint);
    let flags = [&[IMPATIENT], flags].concat();
    let stage = Stage::on(cluster, Place::s3(&weed, gate.url()), &flags).await;
    stage.settled().await;
    (weed, gate, stage)
}

/// Waits for `/status` to tell of this trouble; its text.
pub(super) async fn until_trouble(sidecar: &SidecarProcess, class: &str) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = sidecar.status().await;
        let trouble = &status["trouble"];
        if trouble["class"] == class {
            return trouble["text"].as_str().unwrap_or_default().to_owned();
        }
        assert!(Instant::now() < deadline, "no {class}:\n{status:#}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// Waits for `/status` to tell of no trouble any more.
async fn until_no_trouble(sidecar: &SidecarProcess) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = sidecar.status().await;
        if status["trouble"].is_null() {
            return;
        }
        assert!(Instant::now() < deadline, "trouble remains:\n{status:#}");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_gone_or_refuses_for_a_while_costs_nothing() {
    let (_weed, gate, stage) = behind_a_gate(&[]).await;
    let writer = Writer::start(&stage.client_urls(), 2, PACE, 41);
    writer.goes_on(50).await;
    stage.stored().await;
    for gating in [
        Gating::Closed,
        Gating::Answering(503),
        Gating::Silent,
        Gating::Answering(500),
    ] {
        let spoiled = gate.spoiled();
        gate.set(gating);
        writer.goes_on(50).await;
        until_trouble(&stage.sidecars[0], "store").await;
        assert!(gate.spoiled() > spoiled, "{gating:?} struck nothing");
        gate.set(Gating::Open);
        stage.stored().await;
        until_no_trouble(&stage.sidecars[0]).await;
    }
    let acks = writer.stop().await;
    stage.comes_back_with(&acks, "a store that was gone").await;
    assert_eq!(stage.metric(COMPACTED).await + stage.metric(LOST).await, 0);
}

/// Memory is bounded, so a store that stays away long enough makes a hole when etcd compacts: one that is counted,
/// logged and bridged.
#[tokio::test(flavor = "multi_thread")]
async fn history_compacted_during_an_outage_is_counted_and_bridged() {
    let flags = [("delta-snapshot-memory-limit", "262144")];
    let (_weed, gate, stage) = behind_a_gate(&flags).await;
    let writer = Writer::start(&stage.client_urls(), 1, PACE, 42);
    writer.goes_on(50).await;
    let acks = writer.stop().await;
    stage.stored().await;

    gate.set(Gating::Closed);
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
    let buffered = stage.metric("mainstay_delta_buffer_bytes").await;
    assert!(buffered < 3 << 20, "{buffered} bytes are held in memory");
    etcd.compact(etcd.revision().await).await;
    // At the revision of a compaction etcd tells the hash of before; behind it, the one of now.
    client.put("compacted", "", None).await.unwrap();
    gate.set(Gating::Open);

    let deadline = Instant::now() + PATIENCE;
    while stage.metric(COMPACTED).await == 0 {
        assert!(Instant::now() < deadline, "no gap is counted");
        sleep(Duration::from_millis(200)).await;
    }
    let stored = stage.stored().await;
    let reached = stage.comes_back("behind a gap").await;
    assert!(reached >= stored);
    let ranges = stage.backup().restorable();
    assert_eq!(ranges.len(), 2, "before the gap and behind it: {ranges:?}");
    assert!(
        ranges[0].1 >= acks.newest(),
        "what was stored before is still there: {ranges:?}"
    );
    assert!(
        stage.sidecars[0]
            .log()
            .contains("are missing: etcd compacted them")
    );
    // The one that bridges the gap; a loaded store may have stored one of which it did not say so in time.
    let behind = format!("Full-00000000-{:08}", acks.newest().0 + 1_000);
    let names = stage.backup().names();
    assert!(
        names
            .iter()
            .any(|name| **name > *behind && name.starts_with("Full-")),
        "{names:?}"
    );

    client.put("after", "", None).await.unwrap();
    stage.stored().await;
    stage
        .comes_back("deltas go on behind the new full snapshot")
        .await;
}

fn write_credentials(directory: &Path, (id, secret): (&str, &str)) {
    let fields = [
        ("region", "us-east-1"),
        ("accessKeyID", id),
        ("secretAccessKey", secret),
    ];
    // Each is replaced at once: half a key is none.
    let beside = directory.with_extension("new");
    for (name, value) in fields {
        fs::write(&beside, value).unwrap();
        fs::rename(&beside, directory.join(name)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_replaced_on_disk_are_used_from_then_on() {
    let (weed, cluster) = servers().await;
    let place = Place::s3(&weed, &weed.endpoint);
    let directory = weed.credentials();
    let directory = Path::new(&directory);
    write_credentials(directory, (Weed::KEY_ID, "not the secret"));
    let stage = Stage::on(cluster, place, &[IMPATIENT]).await;
    stage.settled().await;
    until_trouble(&stage.sidecars[0], "store").await;

    let mut last = Revision(0);
    for keys in [
        (Weed::KEY_ID, Weed::SECRET),
        (Weed::OTHER_KEY_ID, Weed::OTHER_SECRET),
    ] {
        write_credentials(directory, keys);
        let put = stage.cluster.members[0]
            .client()
            .await
            .put("k", keys.0, None)
            .await
            .unwrap();
        last = Revision(put.header().unwrap().revision());
        assert_eq!(stage.stored().await, last);
    }
    let log = stage.sidecars[0].log();
    assert!(log.matches("were read again").count() >= 2, "{log}");
    assert_eq!(stage.comes_back("with new keys").await, last);
}

/// How long a store is tried before anyone hears of it, if nobody says otherwise.
const BY_DEFAULT: [(&str, &str); 1] = [("store-retry-timeout", "10m")];

/// One member, whose sidecar leads and asks a store that never answers.
async fn before_a_closed_gate() -> (Weed, Gate, Stage) {
    let (weed, cluster) = servers().await;
    let gate = Gate::before(&weed.endpoint);
    gate.set(Gating::Closed);
    let stage = Stage::on(cluster, Place::s3(&weed, gate.url()), &BY_DEFAULT).await;
    stage.settled().await;
    let deadline = Instant::now() + PATIENCE;
    while gate.spoiled() == 0 {
        assert!(Instant::now() < deadline, "the store is not asked");
        sleep(Duration::from_millis(50)).await;
    }
    (weed, gate, stage)
}

/// A farewell takes ten seconds at most, also where a store is tried for ten minutes. Waiting for its end detects a hang
/// long before that.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_does_not_answer_keeps_nobody_from_stopping() {
    let (_weed, gate, mut stage) = before_a_closed_gate().await;
    let status = stage.sidecars[0].stop().await;
    assert!(status.success(), "{status}");

    // The same in the middle of a full snapshot.
    gate.set(Gating::Open);
    stage.sidecars[0].restart().await;
    stage.stored().await;
    let spoiled = gate.spoiled();
    gate.set(Gating::Silent);
    let full = reqwest::get(format!("{}/snapshot/full", stage.sidecars[0].url()));
    let asking = tokio::spawn(full);
    let deadline = Instant::now() + PATIENCE;
    while stage.sidecars[0].status().await["fullUnderWay"] != true || gate.spoiled() == spoiled {
        assert!(Instant::now() < deadline, "no full snapshot is taken");
        sleep(Duration::from_millis(50)).await;
    }
    let status = stage.sidecars[0].stop().await;
    assert!(status.success(), "{status}");
    asking.await.unwrap().ok(); // whatever it was answered
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_comes_and_goes_while_a_store_does_not_answer() {
    let (_weed, _gate, mut stage) = before_a_closed_gate().await;
    for _ in 0..2 {
        stage.cluster.members[0].kill();
        let deadline = Instant::now() + PATIENCE;
        while stage.sidecars[0].leads().await {
            assert!(Instant::now() < deadline, "it leads without an etcd");
            sleep(Duration::from_millis(50)).await;
        }
        stage.cluster.members[0].restart().await;
        stage.settled().await;
    }
}

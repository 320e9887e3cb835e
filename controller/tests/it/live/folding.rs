//! When deltas are folded although there are few of them: their bytes, and the clock.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use mainstay_crds::{ConditionStatus, ConditionType};
use serde_json::{Value, json};

use super::kubelet::{Ends, Kubelet};
use super::protection::{hold, some_minutes_pass};
use super::recovery::store;
use super::stage::Stage;

const COMPACTOR: &str = "main-compactor";
const A_DAY: i64 = 24 * 60;

/// A cluster whose full snapshot is of revision 100, and that folds by this alone.
async fn cluster(stage: &Stage, compaction: Value) {
    let spec = json!({
        "replicas": 1,
        "backup": { "store": store() },
        "mainstay": { "compaction": compaction },
    });
    stage.create("main", spec).await;
    hold(stage, "main-full-snap", 100).await;
}

/// A delta up to this revision was stored; behind the full snapshot the sidecar knows of there are so many bytes.
async fn delta(stage: &Stage, revision: i64, (bytes, since): (u64, i64)) {
    let said = json!({ "metadata": { "annotations": {
        "etcd-mainstay.io/delta-bytes": bytes.to_string(),
        "etcd-mainstay.io/delta-bytes-since": since.to_string(),
    } } });
    let leases = stage.api::<Lease>();
    stage
        .until("main-delta-snap", "there", |_: &Lease| true)
        .await;
    leases
        .patch(
            "main-delta-snap",
            &PatchParams::default(),
            &Patch::Merge(&said),
        )
        .await
        .expect("say how much has piled up");
    hold(stage, "main-delta-snap", revision).await;
}

fn folds_to(kubelet: &Kubelet, revision: i64) {
    let snapshot = format!("Full-00000000-{revision:08}-1");
    let words = json!({ "verdict": "compacted", "revision": revision, "snapshot": snapshot });
    kubelet.order(|orders| {
        orders.jobs.insert(COMPACTOR.to_owned(), Ends::Well(words));
    });
}

/// Deltas up to this revision were folded, and that is over.
async fn folded(stage: &Stage, revision: i64) {
    let holder = revision.to_string();
    stage
        .until("main-full-snap", "told", |lease: &Lease| {
            let spec = lease.spec.as_ref().expect("a spec");
            spec.holder_identity.as_ref() == Some(&holder)
        })
        .await;
    stage
        .eventually("the Job is gone", async || stage.count::<Job>().await == 0)
        .await;
}

/// The revision of the newest full snapshot; no Job is under way that would change it.
async fn newest_full(stage: &Stage) -> String {
    assert_eq!(stage.count::<Job>().await, 0);
    let full: Lease = stage.api().get("main-full-snap").await.expect("a Lease");
    let holder = full.spec.and_then(|spec| spec.holder_identity);
    holder.expect("a revision")
}

#[tokio::test]
async fn many_bytes_in_few_deltas_are_folded_once() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let controller = stage.control().await;
    cluster(&stage, json!({ "bytesThreshold": "1Ki" })).await;
    folds_to(&kubelet, 102);
    delta(&stage, 101, (1_023, 100)).await;
    stage.at_rest(&controller).await;
    assert_eq!(newest_full(&stage).await, "100", "a byte too few");

    delta(&stage, 102, (1_024, 100)).await;
    folded(&stage, 102).await;
    // The sidecar has not heard of that yet, and goes on counting.
    folds_to(&kubelet, 104);
    delta(&stage, 103, (2_000, 100)).await;
    stage.at_rest(&controller).await;
    assert_eq!(newest_full(&stage).await, "102", "most of it is folded");

    delta(&stage, 104, (1_024, 102)).await;
    folded(&stage, 104).await;
    controller.stop().await;
}

/// A schedule that comes round once a day, twelve hours from now.
fn in_half_a_day() -> String {
    let then = Timestamp::now() + SignedDuration::from_hours(12);
    let hour = then.to_zoned(TimeZone::UTC).hour();
    format!("0 {hour} * * *")
}

#[tokio::test]
async fn whatever_has_piled_up_is_folded_when_its_time_comes() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let controller = stage.control().await;
    folds_to(&kubelet, 101);
    let compaction = json!({ "schedule": in_half_a_day(), "bytesThreshold": "1Ki" });
    cluster(&stage, compaction).await;
    delta(&stage, 101, (1_024, 100)).await;
    folded(&stage, 101).await;
    let type_ = ConditionType::LastSnapshotCompactionSucceeded;
    stage.condition("main", type_, ConditionStatus::True).await;
    folds_to(&kubelet, 102);
    delta(&stage, 102, (1, 101)).await;
    stage.at_rest(&controller).await;
    assert_eq!(newest_full(&stage).await, "101", "not before its time");

    some_minutes_pass(&stage, A_DAY).await;
    folded(&stage, 102).await;
    controller.stop().await;
}

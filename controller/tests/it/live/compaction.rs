//! Compaction of few deltas: by their bytes, and by schedule.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use mainstay_crds::{ConditionStatus, ConditionType};
use serde_json::{Value, json};

use super::backup_jobs::{backdate_compaction, set_lease_revision};
use super::fake_kubelet::{FakeKubelet, JobResult};
use super::recovery::store_spec;
use super::test_env::TestEnv;

const COMPACTION_JOB: &str = "main-compactor";
const MINUTES_PER_DAY: i64 = 24 * 60;

/// Creates a cluster with a full snapshot of revision 100 and these compaction settings alone.
async fn create_cluster(stage: &TestEnv, compaction: Value) {
    let spec = json!({
        "replicas": 1,
        "backup": { "store": store_spec() },
        "mainstay": { "compaction": compaction },
    });
    stage.create_etcd("main", spec).await;
    set_lease_revision(stage, "main-full-snap", 100).await;
}

/// Publishes a delta up to `revision`, and that the deltas since the full snapshot of revision `since` have `bytes` bytes.
async fn store_delta(stage: &TestEnv, revision: i64, (bytes, since): (u64, i64)) {
    let annotations = json!({ "metadata": { "annotations": {
        "etcd-mainstay.io/delta-bytes": bytes.to_string(),
        "etcd-mainstay.io/delta-bytes-since": since.to_string(),
    } } });
    let leases = stage.api::<Lease>();
    stage
        .wait_for("main-delta-snap", "there", |_: &Lease| true)
        .await;
    leases
        .patch(
            "main-delta-snap",
            &PatchParams::default(),
            &Patch::Merge(&annotations),
        )
        .await
        .expect("annotate the Lease");
    set_lease_revision(stage, "main-delta-snap", revision).await;
}

fn set_compaction_result(kubelet: &FakeKubelet, revision: i64) {
    let snapshot = format!("Full-00000000-{revision:08}-1");
    let output = json!({ "verdict": "compacted", "revision": revision, "snapshot": snapshot });
    kubelet.configure(|behavior| {
        behavior
            .job_results
            .insert(COMPACTION_JOB.to_owned(), JobResult::Succeeded(output));
    });
}

/// Waits until deltas up to this revision are compacted and the Job is deleted.
async fn wait_for_compaction(stage: &TestEnv, revision: i64) {
    let holder = revision.to_string();
    stage
        .wait_for("main-full-snap", "updated", |lease: &Lease| {
            let spec = lease.spec.as_ref().expect("a spec");
            spec.holder_identity.as_ref() == Some(&holder)
        })
        .await;
    stage
        .wait_until("the Job is deleted", async || {
            stage.count_objects::<Job>().await == 0
        })
        .await;
}

/// Revision of the newest full snapshot. Asserts that no Job is running that would change it.
async fn newest_full_revision(stage: &TestEnv) -> String {
    assert_eq!(stage.count_objects::<Job>().await, 0);
    let full: Lease = stage.api().get("main-full-snap").await.expect("a Lease");
    let holder = full.spec.and_then(|spec| spec.holder_identity);
    holder.expect("a revision")
}

#[tokio::test]
async fn many_bytes_in_few_deltas_are_compacted_once() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let controller = stage.start_controller().await;
    create_cluster(&stage, json!({ "bytesThreshold": "1Ki" })).await;
    set_compaction_result(&kubelet, 102);
    store_delta(&stage, 101, (1_023, 100)).await;
    stage.wait_until_idle(&controller).await;
    assert_eq!(
        newest_full_revision(&stage).await,
        "100",
        "one byte below the threshold"
    );

    store_delta(&stage, 102, (1_024, 100)).await;
    wait_for_compaction(&stage, 102).await;
    // The sidecar still counts from the full snapshot before the compaction.
    set_compaction_result(&kubelet, 104);
    store_delta(&stage, 103, (2_000, 100)).await;
    stage.wait_until_idle(&controller).await;
    assert_eq!(
        newest_full_revision(&stage).await,
        "102",
        "most bytes are already compacted"
    );

    store_delta(&stage, 104, (1_024, 102)).await;
    wait_for_compaction(&stage, 104).await;
    controller.stop().await;
}

/// A daily schedule whose next run is twelve hours from now.
fn schedule_in_half_day() -> String {
    let then = Timestamp::now() + SignedDuration::from_hours(12);
    let hour = then.to_zoned(TimeZone::UTC).hour();
    format!("0 {hour} * * *")
}

#[tokio::test]
async fn any_delta_backlog_is_compacted_when_its_schedule_is_due() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let controller = stage.start_controller().await;
    set_compaction_result(&kubelet, 101);
    let compaction = json!({ "schedule": schedule_in_half_day(), "bytesThreshold": "1Ki" });
    create_cluster(&stage, compaction).await;
    store_delta(&stage, 101, (1_024, 100)).await;
    wait_for_compaction(&stage, 101).await;
    let type_ = ConditionType::LastSnapshotCompactionSucceeded;
    stage
        .wait_for_condition("main", type_, ConditionStatus::True)
        .await;
    set_compaction_result(&kubelet, 102);
    store_delta(&stage, 102, (1, 101)).await;
    stage.wait_until_idle(&controller).await;
    assert_eq!(
        newest_full_revision(&stage).await,
        "101",
        "the schedule is not due"
    );

    backdate_compaction(&stage, MINUTES_PER_DAY).await;
    wait_for_compaction(&stage, 102).await;
    controller.stop().await;
}

//! Backup upkeep and tasks: each Job starts once, its outcome is published, then it is deleted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use mainstay_crds::ops::TaskState;
use mainstay_crds::{ConditionStatus, ConditionType, Etcd, EtcdCopyBackupsTask, EtcdOpsTask};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::fake_kubelet::{FakeKubelet, JobResult};
use super::recovery::{
    ControllerKiller, RESTORED_ADDRESS, RestoredServer, has_member_pods, job_args, store_spec,
    wait_recovery_over,
};
use super::test_env::TestEnv;

/// Response of a sidecar that took a snapshot.
pub(super) const SNAPSHOT_RESPONSE: &str =
    r#"{"snapName":"Full-00000000-00000042-1800000000.gz","lastRevision":42}"#;

/// Starts a sidecar that answers every snapshot request with success.
pub(super) async fn start_sidecar() -> (u16, JoinHandle<()>) {
    let router = Router::new().route("/snapshot/full", post(|| async { SNAPSHOT_RESPONSE }));
    serve(router).await
}

async fn serve(router: Router) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind((RESTORED_ADDRESS, 0))
        .await
        .expect("an address");
    let port = listener.local_addr().expect("an address").port();
    let serving = tokio::spawn(async move {
        axum::serve(listener, router)
            .await
            .expect("the server runs");
    });
    (port, serving)
}

pub(super) async fn create_ops_task(stage: &TestEnv, name: &str, config: Value, ttl: i32) {
    let task = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdOpsTask",
        "metadata": { "name": name },
        "spec": { "etcdName": "main", "config": config, "ttlSecondsAfterFinished": ttl },
    });
    let task: EtcdOpsTask = serde_json::from_value(task).expect("a task");
    let created = stage.api().create(&PostParams::default(), &task).await;
    created.expect("create a task");
}

pub(super) async fn wait_for_task(stage: &TestEnv, name: &str, expected: TaskState) -> EtcdOpsTask {
    stage
        .wait_for(name, "over", |task: &EtcdOpsTask| {
            let now = task.status.as_ref().and_then(|status| status.state);
            assert!(
                now.is_none_or(|now| !now.is_final() || now == expected),
                "{task:#?}"
            );
            now == Some(expected)
        })
        .await
}

pub(super) fn last_error_code(task: &EtcdOpsTask) -> String {
    let errors = task
        .status
        .as_ref()
        .and_then(|status| status.last_errors.as_ref());
    errors
        .and_then(|errors| errors.last())
        .map(|error| error.code.clone())
        .unwrap_or_default()
}

pub(super) async fn set_lease_revision(stage: &TestEnv, lease: &str, revision: i64) {
    stage.wait_for(lease, "there", |_: &Lease| true).await;
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(jiff::Timestamp::now());
    let patch = json!({ "spec": { "holderIdentity": revision.to_string(), "renewTime": now } });
    let leases = stage.api::<Lease>();
    leases
        .patch(lease, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .expect("hold a Lease");
}

/// Creates a cluster with more delta events since the full snapshot than the compaction threshold.
pub(super) async fn create_delta_backlog(stage: &TestEnv) {
    let backup = json!({ "store": store_spec(), "snapshotCompaction": { "eventsThreshold": 10 } });
    stage
        .create_etcd("main", json!({ "replicas": 1, "backup": backup }))
        .await;
    set_lease_revision(stage, "main-full-snap", 100).await;
    set_lease_revision(stage, "main-delta-snap", 120).await;
}

#[tokio::test]
async fn delta_backlog_is_compacted_once_and_the_new_snapshot_is_reported() {
    let stage = Arc::new(TestEnv::start().await);
    let kubelet = FakeKubelet::start(&stage);
    let reaper = ControllerKiller::start(&stage);
    create_delta_backlog(&stage).await;
    let job = stage
        .wait_for("main-compactor", "there", |_: &Job| true)
        .await;
    let document = stage
        .wait_for("main-coordination", "there", |_: &ConfigMap| true)
        .await;
    let pin = &document.data.expect("entries")["pin.compaction"];
    assert!(pin.contains("\"first\":100"), "{pin}");
    let output =
        json!({ "verdict": "compacted", "revision": 120, "snapshot": "Full-00000000-00000120-1" });
    kubelet.configure(|behavior| {
        behavior
            .job_results
            .insert("main-compactor".to_owned(), JobResult::Succeeded(output));
    });
    let type_ = ConditionType::LastSnapshotCompactionSucceeded;
    let reported = stage
        .wait_for_condition("main", type_, ConditionStatus::True)
        .await;
    assert!(
        reported.message.contains("Full-00000000-00000120-1"),
        "{}",
        reported.message
    );
    stage
        .wait_for("main-full-snap", "updated", |lease: &Lease| {
            let spec = lease.spec.as_ref().expect("a spec");
            spec.holder_identity.as_deref() == Some("120")
        })
        .await;
    stage
        .wait_until("the Job is deleted", async || {
            stage.count_objects::<Job>().await == 0
        })
        .await;
    assert!(job.metadata.uid.is_some());
    drop(reaper);
}

#[tokio::test]
async fn failed_compaction_is_reported_with_its_cause() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let controller = stage.start_controller().await;
    let output = json!({ "verdict": "damaged-backup", "reason": "Incr-1 is damaged" });
    kubelet.configure(|behavior| {
        behavior
            .job_results
            .insert("main-compactor".to_owned(), JobResult::Failed(output));
    });
    create_delta_backlog(&stage).await;
    let type_ = ConditionType::LastSnapshotCompactionSucceeded;
    let reported = stage
        .wait_for_condition("main", type_, ConditionStatus::False)
        .await;
    assert_eq!(reported.reason, "ProcessFailure");
    assert!(
        reported.message.contains("Incr-1 is damaged"),
        "{}",
        reported.message
    );
    stage
        .wait_until("the failure is counted", async || {
            let series = controller.metrics.render().expect("metrics");
            series.lines().any(|line| {
                line.starts_with("etcddruid_compaction")
                    && line.contains("failureReason=\"processFailure\"")
            })
        })
        .await;
    controller.stop().await;
}

/// Moves the time of the last published compaction into the past. The controller must be idle: a reconcile in progress would
/// write the old time again.
pub(super) async fn backdate_compaction(stage: &TestEnv, minutes: i64) {
    let etcd = stage.get_etcd("main").await;
    let status = etcd.status.as_ref().expect("a status");
    let mut conditions = status.conditions.clone().expect("conditions");
    for one in &mut conditions {
        if one.type_ == ConditionType::LastSnapshotCompactionSucceeded {
            one.last_update_time.0 -= jiff::SignedDuration::from_mins(minutes);
        }
    }
    // The resource version makes the patch fail instead of overwriting a concurrent status write.
    let version = json!({ "resourceVersion": etcd.metadata.resource_version });
    let patch = json!({ "metadata": version, "status": { "conditions": conditions } });
    let etcds = stage.api::<Etcd>();
    let params = PatchParams::default();
    let patched = etcds
        .patch_status("main", &params, &Patch::Merge(&patch))
        .await;
    patched.expect("no concurrent status write");
}

/// Waits until Kubernetes has ended a Job at its deadline, or the controller has published that end and deleted the Job.
async fn end_at_deadline(stage: &TestEnv, name: &str) {
    let jobs = stage.api::<Job>();
    stage.wait_for(name, "there", |_: &Job| true).await;
    let has_ended = async || {
        let job = jobs.get_opt(name).await.expect("read a Job");
        let conditions = job.map(|job| job.status.and_then(|status| status.conditions));
        conditions.is_none_or(|all| all.is_some_and(|all| !all.is_empty()))
    };
    stage.wait_until("the Job has ended", has_ended).await;
}

#[tokio::test]
async fn compaction_that_times_out_is_replaced_by_one_full_snapshot() {
    let stage = Arc::new(TestEnv::start().await);
    let kubelet = FakeKubelet::start(&stage);
    let (requested, holding) = (Arc::new(AtomicU32::new(0)), Arc::clone(&stage));
    let counted = Arc::clone(&requested);
    let take = || async move {
        counted.fetch_add(1, Ordering::Relaxed);
        set_lease_revision(&holding, "main-full-snap", 120).await;
        r#"{"snapName":"Full-00000000-00000120-1800000000.gz","lastRevision":120}"#
    };
    let (port, serving) = serve(Router::new().route("/snapshot/full", post(take))).await;
    kubelet.configure(|behavior| {
        behavior
            .pod_addresses
            .insert("main-0".to_owned(), RESTORED_ADDRESS.to_owned());
    });
    // The Job never ends by itself; the Job controller of Kubernetes fails it at its deadline.
    let controller = stage
        .start_controller_with(|config| {
            let compaction = &mut config.controllers.compaction;
            compaction.active_deadline_duration = Duration::from_secs(3);
        })
        .await;
    let compaction = json!({ "eventsThreshold": 10 });
    let backup = json!({ "store": store_spec(), "port": port, "snapshotCompaction": compaction });
    stage
        .create_etcd("main", json!({ "replicas": 1, "backup": backup }))
        .await;
    set_lease_revision(&stage, "main-full-snap", 100).await;
    set_lease_revision(&stage, "main-delta-snap", 120).await;
    end_at_deadline(&stage, "main-compactor").await;
    let type_ = ConditionType::LastSnapshotCompactionSucceeded;
    let late = stage
        .wait_for_condition("main", type_.clone(), ConditionStatus::False)
        .await;
    assert_eq!(late.reason, "DeadlineExceeded");
    stage.wait_until_idle(&controller).await;
    assert_eq!(
        requested.load(Ordering::Relaxed),
        0,
        "the snapshot waits for the backoff"
    );

    backdate_compaction(&stage, 11).await;
    let taken = stage
        .wait_for_condition("main", type_, ConditionStatus::True)
        .await;
    assert_eq!(taken.reason, "FullSnapshotTakenSuccessfully");
    stage.wait_until_idle(&controller).await;
    assert_eq!(requested.load(Ordering::Relaxed), 1, "exactly one request");
    assert_eq!(stage.count_objects::<Job>().await, 0, "nothing to compact");
    let series = controller.metrics.render().expect("metrics");
    let triggered = series.lines().find(|line| {
        line.starts_with("etcddruid_compaction_full_snapshot_triggered_total")
            && line.contains("succeeded=\"true\"")
    });
    assert!(
        triggered.is_some_and(|line| line.ends_with(" 1")),
        "{triggered:?}"
    );
    controller.stop().await;
    serving.abort();
}

/// Creates a cluster with a restore drill every minute.
pub(super) async fn create_drill_cluster(stage: &TestEnv) {
    let spec = json!({
        "replicas": 1, "backup": { "store": store_spec() },
        "mainstay": { "restoreDrill": { "schedule": "* * * * *" } },
    });
    stage.create_etcd("main", spec).await;
    set_lease_revision(stage, "main-full-snap", 100).await;
}

#[tokio::test]
async fn restore_drill_runs_on_its_schedule_and_reports_its_outcome() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let controller = stage.start_controller().await;
    let output = json!({ "verdict": "restored", "revision": 100 });
    kubelet.configure(|behavior| {
        behavior.job_results.insert(
            "main-restore-drill".to_owned(),
            JobResult::Succeeded(output),
        );
    });
    create_drill_cluster(&stage).await;
    let type_ = ConditionType::LastRestoreDrillSucceeded;
    stage
        .wait_for_condition("main", type_, ConditionStatus::True)
        .await;
    let status = stage.get_etcd("main").await.status.expect("a status");
    let drill = status
        .mainstay
        .expect("status.mainstay")
        .restore_drill
        .expect("a restore drill");
    assert_eq!((drill.succeeded, drill.revision), (true, Some(100)));
    controller.stop().await;
}

/// Creates a task that copies the backup of `main`.
pub(super) async fn create_copy_task(stage: &TestEnv, name: &str, ttl: Option<i32>) {
    let task = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdCopyBackupsTask",
        "metadata": { "name": name },
        "spec": { "sourceStore": store_spec(), "targetStore": store_spec(), "ttlSecondsAfterFinished": ttl },
    });
    let task: EtcdCopyBackupsTask = serde_json::from_value(task).expect("a task");
    let created = stage.api().create(&PostParams::default(), &task).await;
    created.expect("create a task");
}

pub(super) fn is_copied(task: &EtcdCopyBackupsTask) -> bool {
    let status = task.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let is_it = |type_: &ConditionType| *type_ == ConditionType::Succeeded;
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| is_it(&one.type_) && one.status == ConditionStatus::True)
}

#[tokio::test]
async fn finished_copy_task_is_deleted_with_its_job_after_its_ttl() {
    const TTL_SECONDS: i32 = 8;
    let stage = Arc::new(TestEnv::start().await);
    let kubelet = FakeKubelet::start(&stage);
    let reaper = ControllerKiller::start(&stage);
    kubelet.configure(|behavior| {
        let output = json!({ "verdict": "usage", "reason": "invalid target store" });
        behavior
            .job_results
            .insert("move-worker".to_owned(), JobResult::Failed(output));
    });
    create_copy_task(&stage, "move", Some(TTL_SECONDS)).await;
    let over = stage
        .wait_for("move", "over", |task: &EtcdCopyBackupsTask| {
            let status = task.status.as_ref();
            status.is_some_and(|status| status.last_error.is_some())
        })
        .await;
    let finished_at = &over.status.unwrap().conditions.unwrap()[0].last_transition_time;
    let age = || {
        jiff::Timestamp::now()
            .duration_since(finished_at.0)
            .as_secs()
    };
    let jobs = stage.count_objects::<Job>().await;
    let is_too_late = age() >= i64::from(TTL_SECONDS);
    assert!(jobs == 1 || is_too_late, "the Job is kept for inspection");
    stage
        .wait_until("task and Job are deleted", async || {
            let tasks = stage.api::<EtcdCopyBackupsTask>();
            let task = tasks.get_opt("move").await.expect("get a task");
            task.is_none() && stage.count_objects::<Job>().await == 0
        })
        .await;
    assert!(age() >= i64::from(TTL_SECONDS), "deleted after {} s", age());
    drop(reaper);
}

#[tokio::test]
async fn copy_job_reports_its_outcome_and_is_deleted_with_its_task() {
    let stage = Arc::new(TestEnv::start().await);
    let kubelet = FakeKubelet::start(&stage);
    let reaper = ControllerKiller::start(&stage);
    create_copy_task(&stage, "move", None).await;
    stage.wait_for("move-worker", "there", |_: &Job| true).await;
    kubelet.configure(|behavior| {
        let output = json!({ "verdict": "copied" });
        behavior
            .job_results
            .insert("move-worker".to_owned(), JobResult::Succeeded(output));
    });
    stage
        .wait_for("move", "reported as copied", is_copied)
        .await;
    let tasks = stage.api::<EtcdCopyBackupsTask>();
    tasks
        .delete("move", &DeleteParams::default())
        .await
        .expect("delete a task");
    stage
        .wait_until("task and Job are deleted", async || {
            let task = tasks.get_opt("move").await.expect("get a task");
            task.is_none() && stage.count_objects::<Job>().await == 0
        })
        .await;
    drop(reaper);
}

#[tokio::test]
async fn impossible_tasks_are_rejected_with_the_etcd_druid_error_codes() {
    let stage = TestEnv::start().await;
    let _kubelet = FakeKubelet::start(&stage);
    let controller = stage.start_controller().await;
    let snapshot = || json!({ "onDemandSnapshot": { "type": "full" } });
    create_ops_task(&stage, "orphan", snapshot(), 3600).await;
    assert_eq!(
        last_error_code(&wait_for_task(&stage, "orphan", TaskState::Rejected).await),
        "ERR_GET_ETCD"
    );
    stage.create_etcd("main", json!({ "replicas": 1 })).await;
    stage.wait_settled("main").await;
    create_ops_task(&stage, "storeless", snapshot(), 3600).await;
    let storeless = wait_for_task(&stage, "storeless", TaskState::Rejected).await;
    assert_eq!(last_error_code(&storeless), "ERR_BACKUP_NOT_ENABLED");
    create_ops_task(&stage, "needless", json!({ "recoverQuorum": {} }), 1).await;
    stage
        .wait_until("a rejected task is deleted after its TTL", async || {
            let task = stage.api::<EtcdOpsTask>().get_opt("needless").await;
            task.expect("get a task").is_none()
        })
        .await;
    controller.stop().await;
}

#[tokio::test]
async fn backup_is_verified_by_one_job_and_a_duplicate_task_is_rejected() {
    let stage = Arc::new(TestEnv::start().await);
    let kubelet = FakeKubelet::start(&stage);
    let reaper = ControllerKiller::start(&stage);
    stage
        .create_etcd(
            "main",
            json!({ "replicas": 1, "backup": { "store": store_spec() } }),
        )
        .await;
    create_ops_task(
        &stage,
        "first",
        json!({ "verifyBackup": { "chains": "All" } }),
        3600,
    )
    .await;
    let job = stage.wait_for("main-verify", "there", |_: &Job| true).await;
    assert!(job_args(&job).iter().any(|flag| flag == "--all"));
    create_ops_task(&stage, "second", json!({ "verifyBackup": {} }), 3600).await;
    let second = wait_for_task(&stage, "second", TaskState::Rejected).await;
    assert_eq!(last_error_code(&second), "ERR_DUPLICATE_TASK");
    kubelet.configure(|behavior| {
        let output = json!({ "verdict": "restorable", "revision": 99 });
        behavior
            .job_results
            .insert("main-verify".to_owned(), JobResult::Succeeded(output));
    });
    let first = wait_for_task(&stage, "first", TaskState::Succeeded).await;
    let result = first.status.unwrap().mainstay.unwrap();
    assert_eq!(result.revision, Some(99));
    drop(reaper);
}

#[tokio::test]
async fn restore_to_a_revision_takes_a_safety_snapshot_first() {
    let stage = Arc::new(TestEnv::start().await);
    let kubelet = FakeKubelet::start(&stage);
    let restored = RestoredServer::start("main-0").await;
    let (port, serving) = start_sidecar().await;
    kubelet.configure(|behavior| {
        behavior
            .pod_addresses
            .insert("main-0".to_owned(), RESTORED_ADDRESS.to_owned());
    });
    let reaper = ControllerKiller::start(&stage);
    let spec = json!({
        "replicas": 1, "etcd": { "clientPort": restored.port },
        "backup": { "store": store_spec(), "port": port },
    });
    stage.create_etcd("main", spec).await;
    stage.wait_settled("main").await;
    create_ops_task(
        &stage,
        "back",
        json!({ "restore": { "toRevision": 42 } }),
        3600,
    )
    .await;
    let job = stage
        .wait_for("main-restore-0", "there", |_: &Job| true)
        .await;
    assert!(
        job_args(&job).iter().any(|flag| flag == "--to-revision=42"),
        "{:?}",
        job_args(&job)
    );
    assert!(!has_member_pods(&stage).await, "a pod may use the volume");
    let output = restored.restore_message().await;
    kubelet.configure(|behavior| {
        behavior
            .job_results
            .insert("main-restore-0".to_owned(), JobResult::Succeeded(output));
    });
    let task = wait_for_task(&stage, "back", TaskState::Succeeded).await;
    let result = task.status.unwrap().mainstay.unwrap();
    let saved = result.safety_snapshot.as_deref();
    assert_eq!(saved, Some("Full-00000000-00000042-1800000000.gz"));
    wait_recovery_over(&stage).await;
    drop(reaper);
    serving.abort();
}

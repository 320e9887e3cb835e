//! The upkeep of backups and tasks: Jobs are started once, their outcome is told, and they go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use mainstay_crds::ops::TaskState;
use mainstay_crds::{ConditionStatus, ConditionType, Etcd, EtcdCopyBackupsTask, EtcdOpsTask};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::kubelet::{Ends, Kubelet};
use super::recovery::{ADDRESS, Reaper, Restored, args, members_run, over, store};
use super::stage::Stage;

/// What a sidecar answers that took a snapshot.
pub(super) const TAKEN: &str =
    r#"{"snapName":"Full-00000000-00000042-1800000000.gz","lastRevision":42}"#;

/// A sidecar that takes every snapshot it is asked for.
pub(super) async fn sidecar() -> (u16, JoinHandle<()>) {
    let router = Router::new().route("/snapshot/full", post(|| async { TAKEN }));
    serve(router).await
}

async fn serve(router: Router) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind((ADDRESS, 0)).await.expect("an address");
    let port = listener.local_addr().expect("an address").port();
    let serving = tokio::spawn(async move {
        axum::serve(listener, router).await.expect("it serves");
    });
    (port, serving)
}

pub(super) async fn ops(stage: &Stage, name: &str, config: Value, ttl: i32) {
    let task = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdOpsTask",
        "metadata": { "name": name },
        "spec": { "etcdName": "main", "config": config, "ttlSecondsAfterFinished": ttl },
    });
    let task: EtcdOpsTask = serde_json::from_value(task).expect("a task");
    let created = stage.api().create(&PostParams::default(), &task).await;
    created.expect("create a task");
}

pub(super) async fn ended(stage: &Stage, name: &str, how: TaskState) -> EtcdOpsTask {
    stage
        .until(name, "over", |task: &EtcdOpsTask| {
            let now = task.status.as_ref().and_then(|status| status.state);
            assert!(
                now.is_none_or(|now| !now.is_final() || now == how),
                "{task:#?}"
            );
            now == Some(how)
        })
        .await
}

pub(super) fn code(task: &EtcdOpsTask) -> String {
    let errors = task
        .status
        .as_ref()
        .and_then(|status| status.last_errors.as_ref());
    errors
        .and_then(|errors| errors.last())
        .map(|error| error.code.clone())
        .unwrap_or_default()
}

pub(super) async fn hold(stage: &Stage, lease: &str, revision: i64) {
    stage.until(lease, "there", |_: &Lease| true).await;
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(jiff::Timestamp::now());
    let patch = json!({ "spec": { "holderIdentity": revision.to_string(), "renewTime": now } });
    let leases = stage.api::<Lease>();
    leases
        .patch(lease, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .expect("hold a Lease");
}

/// A cluster whose backup has more deltas behind its full snapshot than it should.
pub(super) async fn pile_up(stage: &Stage) {
    let backup = json!({ "store": store(), "snapshotCompaction": { "eventsThreshold": 10 } });
    stage
        .create("main", json!({ "replicas": 1, "backup": backup }))
        .await;
    hold(stage, "main-full-snap", 100).await;
    hold(stage, "main-delta-snap", 120).await;
}

#[tokio::test]
async fn deltas_that_pile_up_are_folded_once_and_the_new_snapshot_is_told() {
    let stage = Arc::new(Stage::set().await);
    let kubelet = Kubelet::play(&stage);
    let reaper = Reaper::start(&stage);
    pile_up(&stage).await;
    let job = stage.until("main-compactor", "there", |_: &Job| true).await;
    let document = stage
        .until("main-coordination", "there", |_: &ConfigMap| true)
        .await;
    let pin = &document.data.expect("entries")["pin.compaction"];
    assert!(pin.contains("\"first\":100"), "{pin}");
    let words =
        json!({ "verdict": "compacted", "revision": 120, "snapshot": "Full-00000000-00000120-1" });
    kubelet.order(|orders| {
        orders
            .jobs
            .insert("main-compactor".to_owned(), Ends::Well(words));
    });
    let type_ = ConditionType::LastSnapshotCompactionSucceeded;
    let told = stage.condition("main", type_, ConditionStatus::True).await;
    assert!(
        told.message.contains("Full-00000000-00000120-1"),
        "{}",
        told.message
    );
    stage
        .until("main-full-snap", "told", |lease: &Lease| {
            let spec = lease.spec.as_ref().expect("a spec");
            spec.holder_identity.as_deref() == Some("120")
        })
        .await;
    stage
        .eventually("the Job is gone, and no other comes", async || {
            stage.count::<Job>().await == 0
        })
        .await;
    assert!(job.metadata.uid.is_some());
    drop(reaper);
}

#[tokio::test]
async fn a_compaction_that_fails_says_whose_fault_it_was() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let controller = stage.control().await;
    let words = json!({ "verdict": "damaged-backup", "reason": "Incr-1 is damaged" });
    kubelet.order(|orders| {
        orders
            .jobs
            .insert("main-compactor".to_owned(), Ends::Badly(words));
    });
    pile_up(&stage).await;
    let type_ = ConditionType::LastSnapshotCompactionSucceeded;
    let told = stage.condition("main", type_, ConditionStatus::False).await;
    assert_eq!(told.reason, "ProcessFailure");
    assert!(
        told.message.contains("Incr-1 is damaged"),
        "{}",
        told.message
    );
    stage
        .eventually("it is counted", async || {
            let series = controller.metrics.render().expect("metrics");
            series.lines().any(|line| {
                line.starts_with("etcddruid_compaction")
                    && line.contains("failureReason=\"processFailure\"")
            })
        })
        .await;
    controller.stop().await;
}

/// Lets a cluster believe that its last compaction was told of earlier than it was. It has to be at rest: a reconcile that began
/// before would write the old moment again.
pub(super) async fn some_minutes_pass(stage: &Stage, minutes: i64) {
    let etcd = stage.etcd("main").await;
    let status = etcd.status.as_ref().expect("a status");
    let mut conditions = status.conditions.clone().expect("conditions");
    for one in &mut conditions {
        if one.type_ == ConditionType::LastSnapshotCompactionSucceeded {
            one.last_update_time.0 -= jiff::SignedDuration::from_mins(minutes);
        }
    }
    // Whoever wrote meanwhile would be overruled with what it has changed.
    let version = json!({ "resourceVersion": etcd.metadata.resource_version });
    let patch = json!({ "metadata": version, "status": { "conditions": conditions } });
    let etcds = stage.api::<Etcd>();
    let params = PatchParams::default();
    let patched = etcds
        .patch_status("main", &params, &Patch::Merge(&patch))
        .await;
    patched.expect("change what was told, at rest");
}

/// Waits until Kubernetes has ended a Job at its deadline. A Job of Kubernetes 1.20 was seen active minutes after it, with a
/// `startTime` a second after its pod's creation: most likely two reconciles of the Job controller set `startTime`, and its
/// queue kept the earlier of their two timers. Any change of the Job makes it check the deadline again.
async fn end_at_deadline(stage: &Stage, name: &str) {
    let jobs = stage.api::<Job>();
    stage.until(name, "there", |_: &Job| true).await;
    let has_ended = async || {
        let Some(job) = jobs.get_opt(name).await.expect("read a Job") else {
            return true; // the controller has published its end and deleted it
        };
        let status = job.status.unwrap_or_default();
        let seconds = job.spec.and_then(|spec| spec.active_deadline_seconds);
        let deadline = jiff::SignedDuration::from_secs(seconds.expect("a deadline"));
        let is_past = |start: &Time| jiff::Timestamp::now() >= start.0 + deadline;
        if status.start_time.as_ref().is_some_and(is_past) {
            let now = jiff::Timestamp::now().to_string();
            let change = json!({ "metadata": { "annotations": { "checked": now } } });
            let params = PatchParams::default();
            match jobs.patch(name, &params, &Patch::Merge(&change)).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => return true,
                Err(error) => panic!("change a Job: {error}"),
            }
        }
        status.conditions.is_some_and(|all| !all.is_empty())
    };
    stage.eventually("the Job has ended", has_ended).await;
}

#[tokio::test]
async fn a_compaction_that_takes_too_long_is_made_up_for_by_one_full_snapshot() {
    let stage = Arc::new(Stage::set().await);
    let kubelet = Kubelet::play(&stage);
    let (asked, holding) = (Arc::new(AtomicU32::new(0)), Arc::clone(&stage));
    let counted = Arc::clone(&asked);
    let take = || async move {
        counted.fetch_add(1, Ordering::Relaxed);
        hold(&holding, "main-full-snap", 120).await;
        r#"{"snapName":"Full-00000000-00000120-1800000000.gz","lastRevision":120}"#
    };
    let (port, serving) = serve(Router::new().route("/snapshot/full", post(take))).await;
    kubelet.order(|orders| {
        orders
            .addresses
            .insert("main-0".to_owned(), ADDRESS.to_owned());
    });
    // The Job never ends by itself; that of Kubernetes which watches deadlines ends it.
    let controller = stage
        .control_with(|config| {
            let compaction = &mut config.controllers.compaction;
            compaction.active_deadline_duration = Duration::from_secs(3);
        })
        .await;
    let compaction = json!({ "eventsThreshold": 10 });
    let backup = json!({ "store": store(), "port": port, "snapshotCompaction": compaction });
    stage
        .create("main", json!({ "replicas": 1, "backup": backup }))
        .await;
    hold(&stage, "main-full-snap", 100).await;
    hold(&stage, "main-delta-snap", 120).await;
    end_at_deadline(&stage, "main-compactor").await;
    let type_ = ConditionType::LastSnapshotCompactionSucceeded;
    let late = stage
        .condition("main", type_.clone(), ConditionStatus::False)
        .await;
    assert_eq!(late.reason, "DeadlineExceeded");
    stage.at_rest(&controller).await;
    assert_eq!(asked.load(Ordering::Relaxed), 0, "not before a pause");

    some_minutes_pass(&stage, 11).await;
    let taken = stage.condition("main", type_, ConditionStatus::True).await;
    assert_eq!(taken.reason, "FullSnapshotTakenSuccessfully");
    stage.at_rest(&controller).await;
    assert_eq!(asked.load(Ordering::Relaxed), 1, "once is enough");
    assert_eq!(stage.count::<Job>().await, 0, "there is nothing to fold");
    let series = controller.metrics.render().expect("metrics");
    let told = series.lines().find(|line| {
        line.starts_with("etcddruid_compaction_full_snapshot_triggered_total")
            && line.contains("succeeded=\"true\"")
    });
    assert!(told.is_some_and(|line| line.ends_with(" 1")), "{told:?}");
    controller.stop().await;
    serving.abort();
}

/// A cluster whose restore is rehearsed every minute.
pub(super) async fn rehearse(stage: &Stage) {
    let spec = json!({
        "replicas": 1, "backup": { "store": store() },
        "mainstay": { "restoreDrill": { "schedule": "* * * * *" } },
    });
    stage.create("main", spec).await;
    hold(stage, "main-full-snap", 100).await;
}

#[tokio::test]
async fn a_restore_is_rehearsed_on_its_schedule_and_the_outcome_is_told() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let controller = stage.control().await;
    let words = json!({ "verdict": "restored", "revision": 100 });
    kubelet.order(|orders| {
        orders
            .jobs
            .insert("main-restore-drill".to_owned(), Ends::Well(words));
    });
    rehearse(&stage).await;
    let type_ = ConditionType::LastRestoreDrillSucceeded;
    stage.condition("main", type_, ConditionStatus::True).await;
    let status = stage.etcd("main").await.status.expect("a status");
    let drill = status
        .mainstay
        .expect("ours")
        .restore_drill
        .expect("a rehearsal");
    assert_eq!((drill.succeeded, drill.revision), (true, Some(100)));
    controller.stop().await;
}

/// Copies the backup of `main`.
pub(super) async fn copy(stage: &Stage, name: &str, ttl: Option<i32>) {
    let task = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdCopyBackupsTask",
        "metadata": { "name": name },
        "spec": { "sourceStore": store(), "targetStore": store(), "ttlSecondsAfterFinished": ttl },
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
async fn a_copy_that_is_over_goes_with_its_job_after_its_time_to_live() {
    const SECONDS: i32 = 8;
    let stage = Arc::new(Stage::set().await);
    let kubelet = Kubelet::play(&stage);
    let reaper = Reaper::start(&stage);
    kubelet.order(|orders| {
        let words = json!({ "verdict": "usage", "reason": "nobody can copy that" });
        orders
            .jobs
            .insert("move-worker".to_owned(), Ends::Badly(words));
    });
    copy(&stage, "move", Some(SECONDS)).await;
    let over = stage
        .until("move", "over", |task: &EtcdCopyBackupsTask| {
            let status = task.status.as_ref();
            status.is_some_and(|status| status.last_error.is_some())
        })
        .await;
    let told = &over.status.unwrap().conditions.unwrap()[0].last_transition_time;
    let age = || jiff::Timestamp::now().duration_since(told.0).as_secs();
    let jobs = stage.count::<Job>().await;
    let is_too_late = age() >= i64::from(SECONDS);
    assert!(jobs == 1 || is_too_late, "it can be looked at");
    stage
        .eventually("task and Job are gone", async || {
            let tasks = stage.api::<EtcdCopyBackupsTask>();
            let task = tasks.get_opt("move").await.expect("ask for a task");
            task.is_none() && stage.count::<Job>().await == 0
        })
        .await;
    assert!(age() >= i64::from(SECONDS), "gone after {} s", age());
    drop(reaper);
}

#[tokio::test]
async fn backups_are_copied_by_one_job_whose_outcome_is_told_and_which_goes_with_the_task() {
    let stage = Arc::new(Stage::set().await);
    let kubelet = Kubelet::play(&stage);
    let reaper = Reaper::start(&stage);
    copy(&stage, "move", None).await;
    stage.until("move-worker", "there", |_: &Job| true).await;
    kubelet.order(|orders| {
        let words = json!({ "verdict": "copied" });
        orders
            .jobs
            .insert("move-worker".to_owned(), Ends::Well(words));
    });
    stage.until("move", "told", is_copied).await;
    let tasks = stage.api::<EtcdCopyBackupsTask>();
    tasks
        .delete("move", &DeleteParams::default())
        .await
        .expect("delete a task");
    stage
        .eventually("task and Job are gone", async || {
            let task = tasks.get_opt("move").await.expect("ask for a task");
            task.is_none() && stage.count::<Job>().await == 0
        })
        .await;
    drop(reaper);
}

#[tokio::test]
async fn tasks_that_cannot_be_done_are_rejected_with_the_reasons_consumers_know() {
    let stage = Stage::set().await;
    let _kubelet = Kubelet::play(&stage);
    let controller = stage.control().await;
    let snapshot = || json!({ "onDemandSnapshot": { "type": "full" } });
    ops(&stage, "orphan", snapshot(), 3600).await;
    assert_eq!(
        code(&ended(&stage, "orphan", TaskState::Rejected).await),
        "ERR_GET_ETCD"
    );
    stage.create("main", json!({ "replicas": 1 })).await;
    stage.settled("main").await;
    ops(&stage, "storeless", snapshot(), 3600).await;
    let storeless = ended(&stage, "storeless", TaskState::Rejected).await;
    assert_eq!(code(&storeless), "ERR_BACKUP_NOT_ENABLED");
    ops(&stage, "needless", json!({ "recoverQuorum": {} }), 1).await;
    stage
        .eventually("a rejected task goes after its time to live", async || {
            let task = stage.api::<EtcdOpsTask>().get_opt("needless").await;
            task.expect("ask for a task").is_none()
        })
        .await;
    controller.stop().await;
}

#[tokio::test]
async fn a_backup_is_verified_by_a_job_and_a_second_task_has_to_wait_its_turn() {
    let stage = Arc::new(Stage::set().await);
    let kubelet = Kubelet::play(&stage);
    let reaper = Reaper::start(&stage);
    stage
        .create(
            "main",
            json!({ "replicas": 1, "backup": { "store": store() } }),
        )
        .await;
    ops(
        &stage,
        "first",
        json!({ "verifyBackup": { "chains": "All" } }),
        3600,
    )
    .await;
    let job = stage.until("main-verify", "there", |_: &Job| true).await;
    assert!(args(&job).iter().any(|flag| flag == "--all"));
    ops(&stage, "second", json!({ "verifyBackup": {} }), 3600).await;
    let second = ended(&stage, "second", TaskState::Rejected).await;
    assert_eq!(code(&second), "ERR_DUPLICATE_TASK");
    kubelet.order(|orders| {
        let words = json!({ "verdict": "restorable", "revision": 99 });
        orders
            .jobs
            .insert("main-verify".to_owned(), Ends::Well(words));
    });
    let first = ended(&stage, "first", TaskState::Succeeded).await;
    let result = first.status.unwrap().mainstay.unwrap();
    assert_eq!(result.revision, Some(99));
    drop(reaper);
}

#[tokio::test]
async fn a_restore_to_a_revision_saves_the_present_state_first() {
    let stage = Arc::new(Stage::set().await);
    let kubelet = Kubelet::play(&stage);
    let restored = Restored::start("main-0").await;
    let (port, serving) = sidecar().await;
    kubelet.order(|orders| {
        orders
            .addresses
            .insert("main-0".to_owned(), ADDRESS.to_owned());
    });
    let reaper = Reaper::start(&stage);
    let spec = json!({
        "replicas": 1, "etcd": { "clientPort": restored.port },
        "backup": { "store": store(), "port": port },
    });
    stage.create("main", spec).await;
    stage.settled("main").await;
    ops(
        &stage,
        "back",
        json!({ "restore": { "toRevision": 42 } }),
        3600,
    )
    .await;
    let job = stage.until("main-restore-0", "there", |_: &Job| true).await;
    assert!(
        args(&job).iter().any(|flag| flag == "--to-revision=42"),
        "{:?}",
        args(&job)
    );
    assert!(!members_run(&stage).await, "a pod may use the volume");
    let words = restored.words().await;
    kubelet.order(|orders| {
        orders
            .jobs
            .insert("main-restore-0".to_owned(), Ends::Well(words));
    });
    let task = ended(&stage, "back", TaskState::Succeeded).await;
    let result = task.status.unwrap().mainstay.unwrap();
    let saved = result.safety_snapshot.as_deref();
    assert_eq!(saved, Some("Full-00000000-00000042-1800000000.gz"));
    over(&stage).await;
    drop(reaper);
    serving.abort();
}

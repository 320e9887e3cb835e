//! Pins protect the backup from before a Job is created until it has ended; the outcome is published before the Job is
//! deleted. Both hold when writes fail and when the controller is killed between any two of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use mainstay_crds::ops::TaskState;
use mainstay_crds::{EtcdCopyBackupsTask, EtcdOpsTask};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

use super::backup_jobs::{create_copy_task, create_ops_task, is_copied, wait_for_task};
use super::fake_kubelet::{FakeKubelet, JobResult};
use super::fault_injection::{self, FaultAction, KillRate, is_write, run_with_kills};
use super::recovery::store_spec;
use super::test_env::TestEnv;

/// Creates a cluster with a backup and waits until it is idle.
async fn create_backed_up_cluster(stage: &TestEnv) {
    let controller = stage.start_controller().await;
    let spec = json!({ "replicas": 1, "backup": { "store": store_spec() } });
    stage.create_etcd("main", spec).await;
    stage.wait_settled("main").await;
    stage.wait_until_idle(&controller).await;
    controller.stop().await;
}

/// Entries of the coordination document.
async fn read_coordination_entries(stage: &TestEnv) -> BTreeMap<String, String> {
    let found = stage.api::<ConfigMap>().get_opt("main-coordination").await;
    let found = found.expect("get the document");
    found.and_then(|map| map.data).unwrap_or_default()
}

async fn is_pinned(stage: &TestEnv, name: &str) -> bool {
    read_coordination_entries(stage).await.contains_key(name)
}

pub(super) async fn get_job(stage: &TestEnv, name: &str) -> Option<Job> {
    let found = stage.api::<Job>().get_opt(name).await;
    found.expect("get a Job")
}

pub(super) fn has_ended(job: &Job) -> bool {
    let status = job.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| matches!(one.type_.as_str(), "Complete" | "Failed"))
}

/// Asserts that a Job that may read has its pin. The Job is read before and after, so that it existed at the check.
pub(super) async fn assert_pinned(stage: &TestEnv, name: &str, pin: &str) {
    let reader = async || {
        let reads = get_job(stage, name).await.filter(|job| !has_ended(job));
        reads.and_then(|job| job.uid())
    };
    let before = reader().await;
    let is_pinned = is_pinned(stage, pin).await;
    let reads = before.is_some() && before == reader().await;
    assert!(is_pinned || !reads, "{name} reads an unpinned backup");
}

/// Finalizer that delays the deletion of a Job.
const TEST_FINALIZER: &str = "test/slow";

/// Adds the finalizer to a Job, or removes it.
async fn set_test_finalizer(stage: &TestEnv, name: &str, is_kept: bool) {
    let found = get_job(stage, name).await.expect("a Job");
    let mut finalizers = found.finalizers().to_vec();
    finalizers.retain(|one| one != TEST_FINALIZER);
    finalizers.extend(is_kept.then(|| TEST_FINALIZER.to_owned()));
    let patch = json!({ "metadata": { "finalizers": finalizers } });
    let jobs = stage.api::<Job>();
    let params = PatchParams::default();
    let patched = jobs.patch(name, &params, &Patch::Merge(&patch)).await;
    patched.expect("change the finalizers of a Job");
}

pub(super) fn set_job_result(kubelet: &FakeKubelet, job: &str, result: JobResult) {
    kubelet.configure(|behavior| {
        behavior.job_results.insert(job.to_owned(), result);
    });
}

#[tokio::test]
async fn copy_stays_pinned_while_its_job_exists_despite_controller_kills() {
    copy_with_pin(KillRate::Low).await;
}

pub(super) async fn copy_with_pin(kill_rate: KillRate) {
    const PIN: &str = "pin.copy-move";
    let stage = TestEnv::with_kill_rate(kill_rate).await;
    let kubelet = FakeKubelet::start(&stage);
    create_backed_up_cluster(&stage).await;
    create_copy_task(&stage, "move", None).await;
    let kills = run_with_kills(&stage, "the Job exists", async || {
        assert_pinned(&stage, "move-worker", PIN).await;
        get_job(&stage, "move-worker").await.is_some()
    })
    .await;
    kill_rate.assert_enough_kills(kills, 0);
    assert!(is_pinned(&stage, PIN).await);

    // A user deletes the task while its Job reads, and the deletion of the Job takes long.
    set_test_finalizer(&stage, "move-worker", true).await;
    let tasks = stage.api::<EtcdCopyBackupsTask>();
    tasks
        .delete("move", &DeleteParams::default())
        .await
        .expect("delete a task");
    run_with_kills(&stage, "the Job is terminating", async || {
        assert_pinned(&stage, "move-worker", PIN).await;
        let found = get_job(&stage, "move-worker")
            .await
            .expect("the finalizer keeps the Job");
        found.metadata.deletion_timestamp.is_some()
    })
    .await;
    let controller = stage.start_controller().await;
    stage.wait_until_idle(&controller).await;
    controller.kill();
    assert!(is_pinned(&stage, PIN).await, "its Job may still read");
    set_test_finalizer(&stage, "move-worker", false).await;
    run_with_kills(&stage, "the task is deleted", async || {
        assert_pinned(&stage, "move-worker", PIN).await;
        let task = tasks.get_opt("move").await.expect("get a task");
        task.is_none()
    })
    .await;
    assert!(get_job(&stage, "move-worker").await.is_none());
    assert!(!is_pinned(&stage, PIN).await, "no Job reads any more");
    drop(kubelet);
}

#[tokio::test]
async fn copy_never_starts_before_its_pin_is_set_despite_failed_writes() {
    static JOB_PERMITS: Semaphore = Semaphore::const_new(0);
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    create_backed_up_cluster(&stage).await;
    // The fault of the next write to the document. The creation of a Job is held until the pin was checked.
    let (next, requested) = (Arc::new(Mutex::new(None)), Arc::new(Notify::new()));
    let (fault, notifier) = (Arc::clone(&next), Arc::clone(&requested));
    let client = fault_injection::build_client(&stage, move |request| {
        let path = request.uri().path();
        if request.method() == Method::POST && path.ends_with("/jobs") {
            notifier.notify_one();
            return FaultAction::HoldForPermit(&JOB_PERMITS);
        }
        let is_document = is_write(request) && path.contains("/configmaps");
        let fault = is_document.then(|| fault.lock().unwrap().take());
        fault.flatten().unwrap_or(FaultAction::Forward)
    })
    .await;
    let controller = stage.start_controller_via(client, |_| {});
    for (name, fault) in [
        ("lost", FaultAction::DropRequest),
        ("contested", FaultAction::RespondStatus(409)),
        ("refused", FaultAction::RespondStatus(500)),
        ("unanswered", FaultAction::DropResponse),
    ] {
        let (worker, pin) = (format!("{name}-worker"), format!("pin.copy-{name}"));
        *next.lock().unwrap() = Some(fault);
        create_copy_task(&stage, name, None).await;
        let is_requested = timeout(Duration::from_mins(3), requested.notified()).await;
        is_requested.expect("a Job is requested");
        assert!(
            next.lock().unwrap().is_none(),
            "{name}: no fault was injected, the test proves nothing"
        );
        assert!(is_pinned(&stage, &pin).await, "{name}");
        assert!(
            get_job(&stage, &worker).await.is_none(),
            "{name}: the Job was created before the check"
        );
        JOB_PERMITS.add_permits(1);
        stage.wait_for(&worker, "there", |_: &Job| true).await;
        assert!(is_pinned(&stage, &pin).await, "{name}");
        set_job_result(
            &kubelet,
            &worker,
            JobResult::Succeeded(json!({ "verdict": "copied" })),
        );
        stage
            .wait_until("the pin is removed", async || {
                let is_there = is_pinned(&stage, &pin).await;
                let task = stage.api::<EtcdCopyBackupsTask>().get(name).await;
                let is_reported = is_copied(&task.expect("a task"));
                assert!(is_there || is_reported, "{name}: the Job may still read");
                !is_there
            })
            .await;
    }
    controller.stop().await;
}

/// Output of a verification that reached this revision.
fn verification_result(revision: i64) -> Value {
    json!({ "verdict": "restorable", "revision": revision })
}

async fn create_verify_task(stage: &TestEnv, name: &str) {
    create_ops_task(stage, name, json!({ "verifyBackup": {} }), 3600).await;
}

fn task_revision(task: &EtcdOpsTask) -> Option<i64> {
    let result = task.status.as_ref()?.mainstay.as_ref()?;
    result.revision
}

/// Whether a task is over. Until then its Job must stay: only the Job holds the outcome.
async fn is_task_finished(stage: &TestEnv, name: &str) -> bool {
    let job = get_job(stage, "main-verify").await;
    let job = job.filter(|job| job.metadata.deletion_timestamp.is_none());
    let task = stage.api::<EtcdOpsTask>().get(name).await;
    let now = task.expect("a task").status.and_then(|status| status.state);
    let is_over = now.is_some_and(TaskState::is_final);
    assert!(is_over || job.is_some(), "the outcome is lost");
    is_over
}

#[tokio::test]
async fn verification_result_is_reported_despite_controller_kills() {
    verify_with_pin(KillRate::Low).await;
}

pub(super) async fn verify_with_pin(kill_rate: KillRate) {
    let stage = TestEnv::with_kill_rate(kill_rate).await;
    let kubelet = FakeKubelet::start(&stage);
    create_backed_up_cluster(&stage).await;
    create_verify_task(&stage, "first").await;
    run_with_kills(&stage, "the Job exists", async || {
        assert_pinned(&stage, "main-verify", "pin.verification").await;
        get_job(&stage, "main-verify").await.is_some()
    })
    .await;
    set_job_result(
        &kubelet,
        "main-verify",
        JobResult::Succeeded(verification_result(99)),
    );
    stage.wait_for("main-verify", "over", has_ended).await;
    let reported = async || is_task_finished(&stage, "first").await;
    run_with_kills(&stage, "the outcome is published", reported).await;
    let first = wait_for_task(&stage, "first", TaskState::Succeeded).await;
    assert_eq!(task_revision(&first), Some(99));
}

#[tokio::test]
async fn verification_job_is_deleted_only_after_its_outcome_is_reported() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    create_backed_up_cluster(&stage).await;
    // The first write of the outcome is lost; then the controller is killed when it is about to delete the Job.
    let (is_over, deletes) = (Arc::new(Mutex::new(0_u32)), Arc::new(Notify::new()));
    let (over, notifier) = (Arc::clone(&is_over), Arc::clone(&deletes));
    let client = fault_injection::build_client(&stage, move |request| {
        let path = request.uri().path();
        let mut over = over.lock().unwrap();
        if *over == 1 && is_write(request) && path.ends_with("/etcdopstasks/first/status") {
            *over += 1;
            return FaultAction::DropRequest;
        }
        if request.method() == Method::DELETE && path.ends_with("/jobs/main-verify") {
            notifier.notify_one();
            return FaultAction::Hang;
        }
        FaultAction::Forward
    })
    .await;
    let controller = stage.start_controller_via(client, |_| {});
    create_verify_task(&stage, "first").await;
    let left = stage.wait_for("main-verify", "there", |_: &Job| true).await;
    *is_over.lock().unwrap() = 1;
    set_job_result(
        &kubelet,
        "main-verify",
        JobResult::Succeeded(verification_result(99)),
    );
    let is_requested = timeout(Duration::from_mins(3), deletes.notified()).await;
    is_requested.expect("the deletion of the Job is requested");
    assert_eq!(*is_over.lock().unwrap(), 2, "nothing was lost");
    assert!(is_task_finished(&stage, "first").await);
    controller.kill();
    let first = wait_for_task(&stage, "first", TaskState::Succeeded).await;
    assert_eq!(task_revision(&first), Some(99));

    // The leftover Job must not count as the Job of the next task.
    set_job_result(&kubelet, "main-verify", JobResult::StillRunning);
    let controller = stage.start_controller().await;
    create_verify_task(&stage, "second").await;
    let is_new = |job: &Job| job.uid() != left.uid();
    stage.wait_for("main-verify", "a new Job", is_new).await;
    set_job_result(
        &kubelet,
        "main-verify",
        JobResult::Succeeded(verification_result(100)),
    );
    let second = wait_for_task(&stage, "second", TaskState::Succeeded).await;
    assert_eq!(task_revision(&second), Some(100));
    stage
        .wait_until("Job and pin are deleted", async || {
            let is_pinned = is_pinned(&stage, "pin.verification").await;
            get_job(&stage, "main-verify").await.is_none() && !is_pinned
        })
        .await;
    controller.stop().await;
}

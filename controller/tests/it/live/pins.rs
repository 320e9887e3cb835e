//! What a Job reads is pinned before it is there and for as long as it reads; what it found is told before it goes. Also when
//! writes go wrong, and when the controller is killed between any two of them.

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

use super::kubelet::{Ends, Kubelet};
use super::protection::{copy, ended, is_copied, ops};
use super::recovery::store;
use super::stage::Stage;
use super::wire::{self, Fate, Kills, a_few_writes_at_a_time, is_write};

/// A cluster with a backup, at rest.
async fn backed_up(stage: &Stage) {
    let controller = stage.control().await;
    let spec = json!({ "replicas": 1, "backup": { "store": store() } });
    stage.create("main", spec).await;
    stage.settled("main").await;
    stage.at_rest(&controller).await;
    controller.stop().await;
}

/// The entries of the coordination document.
async fn entries(stage: &Stage) -> BTreeMap<String, String> {
    let found = stage.api::<ConfigMap>().get_opt("main-coordination").await;
    let found = found.expect("ask for the document");
    found.and_then(|map| map.data).unwrap_or_default()
}

async fn is_pinned(stage: &Stage, name: &str) -> bool {
    entries(stage).await.contains_key(name)
}

pub(super) async fn job(stage: &Stage, name: &str) -> Option<Job> {
    let found = stage.api::<Job>().get_opt(name).await;
    found.expect("ask for a Job")
}

pub(super) fn has_ended(job: &Job) -> bool {
    let status = job.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| matches!(one.type_.as_str(), "Complete" | "Failed"))
}

/// Whoever reads has its pin.
pub(super) async fn assert_pinned(stage: &Stage, name: &str, pin: &str) {
    let reader = async || {
        let reads = job(stage, name).await.filter(|job| !has_ended(job));
        reads.and_then(|job| job.uid())
    };
    let before = reader().await;
    let is_pinned = is_pinned(stage, pin).await;
    let reads = before.is_some() && before == reader().await;
    assert!(is_pinned || !reads, "{name} reads what nobody keeps");
}

/// What keeps a Job that is to go.
const SLOW: &str = "test/slow";

/// Keeps a Job, or lets it go.
async fn keep(stage: &Stage, name: &str, is_kept: bool) {
    let found = job(stage, name).await.expect("a Job");
    let mut finalizers = found.finalizers().to_vec();
    finalizers.retain(|one| one != SLOW);
    finalizers.extend(is_kept.then(|| SLOW.to_owned()));
    let patch = json!({ "metadata": { "finalizers": finalizers } });
    let jobs = stage.api::<Job>();
    let params = PatchParams::default();
    let patched = jobs.patch(name, &params, &Patch::Merge(&patch)).await;
    patched.expect("change the finalizers of a Job");
}

pub(super) fn ends(kubelet: &Kubelet, job: &str, how: Ends) {
    kubelet.order(|orders| {
        orders.jobs.insert(job.to_owned(), how);
    });
}

#[tokio::test]
async fn a_copy_is_pinned_for_as_long_as_its_job_is_there_whoever_is_killed() {
    copy_pinned(Kills::Seldom).await;
}

pub(super) async fn copy_pinned(kills: Kills) {
    const PIN: &str = "pin.copy-move";
    let stage = Stage::with(kills).await;
    let kubelet = Kubelet::play(&stage);
    backed_up(&stage).await;
    copy(&stage, "move", None).await;
    let lives = a_few_writes_at_a_time(&stage, "the Job is there", async || {
        assert_pinned(&stage, "move-worker", PIN).await;
        job(&stage, "move-worker").await.is_some()
    })
    .await;
    kills.assert_proven(lives, 0);
    assert!(is_pinned(&stage, PIN).await);

    // Somebody deletes the task while its Job reads, and the Job takes its time.
    keep(&stage, "move-worker", true).await;
    let tasks = stage.api::<EtcdCopyBackupsTask>();
    tasks
        .delete("move", &DeleteParams::default())
        .await
        .expect("delete a task");
    a_few_writes_at_a_time(&stage, "the Job goes", async || {
        assert_pinned(&stage, "move-worker", PIN).await;
        let found = job(&stage, "move-worker").await.expect("it is kept");
        found.metadata.deletion_timestamp.is_some()
    })
    .await;
    let controller = stage.control().await;
    stage.at_rest(&controller).await;
    controller.kill();
    assert!(is_pinned(&stage, PIN).await, "its Job may still read");
    keep(&stage, "move-worker", false).await;
    a_few_writes_at_a_time(&stage, "the task is gone", async || {
        assert_pinned(&stage, "move-worker", PIN).await;
        let task = tasks.get_opt("move").await.expect("ask for a task");
        task.is_none()
    })
    .await;
    assert!(job(&stage, "move-worker").await.is_none());
    assert!(!is_pinned(&stage, PIN).await, "nobody reads any more");
    drop(kubelet);
}

#[tokio::test]
async fn no_copy_begins_before_its_pin_is_set_however_often_that_goes_wrong() {
    static LOOKED: Semaphore = Semaphore::const_new(0);
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    backed_up(&stage).await;
    // What happens to the next write of the document; a Job is made when it was looked before.
    let (next, asked) = (Arc::new(Mutex::new(None)), Arc::new(Notify::new()));
    let (fate, told) = (Arc::clone(&next), Arc::clone(&asked));
    let client = wire::client(&stage, move |request| {
        let path = request.uri().path();
        if request.method() == Method::POST && path.ends_with("/jobs") {
            told.notify_one();
            return Fate::Held(&LOOKED);
        }
        let is_document = is_write(request) && path.contains("/configmaps");
        let fate = is_document.then(|| fate.lock().unwrap().take());
        fate.flatten().unwrap_or(Fate::Answered)
    })
    .await;
    let controller = stage.control_through(client, |_| {});
    for (name, fate) in [
        ("lost", Fate::Lost),
        ("contested", Fate::Refused(409)),
        ("refused", Fate::Refused(500)),
        ("unanswered", Fate::Unanswered),
    ] {
        let (worker, pin) = (format!("{name}-worker"), format!("pin.copy-{name}"));
        *next.lock().unwrap() = Some(fate);
        copy(&stage, name, None).await;
        let is_asked = timeout(Duration::from_mins(3), asked.notified()).await;
        is_asked.expect("a Job is asked for");
        assert!(
            next.lock().unwrap().is_none(),
            "{name}: nothing went wrong, so nothing is proven"
        );
        assert!(is_pinned(&stage, &pin).await, "{name}");
        assert!(job(&stage, &worker).await.is_none(), "{name}: too late");
        LOOKED.add_permits(1);
        stage.until(&worker, "there", |_: &Job| true).await;
        assert!(is_pinned(&stage, &pin).await, "{name}");
        ends(
            &kubelet,
            &worker,
            Ends::Well(json!({ "verdict": "copied" })),
        );
        stage
            .eventually("the pin goes", async || {
                let is_there = is_pinned(&stage, &pin).await;
                let task = stage.api::<EtcdCopyBackupsTask>().get(name).await;
                let is_told = is_copied(&task.expect("a task"));
                assert!(is_there || is_told, "{name}: it may still read");
                !is_there
            })
            .await;
    }
    controller.stop().await;
}

/// What a verification tells that reached this revision.
fn reached(revision: i64) -> Value {
    json!({ "verdict": "restorable", "revision": revision })
}

async fn verify(stage: &Stage, name: &str) {
    ops(stage, name, json!({ "verifyBackup": {} }), 3600).await;
}

fn revision(task: &EtcdOpsTask) -> Option<i64> {
    let result = task.status.as_ref()?.mainstay.as_ref()?;
    result.revision
}

/// Whether a task is over. While it is not, its Job has to stay: nobody else knows what came of it.
async fn is_told(stage: &Stage, name: &str) -> bool {
    let job = job(stage, "main-verify").await;
    let job = job.filter(|job| job.metadata.deletion_timestamp.is_none());
    let task = stage.api::<EtcdOpsTask>().get(name).await;
    let now = task.expect("a task").status.and_then(|status| status.state);
    let is_over = now.is_some_and(TaskState::is_final);
    assert!(is_over || job.is_some(), "what came of it is lost");
    is_over
}

#[tokio::test]
async fn what_a_verification_found_is_told_whoever_is_killed_before() {
    verify_pinned(Kills::Seldom).await;
}

pub(super) async fn verify_pinned(kills: Kills) {
    let stage = Stage::with(kills).await;
    let kubelet = Kubelet::play(&stage);
    backed_up(&stage).await;
    verify(&stage, "first").await;
    a_few_writes_at_a_time(&stage, "the Job is there", async || {
        assert_pinned(&stage, "main-verify", "pin.verification").await;
        job(&stage, "main-verify").await.is_some()
    })
    .await;
    ends(&kubelet, "main-verify", Ends::Well(reached(99)));
    stage.until("main-verify", "over", has_ended).await;
    let told = async || is_told(&stage, "first").await;
    a_few_writes_at_a_time(&stage, "it is told", told).await;
    let first = ended(&stage, "first", TaskState::Succeeded).await;
    assert_eq!(revision(&first), Some(99));
}

#[tokio::test]
async fn the_job_of_a_verification_goes_after_its_outcome_was_told_and_not_before() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    backed_up(&stage).await;
    // The outcome is lost once on its way; then the controller is killed when it is about to delete the Job.
    let (is_over, deletes) = (Arc::new(Mutex::new(0_u32)), Arc::new(Notify::new()));
    let (over, told) = (Arc::clone(&is_over), Arc::clone(&deletes));
    let client = wire::client(&stage, move |request| {
        let path = request.uri().path();
        let mut over = over.lock().unwrap();
        if *over == 1 && is_write(request) && path.ends_with("/etcdopstasks/first/status") {
            *over += 1;
            return Fate::Lost;
        }
        if request.method() == Method::DELETE && path.ends_with("/jobs/main-verify") {
            told.notify_one();
            return Fate::Silent;
        }
        Fate::Answered
    })
    .await;
    let controller = stage.control_through(client, |_| {});
    verify(&stage, "first").await;
    let left = stage.until("main-verify", "there", |_: &Job| true).await;
    *is_over.lock().unwrap() = 1;
    ends(&kubelet, "main-verify", Ends::Well(reached(99)));
    let is_asked = timeout(Duration::from_mins(3), deletes.notified()).await;
    is_asked.expect("the Job is to be deleted");
    assert_eq!(*is_over.lock().unwrap(), 2, "nothing was lost");
    assert!(is_told(&stage, "first").await);
    controller.kill();
    let first = ended(&stage, "first", TaskState::Succeeded).await;
    assert_eq!(revision(&first), Some(99));

    // What was left is not taken for the Job of the next one.
    ends(&kubelet, "main-verify", Ends::Later);
    let controller = stage.control().await;
    verify(&stage, "second").await;
    let is_new = |job: &Job| job.uid() != left.uid();
    stage.until("main-verify", "another one", is_new).await;
    ends(&kubelet, "main-verify", Ends::Well(reached(100)));
    let second = ended(&stage, "second", TaskState::Succeeded).await;
    assert_eq!(revision(&second), Some(100));
    stage
        .eventually("Job and pin are gone", async || {
            let is_pinned = is_pinned(&stage, "pin.verification").await;
            job(&stage, "main-verify").await.is_none() && !is_pinned
        })
        .await;
    controller.stop().await;
}

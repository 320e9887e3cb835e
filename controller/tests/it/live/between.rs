//! Every flow that needs Jobs gets there when a new controller takes over after every few writes: each attempt has one Job, no
//! volume ever has two writers, and at the end nothing is left and nothing is written.

use k8s_openapi::api::coordination::v1::Lease;
use mainstay_crds::ops::TaskState;
use mainstay_crds::{ConditionStatus, ConditionType, Etcd, EtcdOpsTask};
use serde_json::{Value, json};

use super::cluster::Behind;
use super::kubelet::{Ends, Kubelet};
use super::pins::{assert_pinned, ends, has_ended, job};
use super::protection::{ended, ops, pile_up, rehearse};
use super::recovery::{
    Restored, come_back, come_back_alone, is_over, lose_the_only, lose_two, of_one, of_three,
};
use super::rest::nothing_is_left_to_write;
use super::stage::Stage;
use super::tasks::{backed_up, left_to_people};
use super::wire::{Kills, a_few_writes_at_a_time};
use super::witness::Witness;

/// The Job that restores the only member.
const RESTORE: &str = "main-restore-0";

/// A stage, somebody who plays on it, and somebody who watches.
async fn scene(kills: Kills) -> (Stage, Kubelet, Witness) {
    let stage = Stage::with(kills).await;
    let kubelet = Kubelet::play(&stage);
    let witness = Witness::of(&stage);
    (stage, kubelet, witness)
}

/// Lets controllers live for a few writes each until a Job is there.
async fn launched(stage: &Stage, name: &str) {
    let is_there = async || job(stage, name).await.is_some();
    let lives = a_few_writes_at_a_time(stage, "the Job is there", is_there).await;
    stage.kills.assert_proven(lives, 1);
}

/// Ends a Job while no controller is there to see it.
async fn ends_unseen(stage: &Stage, kubelet: &Kubelet, name: &str, how: Ends) {
    ends(kubelet, name, how);
    stage.until(name, "over", has_ended).await;
}

/// Lets controllers live for a few writes each until a recovery is over.
async fn recovered(stage: &Stage) {
    let lives = a_few_writes_at_a_time(stage, "it is over", async || is_over(stage).await).await;
    stage.kills.assert_proven(lives, 1);
}

#[tokio::test]
async fn a_single_member_is_restored_by_one_job_for_each_attempt() {
    restore_the_only(Kills::Seldom).await;
}

pub(super) async fn restore_the_only(kills: Kills) {
    let (stage, kubelet, witness) = scene(kills).await;
    let restored = Restored::start("main-0").await;
    lose_the_only(&kubelet);
    stage.create("main", of_one(&restored)).await;
    launched(&stage, RESTORE).await;
    // The first attempt fails, the second does not.
    let words = json!({ "verdict": "store-unavailable", "reason": "no answer from the store" });
    ends_unseen(&stage, &kubelet, RESTORE, Ends::Badly(words)).await;
    ends(&kubelet, RESTORE, Ends::Later);
    let is_again = async || witness.count(RESTORE) == 2;
    a_few_writes_at_a_time(&stage, "there is another Job", is_again).await;
    come_back_alone(&kubelet, restored.words().await);
    recovered(&stage).await;
    nothing_is_left_to_write(&stage).await;
    stage.settled("main").await;
    assert_eq!(witness.count(RESTORE), 2);
}

/// Each volume of three was written by one Job, and one member was added to the new cluster.
async fn assert_recovered_once(stage: &Stage, witness: &Witness, restored: &Restored) {
    let is_joined = async || restored.learners().await > 0;
    a_few_writes_at_a_time(stage, "the first of the others is a learner", is_joined).await;
    nothing_is_left_to_write(stage).await;
    assert_eq!(restored.learners().await, 1);
    for ordinal in 0..3 {
        let job = format!("main-restore-{ordinal}");
        assert_eq!(witness.count(&job), 1, "{job}");
    }
}

#[tokio::test]
async fn a_lost_quorum_is_recovered_by_one_job_for_each_volume() {
    recover_a_quorum(Kills::Seldom).await;
}

pub(super) async fn recover_a_quorum(kills: Kills) {
    let (stage, kubelet, witness) = scene(kills).await;
    let mut behind = Behind::start("main", 3, 3).await;
    behind.settle_in(&kubelet).await;
    let controller = stage.control().await;
    let port = of_three(&stage, &behind, "Automatic").await;
    controller.kill();
    lose_two(&mut behind, &kubelet);
    launched(&stage, "main-restore-2").await;
    drop(behind);
    let restored = Restored::behind("main-2", port).await;
    come_back(&kubelet, restored.words().await);
    recovered(&stage).await;
    assert_recovered_once(&stage, &witness, &restored).await;
}

/// Whether a task has done what it was asked for, and nothing of that is left.
async fn is_done(stage: &Stage, name: &str) -> bool {
    let task = stage.api::<EtcdOpsTask>().get(name).await.expect("a task");
    let now = task.status.as_ref().and_then(|status| status.state);
    let is_final = now.is_some_and(TaskState::is_final);
    assert!(!is_final || now == Some(TaskState::Succeeded), "{task:#?}");
    is_final && is_over(stage).await
}

#[tokio::test]
async fn a_task_goes_back_to_a_moment_by_one_job() {
    go_back_by_a_task(Kills::Seldom).await;
}

pub(super) async fn go_back_by_a_task(kills: Kills) {
    let (stage, kubelet, witness) = scene(kills).await;
    let controller = stage.control().await;
    let (restored, serving) = backed_up(&stage, &kubelet).await;
    controller.kill();
    let back = json!({ "restore": { "toTime": "2026-01-31T11:59:00Z" } });
    ops(&stage, "back", back, 3600).await;
    launched(&stage, RESTORE).await;
    come_back_alone(&kubelet, restored.words().await);
    let is_done = async || is_done(&stage, "back").await;
    a_few_writes_at_a_time(&stage, "the task is done", is_done).await;
    let task = ended(&stage, "back", TaskState::Succeeded).await;
    let result = task.status.unwrap().mainstay.unwrap();
    assert!(result.safety_snapshot.is_some(), "{result:?}");
    nothing_is_left_to_write(&stage).await;
    stage.settled("main").await;
    assert_eq!(witness.count(RESTORE), 1);
    serving.abort();
}

#[tokio::test]
async fn a_task_recovers_a_quorum_by_one_job_for_each_volume() {
    recover_by_a_task(Kills::Seldom).await;
}

pub(super) async fn recover_by_a_task(kills: Kills) {
    let (stage, kubelet, witness) = scene(kills).await;
    let mut behind = Behind::start("main", 3, 3).await;
    behind.settle_in(&kubelet).await;
    let controller = stage.control().await;
    let port = of_three(&stage, &behind, "Manual").await;
    lose_two(&mut behind, &kubelet);
    left_to_people(&stage).await;
    controller.kill();
    let named = json!({ "recoverQuorum": { "fromMember": "main-2" } });
    ops(&stage, "recover", named, 3600).await;
    launched(&stage, "main-restore-2").await;
    drop(behind);
    let restored = Restored::behind("main-2", port).await;
    come_back(&kubelet, restored.words().await);
    let is_done = async || is_done(&stage, "recover").await;
    a_few_writes_at_a_time(&stage, "the task is done", is_done).await;
    assert_recovered_once(&stage, &witness, &restored).await;
}

/// Whether what a Job did is told and the Job is gone. It does not go before.
async fn is_told(stage: &Stage, name: &str, type_: &ConditionType) -> bool {
    let job = job(stage, name).await;
    let etcd = stage.etcd("main").await;
    let conditions = etcd.status.and_then(|status| status.conditions);
    let mut conditions = conditions.into_iter().flatten();
    let is_told = conditions.any(|one| one.type_ == *type_ && one.status == ConditionStatus::True);
    let stays = job
        .as_ref()
        .is_some_and(|job| job.metadata.deletion_timestamp.is_none());
    assert!(is_told || stays, "what came of {name} is lost");
    is_told && job.is_none()
}

/// Lets controllers live for a few writes each until a Job that reads is there, which is pinned for as long as it reads.
async fn launched_pinned(stage: &Stage, name: &str, pin: &str) {
    let lives = a_few_writes_at_a_time(stage, "the Job is there", async || {
        assert_pinned(stage, name, pin).await;
        job(stage, name).await.is_some()
    });
    stage.kills.assert_proven(lives.await, 1);
    assert_pinned(stage, name, pin).await;
}

#[tokio::test]
async fn deltas_are_folded_by_one_job_whose_outcome_is_told_before_it_goes() {
    fold_deltas(Kills::Seldom).await;
}

pub(super) async fn fold_deltas(kills: Kills) {
    const FOLD: &str = "main-compactor";
    let (stage, kubelet, witness) = scene(kills).await;
    let launched = launched_pinned(&stage, FOLD, "pin.compaction");
    tokio::join!(pile_up(&stage), launched);
    let words =
        json!({ "verdict": "compacted", "revision": 120, "snapshot": "Full-00000000-00000120-1" });
    ends_unseen(&stage, &kubelet, FOLD, Ends::Well(words)).await;
    let type_ = ConditionType::LastSnapshotCompactionSucceeded;
    let told = async || is_told(&stage, FOLD, &type_).await;
    a_few_writes_at_a_time(&stage, "it is told, and the Job is gone", told).await;
    let lease = stage.api::<Lease>().get("main-full-snap").await.unwrap();
    let holder = lease.spec.and_then(|spec| spec.holder_identity);
    assert_eq!(holder.as_deref(), Some("120"), "the new snapshot is told");
    nothing_is_left_to_write(&stage).await;
    assert_eq!(witness.count(FOLD), 1);
}

fn every(schedule: &str) -> Value {
    json!({ "spec": { "mainstay": { "restoreDrill": { "schedule": schedule } } } })
}

#[tokio::test]
async fn a_restore_is_rehearsed_by_one_job_whose_outcome_is_told_before_it_goes() {
    Box::pin(rehearse_a_restore(Kills::Seldom)).await;
}

pub(super) async fn rehearse_a_restore(kills: Kills) {
    const DRILL: &str = "main-restore-drill";
    let (stage, kubelet, witness) = scene(kills).await;
    let launched = launched_pinned(&stage, DRILL, "pin.restore-drill");
    tokio::join!(rehearse(&stage), launched);
    // Not again for a while, so that whatever follows belongs to this one.
    stage.change("main", every("0 0 29 2 *")).await;
    let words = json!({ "verdict": "restored", "revision": 100 });
    ends_unseen(&stage, &kubelet, DRILL, Ends::Well(words)).await;
    let type_ = ConditionType::LastRestoreDrillSucceeded;
    let told = async || is_told(&stage, DRILL, &type_).await;
    a_few_writes_at_a_time(&stage, "it is told, and the Job is gone", told).await;
    let is_it = |etcd: &Etcd| {
        let status = etcd.status.as_ref()?.mainstay.as_ref()?;
        let drill = status.restore_drill.as_ref()?;
        Some((drill.succeeded, drill.revision))
    };
    let etcd = stage.etcd("main").await;
    assert_eq!(is_it(&etcd), Some((true, Some(100))));
    nothing_is_left_to_write(&stage).await;
    assert_eq!(witness.count(DRILL), 1);
}

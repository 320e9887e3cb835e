//! Controllers are killed in the middle of a recovery, and it is finished. More of that: `adoption`, `backups`, `encryption`,
//! `lifecycle`, `node`, `soak`.

use kube::ResourceExt as _;
use mainstay_crds::etcd::APPROVE_RECOVERY;
use mainstay_crds::ops::TaskState;
use mainstay_tests::cluster::eventually;
use mainstay_tests::cluster::managed::Managed;
use mainstay_tests::cluster::member::Member;
use mainstay_tests::cluster::timeline::{self, Timeline};
use serde_json::json;

use super::midway::{Jobs, RESTORES, kill_controllers};
use super::stage::{Stage, assert_resumed, load_in_the_backup, on_stage};

/// Loses the only volume, and kills the controllers when they report the loss and when the restore Job is there. Returns the
/// member that was restored.
pub(crate) async fn restore_the_only_member(stage: &Stage, jobs: &Jobs) -> (Managed, Vec<Member>) {
    let etcd = stage.etcd(&stage.spec(1)).await;
    let lost = etcd.members(1).await.unwrap();
    etcd.settled().await.unwrap();
    let load = load_in_the_backup(&etcd).await;

    let fault = "pod and volume are gone; so are the controllers, when they know, and when the Job is there";
    let mut timeline = Timeline::start("the only volume, and the controllers", fault);
    etcd.lose_volume(&lost[0]).await.unwrap();
    etcd.needs_recovery().await.unwrap();
    kill_controllers(stage).await;
    jobs.kill_controllers_at(stage, RESTORES).await;
    let is_new = |member: &_| !lost.contains(member);
    assert_resumed(&etcd, load, (1, is_new)).await;
    timeline.mark("the member is ready, with all its keys");
    timeline.keep(&timeline::directory().unwrap()).unwrap();
    let members = etcd.members(1).await.unwrap();
    (etcd, members)
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_are_killed_while_they_restore_still_restore() {
    on_stage("resumed", async |stage| {
        let jobs = Jobs::watch(stage).await;
        restore_the_only_member(stage, &jobs).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_to_people_waits_for_the_task_of_one_and_outlives_the_controllers() {
    on_stage("manual", async |stage| {
        let mut spec = stage.spec(3);
        spec["mainstay"] = json!({"recovery": {"mode": "Manual"}});
        let jobs = Jobs::watch(stage).await;
        let etcd = stage.etcd(&spec).await;
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let load = load_in_the_backup(&etcd).await;
        let refused = etcd.ask("too-early", json!({"recoverQuorum": {}})).await;
        assert_eq!(
            refused.unwrap().0,
            TaskState::Rejected,
            "the quorum is there"
        );
        let fault = "two pods and their volumes; people decide";
        let mut timeline = Timeline::start("two volumes of three, by hand", fault);
        for member in &members[..2] {
            etcd.lose_volume(member).await.unwrap();
        }
        etcd.needs_recovery().await.unwrap();
        timeline.mark("the loss is proven, a person asks for a recovery");
        let killed = jobs.kill_controllers_at(stage, RESTORES);
        let task = json!({"recoverQuorum": {}});
        let (ended, ()) = tokio::join!(etcd.ask("recover", task), killed);
        let (state, said) = ended.unwrap();
        assert_eq!(state, TaskState::Succeeded, "{said}");
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (3, is_new)).await;
        timeline.mark(
            "all members are ready, with all their keys; the controllers were killed meanwhile",
        );
        timeline.keep(&timeline::directory().unwrap()).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_is_recovered_unasked_also_when_the_survivor_restarted() {
    on_stage("unasked", async |stage| {
        let mut spec = stage.spec(3);
        spec["mainstay"] = json!({"recovery": {"mode": "Automatic"}});
        let jobs = Jobs::watch(stage).await;
        let etcd = stage.etcd(&spec).await;
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let load = load_in_the_backup(&etcd).await;
        for member in &members[1..] {
            etcd.lose_volume(member).await.unwrap();
        }
        // Its etcd does not answer any more: there is no quorum it could join.
        etcd.kill(&members[0]).await.unwrap();
        jobs.kill_controllers_at(stage, RESTORES).await;
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (3, is_new)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_is_recovered_once_approved_and_outlives_the_controllers() {
    on_stage("approved", async |stage| {
        let mut spec = stage.spec(3);
        spec["mainstay"] = json!({"recovery": {"mode": "Approve"}});
        let jobs = Jobs::watch(stage).await;
        let etcd = stage.etcd(&spec).await;
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let load = load_in_the_backup(&etcd).await;
        for member in &members {
            etcd.lose_volume(member).await.unwrap();
        }
        etcd.approve_recovery().await.unwrap();
        jobs.kill_controllers_at(stage, RESTORES).await;
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (3, is_new)).await;
        let approved = async || {
            let etcd = etcd.get().await.ok()?;
            let is_there = etcd.annotations().contains_key(APPROVE_RECOVERY);
            (!is_there).then_some(())
        };
        eventually("the approval is taken off", approved)
            .await
            .unwrap();
    })
    .await;
}

//! A recovery completes although controllers are killed during it. More such tests: `adoption`, `backups`, `encryption`,
//! `lifecycle`, `node`, `soak`.

use kube::ResourceExt as _;
use mainstay_crds::etcd::APPROVE_RECOVERY;
use mainstay_crds::ops::TaskState;
use mainstay_tests::cluster::eventually;
use mainstay_tests::cluster::managed_etcd::ManagedEtcd;
use mainstay_tests::cluster::member::MemberPod;
use mainstay_tests::cluster::timeline::{self, Timeline};
use serde_json::json;

use super::harness::{TestNamespace, assert_resumed, start_backed_up_load, with_namespace};
use super::interruptions::{JobWatch, RESTORE_JOB_PREFIX, kill_controllers};

/// Deletes the only volume, and kills the controllers when they report the loss and when the restore Job exists. Returns the
/// restored member.
pub(crate) async fn restore_single_member(
    stage: &TestNamespace,
    jobs: &JobWatch,
) -> (ManagedEtcd, Vec<MemberPod>) {
    let etcd = stage.create_etcd(&stage.etcd_spec(1)).await;
    let lost = etcd.wait_for_members(1).await.unwrap();
    etcd.wait_until_settled().await.unwrap();
    let load = start_backed_up_load(&etcd).await;

    let fault = "pod and volume are deleted; the controllers are killed when they report the loss, and when the restore Job exists";
    let mut timeline = Timeline::start("the only volume, and the controllers", fault);
    etcd.delete_volume(&lost[0]).await.unwrap();
    etcd.wait_for_recovery_required().await.unwrap();
    kill_controllers(stage).await;
    jobs.kill_controllers_on_job(stage, RESTORE_JOB_PREFIX)
        .await;
    let is_new = |member: &_| !lost.contains(member);
    assert_resumed(&etcd, load, (1, is_new)).await;
    timeline.record_event("the member is ready with all keys");
    timeline.save(&timeline::timelines_dir().unwrap()).unwrap();
    let members = etcd.wait_for_members(1).await.unwrap();
    (etcd, members)
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_completes_although_controllers_are_killed() {
    with_namespace("resumed", async |stage| {
        let jobs = JobWatch::start(stage).await;
        restore_single_member(stage, &jobs).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn manual_recovery_waits_for_a_task_and_survives_controller_kills() {
    with_namespace("manual", async |stage| {
        let mut spec = stage.etcd_spec(3);
        spec["mainstay"] = json!({"recovery": {"mode": "Manual"}});
        let jobs = JobWatch::start(stage).await;
        let etcd = stage.create_etcd(&spec).await;
        let members = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = start_backed_up_load(&etcd).await;
        let refused = etcd
            .run_ops_task("too-early", json!({"recoverQuorum": {}}))
            .await;
        assert_eq!(
            refused.unwrap().0,
            TaskState::Rejected,
            "a recovery must be refused while the quorum exists"
        );
        let fault = "two pods and their volumes are deleted; recovery mode Manual";
        let mut timeline = Timeline::start("two volumes of three, by hand", fault);
        for member in &members[..2] {
            etcd.delete_volume(member).await.unwrap();
        }
        etcd.wait_for_recovery_required().await.unwrap();
        timeline.record_event("the loss is confirmed, a user requests a recovery");
        let killed = jobs.kill_controllers_on_job(stage, RESTORE_JOB_PREFIX);
        let task = json!({"recoverQuorum": {}});
        let (ended, ()) = tokio::join!(etcd.run_ops_task("recover", task), killed);
        let (state, said) = ended.unwrap();
        assert_eq!(state, TaskState::Succeeded, "{said}");
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (3, is_new)).await;
        timeline.record_event(
            "all members are ready with all keys; the controllers were killed meanwhile",
        );
        timeline.save(&timeline::timelines_dir().unwrap()).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quorum_is_recovered_automatically_when_the_survivor_restarts() {
    with_namespace("unasked", async |stage| {
        let mut spec = stage.etcd_spec(3);
        spec["mainstay"] = json!({"recovery": {"mode": "Automatic"}});
        let jobs = JobWatch::start(stage).await;
        let etcd = stage.create_etcd(&spec).await;
        let members = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = start_backed_up_load(&etcd).await;
        for member in &members[1..] {
            etcd.delete_volume(member).await.unwrap();
        }
        // Its etcd does not respond: there is no quorum.
        etcd.kill_pod(&members[0]).await.unwrap();
        jobs.kill_controllers_on_job(stage, RESTORE_JOB_PREFIX)
            .await;
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (3, is_new)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn approved_quorum_recovery_survives_controller_kills() {
    with_namespace("approved", async |stage| {
        let mut spec = stage.etcd_spec(3);
        spec["mainstay"] = json!({"recovery": {"mode": "Approve"}});
        let jobs = JobWatch::start(stage).await;
        let etcd = stage.create_etcd(&spec).await;
        let members = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = start_backed_up_load(&etcd).await;
        for member in &members {
            etcd.delete_volume(member).await.unwrap();
        }
        etcd.approve_recovery().await.unwrap();
        jobs.kill_controllers_on_job(stage, RESTORE_JOB_PREFIX)
            .await;
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (3, is_new)).await;
        let approved = async || {
            let etcd = etcd.get().await.ok()?;
            let is_there = etcd.annotations().contains_key(APPROVE_RECOVERY);
            (!is_there).then_some(())
        };
        eventually("the approval annotation to be removed", approved)
            .await
            .unwrap();
    })
    .await;
}

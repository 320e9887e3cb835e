//! Controllers are killed in the middle, and what was begun is finished. More of that: `adoption`, `backups`, `encryption`,
//! `lifecycle`, `node`.

use std::slice;

use etcd_client::DeleteOptions;
use kube::ResourceExt as _;
use serde_json::json;
use steward_crds::etcd::APPROVE_RECOVERY;
use steward_crds::ops::TaskState;
use steward_tests::cluster::eventually;
use steward_tests::cluster::member::content;
use steward_tests::cluster::timeline::{self, Timeline};

use super::midway::{RESTORES, kill_controllers, kill_controllers_at_job, pods, replaced};
use super::stage::{
    assert_kept, assert_recovered, assert_resumed, assert_served, load_in_the_backup, on_stage,
    write_and_back_up,
};

#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_are_killed_again_and_again_still_make_three_members_of_one() {
    on_stage("killed", async |stage| {
        let etcd = stage.etcd(&stage.spec(1)).await;
        etcd.members(1).await.unwrap();
        etcd.settled().await.unwrap();
        let load = etcd.load().await.unwrap();
        etcd.change(json!({"replicas": 3})).await.unwrap();
        for count in 2..=3 {
            pods(&etcd, count).await;
            kill_controllers(stage).await;
        }
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let written = load.stop().await.unwrap();
        assert_kept(&written, &content(&members).await.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_are_killed_in_the_middle_still_roll_replace_start_and_shrink() {
    on_stage("midway", async |stage| {
        let etcd = stage.etcd(&stage.spec(3)).await;
        let first = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let load = etcd.load().await.unwrap();

        etcd.change(json!({"annotations": {"rolled": "once"}}))
            .await
            .unwrap();
        replaced(&etcd, &first, 1).await;
        kill_controllers(stage).await;
        let is_new = |member: &_| !first.contains(member);
        let rolled = etcd.members_that(3, is_new).await.unwrap();
        etcd.settled().await.unwrap();

        let lost = &rolled[2];
        etcd.lose_volume(lost).await.unwrap();
        replaced(&etcd, slice::from_ref(lost), 1).await;
        kill_controllers(stage).await;
        let is_another = |member: &_| *member != *lost;
        let members = etcd.members_that(3, is_another).await.unwrap();
        etcd.settled().await.unwrap();
        let written = load.stop().await.unwrap();
        assert_served(&written);
        assert_kept(&written, &content(&members).await.unwrap());

        let load = etcd.load().await.unwrap();
        load.has_written(20).await.unwrap();
        for member in &members {
            etcd.kill(member).await.unwrap();
        }
        kill_controllers(stage).await;
        let is_new = |member: &_| !members.contains(member);
        etcd.members_that(3, is_new).await.unwrap();
        etcd.settled().await.unwrap();

        etcd.change(json!({"replicas": 1})).await.unwrap();
        let fewer = async || (etcd.pods().await.ok()?.len() < 3).then_some(());
        eventually("fewer pods", fewer).await.unwrap();
        kill_controllers(stage).await;
        etcd.settled().await.unwrap();
        let remaining = etcd.members(1).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_kept(&written, &content(&remaining).await.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_are_killed_while_they_restore_still_restore_and_go_back() {
    on_stage("resumed", async |stage| {
        let etcd = stage.etcd(&stage.spec(1)).await;
        let lost = etcd.members(1).await.unwrap();
        etcd.settled().await.unwrap();
        let load = load_in_the_backup(&etcd).await;

        let fault = "pod and volume are gone; so are the controllers, when they know, and when the Job is there";
        let mut timeline = Timeline::start("the only volume, and the controllers", fault);
        etcd.lose_volume(&lost[0]).await.unwrap();
        etcd.needs_recovery().await.unwrap();
        kill_controllers(stage).await;
        kill_controllers_at_job(stage, RESTORES).await;
        let is_new = |member: &_| !lost.contains(member);
        assert_resumed(&etcd, load, (1, is_new)).await;
        timeline.mark("the member is ready, with all its keys");
        timeline.keep(&timeline::directory().unwrap()).unwrap();

        let members = etcd.members(1).await.unwrap();
        let before = write_and_back_up(&etcd, &members).await;
        let mut client = members[0].client().await.unwrap();
        let everything = DeleteOptions::new().with_all_keys();
        client.delete("", Some(everything)).await.unwrap();
        let task = json!({"restore": {"toRevision": before.revision.0}});
        let killed = kill_controllers_at_job(stage, RESTORES);
        let (ended, ()) = tokio::join!(etcd.ask("undo", task), killed);
        let (state, said) = ended.unwrap();
        assert_eq!(state, TaskState::Succeeded, "{said}");
        let is_new = |member: &_| !members.contains(member);
        assert_recovered(&etcd, &before, (1, is_new)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_to_people_waits_for_the_task_of_one_and_outlives_the_controllers() {
    on_stage("manual", async |stage| {
        let mut spec = stage.spec(3);
        spec["steward"] = json!({"recovery": {"mode": "Manual"}});
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
        let killed = kill_controllers_at_job(stage, RESTORES);
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
        spec["steward"] = json!({"recovery": {"mode": "Automatic"}});
        let etcd = stage.etcd(&spec).await;
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let load = load_in_the_backup(&etcd).await;
        for member in &members[1..] {
            etcd.lose_volume(member).await.unwrap();
        }
        // Its etcd does not answer any more: there is no quorum it could join.
        etcd.kill(&members[0]).await.unwrap();
        kill_controllers_at_job(stage, RESTORES).await;
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (3, is_new)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_is_recovered_once_approved_and_outlives_the_controllers() {
    on_stage("approved", async |stage| {
        let mut spec = stage.spec(3);
        spec["steward"] = json!({"recovery": {"mode": "Approve"}});
        let etcd = stage.etcd(&spec).await;
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let load = load_in_the_backup(&etcd).await;
        for member in &members {
            etcd.lose_volume(member).await.unwrap();
        }
        etcd.approve_recovery().await.unwrap();
        kill_controllers_at_job(stage, RESTORES).await;
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

//! More is lost than the members can make good among themselves: what the backup or a survivor holds comes back.

use serde_json::json;
use steward_crds::ops::TaskState;
use steward_tests::cluster::timeline::{self, Timeline};

use super::stage::{
    assert_recovered, assert_resumed, load_in_the_backup, on_stage, write_and_back_up,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_only_member_that_lost_its_volume_is_restored_from_the_backup() {
    on_stage("single", async |stage| {
        let etcd = stage.etcd(&stage.spec(1)).await;
        let members = etcd.members(1).await.unwrap();
        etcd.settled().await.unwrap();
        let load = load_in_the_backup(&etcd).await;
        let mut timeline = Timeline::start("the only volume", "pod and volume are gone");
        etcd.lose_volume(&members[0]).await.unwrap();
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (1, is_new)).await;
        timeline.mark("the member is ready, with all its keys");
        timeline.keep(&timeline::directory().unwrap()).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_members_that_lost_all_volumes_are_recovered_once_a_person_approves() {
    on_stage("all", async |stage| {
        let etcd = stage.etcd(&stage.spec(3)).await;
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let load = load_in_the_backup(&etcd).await;
        let mut timeline = Timeline::start("three volumes of three", "pods and volumes are gone");
        for member in &members {
            etcd.lose_volume(member).await.unwrap();
        }
        etcd.approve_recovery().await.unwrap();
        timeline.mark("the loss is proven, a person approves");
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (3, is_new)).await;
        timeline.mark("all members are ready, with all their keys");
        timeline.keep(&timeline::directory().unwrap()).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_members_that_lost_two_volumes_are_recovered_without_a_person_if_that_is_allowed() {
    on_stage("two", async |stage| {
        let mut spec = stage.spec(3);
        spec["steward"] = json!({"recovery": {"mode": "Automatic"}});
        let etcd = stage.etcd(&spec).await;
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let load = load_in_the_backup(&etcd).await;
        let mut timeline = Timeline::start("two volumes of three", "two pods and their volumes");
        for member in &members[1..] {
            etcd.lose_volume(member).await.unwrap();
        }
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (3, is_new)).await;
        timeline.mark("all members are ready, with all their keys");
        timeline.keep(&timeline::directory().unwrap()).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_delete_is_undone_by_going_back_to_the_revision_before_it() {
    on_stage("undo", async |stage| {
        let etcd = stage.etcd(&stage.spec(3)).await;
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let before = write_and_back_up(&etcd, &members).await;
        let mut client = members[0].client().await.unwrap();
        let everything = etcd_client::DeleteOptions::new().with_all_keys();
        let deleted = client.delete("", Some(everything)).await.unwrap();
        assert!(deleted.deleted() >= 200);

        let mut timeline = Timeline::start("a bad delete", "a person asks for the revision before");
        let task = json!({"restore": {"toRevision": before.revision.0}});
        let (state, said) = etcd.ask("undo", task).await.unwrap();
        assert_eq!(state, TaskState::Succeeded, "{said}");
        let is_new = |member: &_| !members.contains(member);
        assert_recovered(&etcd, &before, (3, is_new)).await;
        timeline.mark("all members are ready, with all their keys");
        timeline.keep(&timeline::directory().unwrap()).unwrap();

        // And once more, to what is now the state before a recovery. Backups go on behind it.
        let members = etcd.members(3).await.unwrap();
        let task = json!({"restore": {"toRevision": before.revision.0}});
        let (state, said) = etcd.ask("undo-again", task).await.unwrap();
        assert_eq!(state, TaskState::Succeeded, "{said}");
        let is_new = |member: &_| !members.contains(member);
        assert_recovered(&etcd, &before, (3, is_new)).await;
        etcd.settled().await.unwrap();
        let task = json!({"onDemandSnapshot": {"type": "full"}});
        let (state, said) = etcd.ask("backed-up", task).await.unwrap();
        assert_eq!(state, TaskState::Succeeded, "{said}");
    })
    .await;
}

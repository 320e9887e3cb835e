//! Controllers are killed in the middle of more, and more often.

use std::slice;

use etcd_client::DeleteOptions;
use mainstay_crds::ops::TaskState;
use mainstay_tests::cluster::eventually;
use mainstay_tests::cluster::member::content;
use serde_json::json;

use super::super::killed::restore_the_only_member;
use super::super::midway::{Jobs, RESTORES, kill_controllers, pods, replaced};
use super::super::served::Absences;
use super::super::stage::{assert_kept, assert_recovered, on_stage, write_and_back_up};

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
        load.has_written(20).await.unwrap();
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
        let away = Absences::watch(stage, &etcd).await;
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
        load.has_written(20).await.unwrap();
        let written = load.stop().await.unwrap();
        away.assert_served(4, &written).await;
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
async fn controllers_that_are_killed_while_they_go_back_to_a_revision_still_do() {
    on_stage("back", async |stage| {
        let jobs = Jobs::watch(stage).await;
        let (etcd, members) = restore_the_only_member(stage, &jobs).await;
        let before = write_and_back_up(&etcd, &members).await;
        let mut client = members[0].client().await.unwrap();
        let everything = DeleteOptions::new().with_all_keys();
        client.delete("", Some(everything)).await.unwrap();
        let task = json!({"restore": {"toRevision": before.revision.0}});
        let jobs = Jobs::watch(stage).await; // which does not know the Jobs of before
        let killed = jobs.kill_controllers_at(stage, RESTORES);
        let (ended, ()) = tokio::join!(etcd.ask("undo", task), killed);
        let (state, said) = ended.unwrap();
        assert_eq!(state, TaskState::Succeeded, "{said}");
        let is_new = |member: &_| !members.contains(member);
        assert_recovered(&etcd, &before, (1, is_new)).await;
    })
    .await;
}

//! Controllers are killed during more operations, and more often.

use std::slice;

use etcd_client::DeleteOptions;
use mainstay_crds::ops::TaskState;
use mainstay_tests::cluster::eventually;
use mainstay_tests::cluster::member::read_key_space;
use serde_json::json;

use super::super::availability::AbsenceWatch;
use super::super::controller_kills::restore_single_member;
use super::super::harness::{
    assert_no_write_lost, assert_recovered, with_namespace, write_and_back_up,
};
use super::super::interruptions::{
    JobWatch, RESTORE_JOB_PREFIX, kill_controllers, wait_for_pods, wait_until_replaced,
};

#[tokio::test(flavor = "multi_thread")]
async fn scaling_to_three_members_completes_despite_controller_kills() {
    with_namespace("killed", async |stage| {
        let etcd = stage.create_etcd(&stage.etcd_spec(1)).await;
        etcd.wait_for_members(1).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = etcd.start_load().await.unwrap();
        etcd.patch_spec(json!({"replicas": 3})).await.unwrap();
        for count in 2..=3 {
            wait_for_pods(&etcd, count).await;
            kill_controllers(stage).await;
        }
        let members = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        load.wait_for_writes(20).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_no_write_lost(&written, &read_key_space(&members).await.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn roll_replace_start_and_shrink_complete_despite_controller_kills() {
    with_namespace("midway", async |stage| {
        let etcd = stage.create_etcd(&stage.etcd_spec(3)).await;
        let first = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let away = AbsenceWatch::start(stage, &etcd).await;
        let load = etcd.start_load().await.unwrap();

        etcd.patch_spec(json!({"annotations": {"rolled": "once"}}))
            .await
            .unwrap();
        wait_until_replaced(&etcd, &first, 1).await;
        kill_controllers(stage).await;
        let is_new = |member: &_| !first.contains(member);
        let rolled = etcd.wait_for_members_where(3, is_new).await.unwrap();
        etcd.wait_until_settled().await.unwrap();

        let lost = &rolled[2];
        etcd.delete_volume(lost).await.unwrap();
        wait_until_replaced(&etcd, slice::from_ref(lost), 1).await;
        kill_controllers(stage).await;
        let is_another = |member: &_| *member != *lost;
        let members = etcd.wait_for_members_where(3, is_another).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        load.wait_for_writes(20).await.unwrap();
        let written = load.stop().await.unwrap();
        away.assert_served(4, &written).await;
        assert_no_write_lost(&written, &read_key_space(&members).await.unwrap());

        let load = etcd.start_load().await.unwrap();
        load.wait_for_writes(20).await.unwrap();
        for member in &members {
            etcd.kill_pod(member).await.unwrap();
        }
        kill_controllers(stage).await;
        let is_new = |member: &_| !members.contains(member);
        etcd.wait_for_members_where(3, is_new).await.unwrap();
        etcd.wait_until_settled().await.unwrap();

        etcd.patch_spec(json!({"replicas": 1})).await.unwrap();
        let fewer = async || (etcd.list_pods().await.ok()?.len() < 3).then_some(());
        eventually("a pod to be removed", fewer).await.unwrap();
        kill_controllers(stage).await;
        etcd.wait_until_settled().await.unwrap();
        let remaining = etcd.wait_for_members(1).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_no_write_lost(&written, &read_key_space(&remaining).await.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_to_a_revision_completes_although_controllers_are_killed() {
    with_namespace("back", async |stage| {
        let jobs = JobWatch::start(stage).await;
        let (etcd, members) = restore_single_member(stage, &jobs).await;
        let before = write_and_back_up(&etcd, &members).await;
        let mut client = members[0].client().await.unwrap();
        let everything = DeleteOptions::new().with_all_keys();
        client.delete("", Some(everything)).await.unwrap();
        let task = json!({"restore": {"toRevision": before.revision.0}});
        let jobs = JobWatch::start(stage).await; // a new watch, which does not include earlier Jobs
        let killed = jobs.kill_controllers_on_job(stage, RESTORE_JOB_PREFIX);
        let (ended, ()) = tokio::join!(etcd.run_ops_task("undo", task), killed);
        let (state, said) = ended.unwrap();
        assert_eq!(state, TaskState::Succeeded, "{said}");
        let is_new = |member: &_| !members.contains(member);
        assert_recovered(&etcd, &before, (1, is_new)).await;
    })
    .await;
}

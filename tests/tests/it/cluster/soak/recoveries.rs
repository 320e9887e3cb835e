//! Measures the times of undisturbed recoveries. With controllers killed meanwhile: `killed`.

use mainstay_tests::cluster::timeline::{self, Timeline};
use serde_json::json;

use super::super::harness::{assert_resumed, start_backed_up_load, with_namespace};

#[tokio::test(flavor = "multi_thread")]
async fn single_member_that_lost_its_volume_is_restored_from_the_backup() {
    with_namespace("single", async |stage| {
        let etcd = stage.create_etcd(&stage.etcd_spec(1)).await;
        let members = etcd.wait_for_members(1).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = start_backed_up_load(&etcd).await;
        let mut timeline = Timeline::start("the only volume", "pod and volume are deleted");
        etcd.delete_volume(&members[0]).await.unwrap();
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (1, is_new)).await;
        timeline.record_event("the member is ready with all keys");
        timeline.save(&timeline::timelines_dir().unwrap()).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loss_of_all_three_volumes_is_recovered_after_approval() {
    with_namespace("all", async |stage| {
        let etcd = stage.create_etcd(&stage.etcd_spec(3)).await;
        let members = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = start_backed_up_load(&etcd).await;
        let mut timeline =
            Timeline::start("three volumes of three", "all pods and volumes are deleted");
        for member in &members {
            etcd.delete_volume(member).await.unwrap();
        }
        etcd.approve_recovery().await.unwrap();
        timeline.record_event("the loss is confirmed, a user approves the recovery");
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (3, is_new)).await;
        timeline.record_event("all members are ready with all keys");
        timeline.save(&timeline::timelines_dir().unwrap()).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loss_of_two_of_three_volumes_is_recovered_automatically() {
    with_namespace("two", async |stage| {
        let mut spec = stage.etcd_spec(3);
        spec["mainstay"] = json!({"recovery": {"mode": "Automatic"}});
        let etcd = stage.create_etcd(&spec).await;
        let members = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = start_backed_up_load(&etcd).await;
        let mut timeline = Timeline::start(
            "two volumes of three",
            "two pods and their volumes are deleted",
        );
        for member in &members[1..] {
            etcd.delete_volume(member).await.unwrap();
        }
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (3, is_new)).await;
        timeline.record_event("all members are ready with all keys");
        timeline.save(&timeline::timelines_dir().unwrap()).unwrap();
    })
    .await;
}

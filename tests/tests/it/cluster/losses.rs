//! An Etcd recovers by itself as long as a quorum of volumes is left: loss of all pods, of one volume. With controllers
//! killed meanwhile: `killed`.

use mainstay_tests::cluster::eventually;
use mainstay_tests::cluster::member::read_key_space;
use mainstay_tests::cluster::timeline::{self, Timeline};

use super::availability::AbsenceWatch;
use super::harness::{LONGEST_GAP_LABEL, assert_no_write_lost, with_namespace};

#[tokio::test(flavor = "multi_thread")]
async fn killing_all_pods_at_once_loses_no_acknowledged_write() {
    with_namespace("pods", async |stage| {
        let etcd = stage.create_etcd(&stage.etcd_spec(3)).await;
        let before = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = etcd.start_load().await.unwrap();
        load.wait_for_writes(100).await.unwrap();

        let mut timeline = Timeline::start("all pods", "three pods of three are killed at once");
        for member in &before {
            etcd.kill_pod(member).await.unwrap();
        }
        let is_new = |member: &_| !before.contains(member);
        let members = etcd.wait_for_members_where(3, is_new).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        timeline.record_event("all members are ready");
        let written = load.stop().await.unwrap();
        timeline.record_event_after(written.longest_gap(), LONGEST_GAP_LABEL);
        timeline.save(&timeline::timelines_dir().unwrap()).unwrap();
        assert_no_write_lost(&written, &read_key_space(&members).await.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn member_that_lost_its_volume_is_replaced_while_others_serve() {
    with_namespace("volume", async |stage| {
        let etcd = stage.create_etcd(&stage.etcd_spec(3)).await;
        let before = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = etcd.start_load().await.unwrap();
        load.wait_for_writes(100).await.unwrap();
        let lost = &before[1];
        let old = eventually("the ID of the lost member", async || lost.member_id().await);
        let old = old.await.unwrap();

        let away = AbsenceWatch::start(stage, &etcd).await;
        let mut timeline =
            Timeline::start("one volume of three", "a pod and its volume are deleted");
        etcd.delete_volume(lost).await.unwrap();
        let is_another = |member: &_| *member != *lost;
        let members = etcd.wait_for_members_where(3, is_another).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        timeline.record_event("three members are ready");
        let written = load.stop().await.unwrap();
        timeline.record_event_after(written.longest_gap(), LONGEST_GAP_LABEL);
        timeline.save(&timeline::timelines_dir().unwrap()).unwrap();
        away.assert_served(1, &written).await;
        assert_no_write_lost(&written, &read_key_space(&members).await.unwrap());
        let new = eventually("the ID of the new member", async || {
            members[1].member_id().await
        });
        let new = new.await.unwrap();
        assert_ne!(new, old, "a member that lost its data must get a new ID");
    })
    .await;
}

//! What an Etcd loses, it has back by itself as long as a quorum of its volumes is left: all pods, one volume. With the
//! controllers killed meanwhile: `killed`.

use mainstay_tests::cluster::eventually;
use mainstay_tests::cluster::member::content;
use mainstay_tests::cluster::timeline::{self, Timeline};

use super::served::Absences;
use super::stage::{SILENCE, assert_kept, on_stage};

#[tokio::test(flavor = "multi_thread")]
async fn all_pods_killed_at_once_come_back_with_every_acknowledged_write() {
    on_stage("pods", async |stage| {
        let etcd = stage.etcd(&stage.spec(3)).await;
        let before = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let load = etcd.load().await.unwrap();
        load.has_written(100).await.unwrap();

        let mut timeline = Timeline::start("all pods", "three pods of three are killed at once");
        for member in &before {
            etcd.kill(member).await.unwrap();
        }
        let is_new = |member: &_| !before.contains(member);
        let members = etcd.members_that(3, is_new).await.unwrap();
        etcd.settled().await.unwrap();
        timeline.mark("all members are ready");
        let written = load.stop().await.unwrap();
        timeline.mark_after(written.longest_silence(), SILENCE);
        timeline.keep(&timeline::directory().unwrap()).unwrap();
        assert_kept(&written, &content(&members).await.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_lost_its_volume_is_replaced_and_the_others_serve_meanwhile() {
    on_stage("volume", async |stage| {
        let etcd = stage.etcd(&stage.spec(3)).await;
        let before = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let load = etcd.load().await.unwrap();
        load.has_written(100).await.unwrap();
        let lost = &before[1];
        let old = eventually("who is lost", async || lost.id().await);
        let old = old.await.unwrap();

        let away = Absences::watch(stage, &etcd).await;
        let mut timeline = Timeline::start("one volume of three", "a pod and its volume are gone");
        etcd.lose_volume(lost).await.unwrap();
        let is_another = |member: &_| *member != *lost;
        let members = etcd.members_that(3, is_another).await.unwrap();
        etcd.settled().await.unwrap();
        timeline.mark("three members are ready");
        let written = load.stop().await.unwrap();
        timeline.mark_after(written.longest_silence(), SILENCE);
        timeline.keep(&timeline::directory().unwrap()).unwrap();
        away.assert_served(1, &written).await;
        assert_kept(&written, &content(&members).await.unwrap());
        let new = eventually("who came instead", async || members[1].id().await);
        let new = new.await.unwrap();
        assert_ne!(new, old, "without its data it is another member");
    })
    .await;
}

//! What an Etcd loses, it has back by itself as long as a quorum of its volumes is left: all pods, one volume, a leader; also
//! if the controllers are killed meanwhile (for a volume: `killed`).

use std::net::Ipv4Addr;

use serde_json::json;
use steward_crds::ops::TaskState;
use steward_tests::cluster::eventually;
use steward_tests::cluster::member::content;
use steward_tests::cluster::timeline::{self, Timeline};

use super::midway::kill_controllers;
use super::stage::{SILENCE, assert_kept, on_own_stage, on_stage};

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

        for member in &members {
            etcd.kill(member).await.unwrap();
        }
        kill_controllers(stage).await;
        let is_newer = |member: &_| !members.contains(member);
        let newer = etcd.members_that(3, is_newer).await.unwrap();
        etcd.settled().await.unwrap();
        assert_kept(&written, &content(&newer).await.unwrap());
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
        let old = lost.id().await.unwrap();

        let mut timeline = Timeline::start("one volume of three", "a pod and its volume are gone");
        etcd.lose_volume(lost).await.unwrap();
        let is_another = |member: &_| *member != *lost;
        let members = etcd.members_that(3, is_another).await.unwrap();
        etcd.settled().await.unwrap();
        timeline.mark("three members are ready");
        let written = load.stop().await.unwrap();
        timeline.mark_after(written.longest_silence(), SILENCE);
        timeline.keep(&timeline::directory().unwrap()).unwrap();
        assert_kept(&written, &content(&members).await.unwrap());
        let new = members[1].id().await.unwrap();
        assert_ne!(new, old, "without its data it is another member");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_is_replaced_and_its_backup_goes_on_with_the_next() {
    on_own_stage("cut", async |stage| {
        let etcd = stage.etcd(&stage.spec(3)).await;
        let mut members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let leads = async || {
            let leader = members[0].leader().await?;
            for (at, member) in members.iter().enumerate() {
                if member.id().await? == leader {
                    return Some((at, leader));
                }
            }
            None
        };
        let (at, old) = eventually("a leader", leads).await.unwrap();
        let leader = members.remove(at);
        let rest: Vec<Ipv4Addr> = members.iter().map(|member| member.address).collect();
        let load = etcd.load().await.unwrap();
        load.has_written(50).await.unwrap();

        let mut timeline = Timeline::start("the leader is cut off", "no packet passes to others");
        let cut = stage.node().cut(&[leader.address], &rest).await.unwrap();
        let new = async || members[0].leader().await.filter(|&new| new != old);
        eventually("another leader", new).await.unwrap();
        timeline.mark("another member leads");
        kill_controllers(stage).await;
        load.has_written(100).await.unwrap();
        let now = content(&members).await.unwrap();
        etcd.is_backed_up(now.revision).await.unwrap();
        timeline.mark("what was written since is in the backup");
        cut.heal().await.unwrap();
        let follows = async || {
            let leads = members[0].leader().await?;
            (leader.leader().await? == leads).then_some(())
        };
        eventually("the old leader follows", follows).await.unwrap();
        timeline.keep(&timeline::directory().unwrap()).unwrap();
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let written = load.stop().await.unwrap();
        assert_kept(&written, &content(&members).await.unwrap());
        let (state, said) = etcd
            .ask("verify", json!({"verifyBackup": {}}))
            .await
            .unwrap();
        assert_eq!(state, TaskState::Succeeded, "{said}");
    })
    .await;
}

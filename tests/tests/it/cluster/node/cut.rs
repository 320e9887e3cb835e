//! Wires between members are cut.

use std::net::Ipv4Addr;

use mainstay_crds::ops::TaskState;
use mainstay_tests::cluster::eventually;
use mainstay_tests::cluster::member::content;
use mainstay_tests::cluster::timeline::{self, Timeline};
use serde_json::json;

use super::super::midway::kill_controllers;
use super::super::stage::{assert_kept, on_own_stage};

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

//! Network partitions between members.

use std::net::Ipv4Addr;

use mainstay_crds::ops::TaskState;
use mainstay_tests::cluster::eventually;
use mainstay_tests::cluster::member::read_key_space;
use mainstay_tests::cluster::timeline::{self, Timeline};
use serde_json::json;

use super::super::harness::{assert_no_write_lost, with_local_namespace};
use super::super::interruptions::kill_controllers;

#[tokio::test(flavor = "multi_thread")]
async fn partitioned_leader_is_replaced_and_the_next_continues_the_backup() {
    with_local_namespace("cut", async |stage| {
        let etcd = stage.create_etcd(&stage.etcd_spec(3)).await;
        let mut members = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let leads = async || {
            let leader = members[0].leader_id().await?;
            for (at, member) in members.iter().enumerate() {
                if member.member_id().await? == leader {
                    return Some((at, leader));
                }
            }
            None
        };
        let (at, old) = eventually("a leader", leads).await.unwrap();
        let leader = members.remove(at);
        let rest: Vec<Ipv4Addr> = members.iter().map(|member| member.address).collect();
        let load = etcd.start_load().await.unwrap();
        load.wait_for_writes(50).await.unwrap();

        let mut timeline = Timeline::start(
            "the leader is cut off",
            "all packets to other members are dropped",
        );
        let cut = stage
            .local_node()
            .cut_network(&[leader.address], &rest)
            .await
            .unwrap();
        let new = async || members[0].leader_id().await.filter(|&new| new != old);
        eventually("another leader", new).await.unwrap();
        timeline.record_event("another member is the leader");
        kill_controllers(stage).await;
        load.wait_for_writes(100).await.unwrap();
        let now = read_key_space(&members).await.unwrap();
        etcd.wait_until_backed_up(now.revision).await.unwrap();
        timeline.record_event("writes since the fault are in the backup");
        cut.heal().await.unwrap();
        let follows = async || {
            let leads = members[0].leader_id().await?;
            (leader.leader_id().await? == leads).then_some(())
        };
        eventually("the old leader to follow the new one", follows)
            .await
            .unwrap();
        timeline.save(&timeline::timelines_dir().unwrap()).unwrap();
        let members = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let written = load.stop().await.unwrap();
        assert_no_write_lost(&written, &read_key_space(&members).await.unwrap());
        let (state, said) = etcd
            .run_ops_task("verify", json!({"verifyBackup": {}}))
            .await
            .unwrap();
        assert_eq!(state, TaskState::Succeeded, "{said}");
    })
    .await;
}

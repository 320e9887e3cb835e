//! A full volume is expanded although controllers are killed meanwhile. Damage with controllers killed: `soak`.

use std::fs::File;
use std::io::Write as _;

use mainstay_crds::{ConditionStatus, ConditionType};
use mainstay_tests::cluster::eventually;
use mainstay_tests::cluster::managed_etcd::{ManagedEtcd, find_condition};
use mainstay_tests::cluster::member::read_key_space;
use mainstay_tests::cluster::timeline::{self, Timeline};
use serde_json::json;

use super::super::harness::{assert_no_write_lost, with_local_namespace};
use super::super::interruptions::kill_controllers;

/// Waits until the Etcd reports that not all members are ready.
async fn wait_until_not_ready(etcd: &ManagedEtcd) {
    let is_told = async || {
        let reported = find_condition(&etcd.get().await.ok()?, &ConditionType::AllMembersReady)?;
        (reported.status != ConditionStatus::True).then_some(())
    };
    let what = "condition AllMembersReady to become false";
    eventually(what, is_told).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn full_volume_is_repaired_although_controllers_are_killed() {
    with_local_namespace("full", async |stage| {
        let etcd = stage.create_etcd(&stage.etcd_spec(3)).await;
        let members = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = etcd.start_load().await.unwrap();
        load.wait_for_writes(100).await.unwrap();
        let data = stage.member_data_dir(&etcd, &members[0]).await;
        let mut filler = File::create(data.with_file_name("filler")).unwrap();
        let noise = vec![0xa5; 1 << 20];

        let mut timeline = Timeline::start("one full volume of three", "the volume is full");
        while filler.write_all(&noise).is_ok() {}
        wait_until_not_ready(&etcd).await;
        timeline.record_event(
            "the Etcd reports that a member is not ready; a larger volume is requested",
        );
        load.wait_for_writes(100).await.unwrap();
        etcd.patch_spec(json!({"storageCapacity": "1Gi"}))
            .await
            .unwrap();
        kill_controllers(stage).await;
        let members = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        timeline.record_event("three members are ready; the controllers were killed meanwhile");
        timeline.save(&timeline::timelines_dir().unwrap()).unwrap();

        load.wait_for_writes(20).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_no_write_lost(&written, &read_key_space(&members).await.unwrap());
    })
    .await;
}

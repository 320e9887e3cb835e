//! Volumes and what is on them are mended though the controllers are killed meanwhile.

use std::fs::File;
use std::io::Write as _;
use std::slice;

use serde_json::json;
use steward_crds::{ConditionStatus, ConditionType};
use steward_tests::cluster::eventually;
use steward_tests::cluster::managed::{Managed, condition};
use steward_tests::cluster::member::content;
use steward_tests::cluster::timeline::{self, Timeline};

use super::super::midway::{RESTORES, kill_controllers, kill_controllers_at_job, replaced};
use super::super::stage::{assert_kept, assert_resumed, load_in_the_backup, on_own_stage};
use super::damage::{damage_database, damage_log};

/// Waits until the Etcd says that not every member is ready.
async fn told(etcd: &Managed) {
    let is_told = async || {
        let told = condition(&etcd.get().await.ok()?, &ConditionType::AllMembersReady)?;
        (told.status != ConditionStatus::True).then_some(())
    };
    let what = "a member that is told not to be ready";
    eventually(what, is_told).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_are_killed_still_mend_a_full_volume_and_a_damaged_database() {
    on_own_stage("full", async |stage| {
        let etcd = stage.etcd(&stage.spec(3)).await;
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let load = etcd.load().await.unwrap();
        load.has_written(100).await.unwrap();
        let data = stage.data_of(&etcd, &members[0]).await;
        let mut filler = File::create(data.with_file_name("filler")).unwrap();
        let noise = vec![0xa5; 1 << 20];

        let mut timeline = Timeline::start("one full volume of three", "there is no room left");
        while filler.write_all(&noise).is_ok() {}
        told(&etcd).await;
        timeline.mark("the Etcd says that a member is not ready; a larger volume is asked for");
        load.has_written(100).await.unwrap();
        etcd.change(json!({"storageCapacity": "1Gi"}))
            .await
            .unwrap();
        kill_controllers(stage).await;
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        timeline.mark("three members are ready; the controllers were killed meanwhile");
        timeline.keep(&timeline::directory().unwrap()).unwrap();

        let bad = &members[2];
        damage_database(&stage.data_of(&etcd, bad).await);
        etcd.kill(bad).await.unwrap();
        replaced(&etcd, slice::from_ref(bad), 1).await;
        kill_controllers(stage).await;
        let is_another = |member: &_| *member != *bad;
        let members = etcd.members_that(3, is_another).await.unwrap();
        etcd.settled().await.unwrap();
        load.has_written(20).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_kept(&written, &content(&members).await.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_are_killed_still_restore_a_member_whose_log_is_damaged() {
    on_own_stage("relog", async |stage| {
        let etcd = stage.etcd(&stage.spec(1)).await;
        let members = etcd.members(1).await.unwrap();
        etcd.settled().await.unwrap();
        let load = load_in_the_backup(&etcd).await;
        damage_log(&stage.data_of(&etcd, &members[0]).await);
        etcd.kill(&members[0]).await.unwrap();
        kill_controllers_at_job(stage, RESTORES).await;
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (1, is_new)).await;
    })
    .await;
}

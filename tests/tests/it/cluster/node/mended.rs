//! A full volume grows though the controllers are killed meanwhile. Damage, with controllers killed: `soak`.

use std::fs::File;
use std::io::Write as _;

use mainstay_crds::{ConditionStatus, ConditionType};
use mainstay_tests::cluster::eventually;
use mainstay_tests::cluster::managed::{Managed, condition};
use mainstay_tests::cluster::member::content;
use mainstay_tests::cluster::timeline::{self, Timeline};
use serde_json::json;

use super::super::midway::kill_controllers;
use super::super::stage::{assert_kept, on_own_stage};

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
async fn controllers_that_are_killed_still_mend_a_full_volume() {
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

        load.has_written(20).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_kept(&written, &content(&members).await.unwrap());
    })
    .await;
}

//! Variants for `make soak`: at more moments, for longer, and with controllers killed meanwhile.

use std::slice;

use mainstay_tests::cluster::member::read_key_space;

use super::super::harness::{
    assert_no_write_lost, assert_resumed, start_backed_up_load, with_local_namespace,
};
use super::super::interruptions::{
    JobWatch, RESTORE_JOB_PREFIX, kill_controllers, wait_until_replaced,
};
use super::damage::{damage_database, damage_log};
use super::upload::{KillPoint, kill_while_uploading};

#[tokio::test(flavor = "multi_thread")]
async fn member_with_damaged_db_is_replaced_despite_controller_kills() {
    with_local_namespace("redata", async |stage| {
        let etcd = stage.create_etcd(&stage.etcd_spec(3)).await;
        let members = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = etcd.start_load().await.unwrap();
        load.wait_for_writes(100).await.unwrap();
        let bad = &members[2];
        damage_database(&stage.member_data_dir(&etcd, bad).await);
        etcd.kill_pod(bad).await.unwrap();
        wait_until_replaced(&etcd, slice::from_ref(bad), 1).await;
        kill_controllers(stage).await;
        let is_another = |member: &_| *member != *bad;
        let members = etcd.wait_for_members_where(3, is_another).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        load.wait_for_writes(20).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_no_write_lost(&written, &read_key_space(&members).await.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn member_with_damaged_wal_is_restored_despite_controller_kills() {
    with_local_namespace("relog", async |stage| {
        let jobs = JobWatch::start(stage).await;
        let etcd = stage.create_etcd(&stage.etcd_spec(1)).await;
        let members = etcd.wait_for_members(1).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = start_backed_up_load(&etcd).await;
        damage_log(&stage.member_data_dir(&etcd, &members[0]).await);
        etcd.kill_pod(&members[0]).await.unwrap();
        jobs.kill_controllers_on_job(stage, RESTORE_JOB_PREFIX)
            .await;
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (1, is_new)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_killed_at_any_stage_of_an_upload_leaves_a_valid_backup() {
    with_local_namespace("uploads", async |stage| {
        let moments = [
            ("begin", 0),
            ("soon", 1 << 20),
            ("later", 10 << 20),
            ("late", 25 << 20),
        ];
        let moments = moments.map(|(name, after_bytes)| KillPoint {
            name,
            after_bytes,
            with_controllers: name == "later",
        });
        Box::pin(kill_while_uploading(stage, &moments)).await;
    })
    .await;
}

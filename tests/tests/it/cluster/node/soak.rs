//! What `make soak` runs of this: at more moments, for longer, and with controllers killed meanwhile.

use std::slice;

use mainstay_tests::cluster::member::content;

use super::super::midway::{Jobs, RESTORES, kill_controllers, replaced};
use super::super::stage::{assert_kept, assert_resumed, load_in_the_backup, on_own_stage};
use super::damage::{damage_database, damage_log};
use super::upload::{Moment, kill_while_uploading};

#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_are_killed_still_replace_a_member_whose_database_is_damaged() {
    on_own_stage("redata", async |stage| {
        let etcd = stage.etcd(&stage.spec(3)).await;
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let load = etcd.load().await.unwrap();
        load.has_written(100).await.unwrap();
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
        let jobs = Jobs::watch(stage).await;
        let etcd = stage.etcd(&stage.spec(1)).await;
        let members = etcd.members(1).await.unwrap();
        etcd.settled().await.unwrap();
        let load = load_in_the_backup(&etcd).await;
        damage_log(&stage.data_of(&etcd, &members[0]).await);
        etcd.kill(&members[0]).await.unwrap();
        jobs.kill_controllers_at(stage, RESTORES).await;
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (1, is_new)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_is_killed_at_many_moments_of_an_upload_leaves_a_backup_that_is_whole() {
    on_own_stage("uploads", async |stage| {
        let moments = [
            ("begin", 0),
            ("soon", 1 << 20),
            ("later", 10 << 20),
            ("late", 25 << 20),
        ];
        let moments = moments.map(|(name, after)| Moment {
            name,
            after,
            with_controllers: name == "later",
        });
        Box::pin(kill_while_uploading(stage, &moments)).await;
    })
    .await;
}

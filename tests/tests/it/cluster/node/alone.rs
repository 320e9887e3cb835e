//! Something all tests share is taken away. Tests of the cluster run one after the other.

use std::time::Duration;

use serde_json::json;
use steward_crds::{ConditionStatus, ConditionType};
use steward_store::UploadOptions;
use steward_tests::cluster::managed::condition;
use steward_tests::cluster::member::content;
use steward_tests::cluster::timeline::{self, Timeline};
use steward_tests::cluster::{Component, eventually};
use tokio::time::{Instant, sleep_until};

use super::super::bucket::Bucket;
use super::super::midway::{controllers, kill_controllers, pods};
use super::super::stage::{
    SILENCE, assert_kept, assert_recovered, on_own_stage, write_and_back_up,
};

/// For how long the store is away.
const AWAY: Duration = Duration::from_mins(2);

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_restarts_in_the_middle_delays_a_third_member_and_stops_no_write() {
    on_own_stage("away", async |stage| {
        let etcd = stage.etcd(&stage.spec(1)).await;
        let first = etcd.members(1).await.unwrap();
        etcd.settled().await.unwrap();
        let load = etcd.load().await.unwrap();
        etcd.change(json!({"replicas": 3})).await.unwrap();
        pods(&etcd, 2).await;
        let node = stage.node();
        let mut timeline = Timeline::start(
            "the API server",
            "it and the controllers are killed while members are added",
        );
        let controllers = controllers(stage).await;
        node.stop(Component::ApiServer).await.unwrap();
        assert!(etcd.get().await.is_err());
        // One that cannot renew its Lease ends by itself, which may be sooner.
        let killed = controllers.iter();
        let killed = killed.filter(|pod| node.kill("steward-controller", pod).is_ok());
        assert_ne!(killed.count(), 0, "a controller was there to be killed");
        let stored = async || first[0].sidecar().await?["lastDelta"]["lastRevision"].as_i64();
        let then = eventually("a delta", stored).await.unwrap();
        load.has_written(100).await.unwrap();
        let later = async || stored().await.filter(|now| *now > then);
        eventually("a later delta, without the API server", later)
            .await
            .unwrap();
        timeline.mark("what was written since is in the backup");
        node.start(Component::ApiServer).await.unwrap();
        let back = async || etcd.get().await.ok();
        eventually("the API server", back).await.unwrap();
        timeline.mark("it is back");
        let members = etcd.members(3).await.unwrap();
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
async fn a_store_that_is_away_for_minutes_is_told_and_caught_up_with() {
    on_own_stage("outage", async |stage| {
        let etcd = stage.etcd(&stage.spec(1)).await;
        let members = etcd.members(1).await.unwrap();
        etcd.settled().await.unwrap();
        write_and_back_up(&etcd, &members).await;
        let load = etcd.load().await.unwrap();
        let mut timeline = Timeline::start("the backup store", "it is away");
        let away = Instant::now();
        stage.node().stop(Component::Store).await.unwrap();
        let is_told = async || {
            let told = condition(&etcd.get().await.ok()?, &ConditionType::BackupReady)?;
            (told.status != ConditionStatus::True).then_some(())
        };
        eventually("a backup that is told to be late", is_told)
            .await
            .unwrap();
        timeline.mark("the Etcd says that its backup is late");
        kill_controllers(stage).await;
        sleep_until(away + AWAY).await;
        stage.node().start(Component::Store).await.unwrap();
        timeline.mark("the store is back");
        load.has_written(20).await.unwrap();
        let written = load.stop().await.unwrap();
        let before = content(&members).await.unwrap();
        assert_kept(&written, &before);
        etcd.is_backed_up(before.revision).await.unwrap();
        timeline.mark("every write is in the backup");
        timeline.keep(&timeline::directory().unwrap()).unwrap();

        etcd.lose_volume(&members[0]).await.unwrap();
        let is_new = |member: &_| !members.contains(member);
        assert_recovered(&etcd, &before, (1, is_new)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_s3_server_has_its_objects_when_it_comes_back() {
    on_own_stage("store", async |stage| {
        let Bucket { store, .. } = &Bucket::open();
        let key = format!("{}/object", stage.namespace);
        let mut upload = store.upload(&key, UploadOptions::create_only()).unwrap();
        upload.write("kept".into()).await.unwrap();
        upload.finish().await.unwrap();

        let node = stage.node();
        node.stop(Component::Store).await.unwrap();
        node.start(Component::Store).await.unwrap();
        let object = eventually("the object", async || store.head(&key).await.ok());
        let object = object.await.unwrap();
        assert_eq!(object.size, 4);
    })
    .await;
}

//! Something all tests share is taken away. Tests of the cluster run one after the other.

mod soak;

use mainstay_store::UploadOptions;
use mainstay_tests::cluster::member::content;
use mainstay_tests::cluster::timeline::{self, Timeline};
use mainstay_tests::cluster::{Component, eventually};
use serde_json::json;

use super::super::bucket::Bucket;
use super::super::midway::{controllers, pods};
use super::super::stage::{SILENCE, assert_kept, on_own_stage};

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
        // First the controllers: one that leads ends by itself when it cannot renew its Lease.
        let killed = controllers(stage).await.into_iter();
        let killed = killed.filter(|pod| node.kill("mainstay-controller", pod).is_ok());
        assert_ne!(killed.count(), 0, "a controller was there to be killed");
        node.stop(Component::ApiServer).await.unwrap();
        assert!(etcd.get().await.is_err());
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

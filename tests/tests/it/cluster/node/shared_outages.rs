//! Stops a component that all tests share. Tests of the cluster run one after the other.

mod soak;

use mainstay_store::UploadOptions;
use mainstay_tests::cluster::member::read_key_space;
use mainstay_tests::cluster::timeline::{self, Timeline};
use mainstay_tests::cluster::{ClusterComponent, eventually};
use serde_json::json;

use super::super::bucket::BackupBucket;
use super::super::harness::{LONGEST_GAP_LABEL, assert_no_write_lost, with_local_namespace};
use super::super::interruptions::{controller_uids, wait_for_pods};

#[tokio::test(flavor = "multi_thread")]
async fn api_server_restart_delays_scaling_but_stops_no_write() {
    with_local_namespace("away", async |stage| {
        let etcd = stage.create_etcd(&stage.etcd_spec(1)).await;
        let first = etcd.wait_for_members(1).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = etcd.start_load().await.unwrap();
        etcd.patch_spec(json!({"replicas": 3})).await.unwrap();
        wait_for_pods(&etcd, 2).await;
        let node = stage.local_node();
        let mut timeline = Timeline::start(
            "the API server",
            "the API server and the controllers are killed while members are added",
        );
        // First the controllers: a leader that cannot renew its Lease exits by itself.
        let killed = controller_uids(stage).await.into_iter();
        let killed = killed.filter(|pod| node.kill_program("mainstay-controller", pod).is_ok());
        assert_ne!(killed.count(), 0, "no controller was killed");
        node.stop(ClusterComponent::ApiServer).await.unwrap();
        assert!(etcd.get().await.is_err());
        let stored =
            async || first[0].sidecar_status().await?["lastDelta"]["lastRevision"].as_i64();
        let then = eventually("a delta snapshot", stored).await.unwrap();
        load.wait_for_writes(100).await.unwrap();
        let later = async || stored().await.filter(|now| *now > then);
        eventually("a later delta snapshot, without the API server", later)
            .await
            .unwrap();
        timeline.record_event("writes since the fault are in the backup");
        node.start(ClusterComponent::ApiServer).await.unwrap();
        let back = async || etcd.get().await.ok();
        eventually("the API server to respond", back).await.unwrap();
        timeline.record_event("the API server is back");
        let members = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        timeline.record_event("all members are ready");
        let written = load.stop().await.unwrap();
        timeline.record_event_after(written.longest_gap(), LONGEST_GAP_LABEL);
        timeline.save(&timeline::timelines_dir().unwrap()).unwrap();
        assert_no_write_lost(&written, &read_key_space(&members).await.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_server_keeps_its_objects_across_a_restart() {
    with_local_namespace("store", async |stage| {
        let BackupBucket { store, .. } = &BackupBucket::open();
        let key = format!("{}/object", stage.namespace);
        let mut upload = store.upload(&key, UploadOptions::create_only()).unwrap();
        upload.write("kept".into()).await.unwrap();
        upload.finish().await.unwrap();

        let node = stage.local_node();
        node.stop(ClusterComponent::Store).await.unwrap();
        node.start(ClusterComponent::Store).await.unwrap();
        let object = eventually("the object", async || store.head(&key).await.ok());
        let object = object.await.unwrap();
        assert_eq!(object.size, 4);
    })
    .await;
}

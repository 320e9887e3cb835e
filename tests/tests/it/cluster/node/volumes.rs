//! Volumes of the test cluster can be shared, become full and be expanded; the disaster tests rely on this.

use std::fs;
use std::io;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use mainstay_tests::cluster::eventually;
use mainstay_tests::cluster::node_services::volumes::MEMORY_CLASS;
use rustix::fs::statvfs;
use serde_json::json;

use super::super::harness::{TestNamespace, with_local_namespace};
use super::super::plain_etcd::{self, NAME, SELECTOR};

const MIB: u64 = 1024 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn job_can_use_the_volume_of_a_stopped_member() {
    with_local_namespace("job", async |stage| {
        plain_etcd::start_plain_etcd(stage, 1).await;
        let sets = stage.api::<StatefulSet>();
        let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
        sets.patch(NAME, &PatchParams::default(), &none)
            .await
            .unwrap();
        let pods = stage.api::<Pod>();
        let away = ListParams::default().labels(SELECTOR);
        eventually("the member to be deleted", async || {
            pods.list(&away).await.ok()?.items.is_empty().then_some(())
        })
        .await
        .unwrap();
        let claim = format!("data-{NAME}-0");
        stage
            .run_job(
                "look",
                "ls /data/etcd/member/wal; cat /bin/sh > /data/left",
                Some(&claim),
            )
            .await;
        let directory = stage
            .local_node()
            .volume_directory(&stage.wait_for_volume(&claim).await)
            .unwrap();
        assert!(directory.join("left").is_file());
        scale_up_again(stage).await;
    })
    .await;
}

async fn scale_up_again(stage: &TestNamespace) {
    let sets = stage.api::<StatefulSet>();
    let one = Patch::Merge(json!({"spec": {"replicas": 1}}));
    sets.patch(NAME, &PatchParams::default(), &one)
        .await
        .unwrap();
    plain_etcd::wait_until_ready(stage, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_can_be_full_and_grows_with_its_pvc() {
    with_local_namespace("grow", async |stage| {
        let claim = |size: &str| {
            json!({
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "data"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": MEMORY_CLASS,
                    "resources": {"requests": {"storage": size}},
                },
            })
        };
        stage.apply::<PersistentVolumeClaim>(&claim("16Mi")).await;
        let volume = stage.wait_for_volume("data").await;
        let directory = stage.local_node().volume_directory(&volume).unwrap();
        let file = directory.join("file");
        let refused = fs::write(&file, vec![1; 20 << 20]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);

        stage.apply::<PersistentVolumeClaim>(&claim("32Mi")).await;
        let claims = stage.api::<PersistentVolumeClaim>();
        eventually("the PVC to report its new size", async || {
            let capacity = claims.get("data").await.ok()?.status?.capacity?;
            (capacity["storage"].0 == "32Mi").then_some(())
        })
        .await
        .unwrap();
        let size = statvfs(&directory).unwrap();
        assert_eq!(size.f_blocks * size.f_frsize, 32 * MIB);
        fs::write(&file, vec![1; 20 << 20]).unwrap();
    })
    .await;
}

//! Volumes of the cluster are shared, fill up and grow, which the disasters to come rely on.

use std::fs;
use std::io;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use mainstay_tests::cluster::attend::volumes::MEMORY;
use mainstay_tests::cluster::eventually;
use rustix::fs::statvfs;
use serde_json::json;

use super::super::members::{self, NAME, SELECTOR};
use super::super::stage::{Stage, on_own_stage};

const MIB: u64 = 1024 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_works_on_the_volume_of_a_member_that_is_away() {
    on_own_stage("job", async |stage| {
        members::start(stage, 1).await;
        let sets = stage.api::<StatefulSet>();
        let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
        sets.patch(NAME, &PatchParams::default(), &none)
            .await
            .unwrap();
        let pods = stage.api::<Pod>();
        let away = ListParams::default().labels(SELECTOR);
        eventually("the member is away", async || {
            pods.list(&away).await.ok()?.items.is_empty().then_some(())
        })
        .await
        .unwrap();
        let claim = format!("data-{NAME}-0");
        stage
            .job(
                "look",
                "ls /data/etcd/member/wal; cat /bin/sh > /data/left",
                Some(&claim),
            )
            .await;
        let directory = stage
            .node()
            .directory_of(&stage.volume_of(&claim).await)
            .unwrap();
        assert!(directory.join("left").is_file());
        members_return(stage).await;
    })
    .await;
}

async fn members_return(stage: &Stage) {
    let sets = stage.api::<StatefulSet>();
    let one = Patch::Merge(json!({"spec": {"replicas": 1}}));
    sets.patch(NAME, &PatchParams::default(), &one)
        .await
        .unwrap();
    members::ready(stage, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_can_be_full_and_grows_with_its_claim() {
    on_own_stage("grow", async |stage| {
        let claim = |size: &str| {
            json!({
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "data"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": MEMORY,
                    "resources": {"requests": {"storage": size}},
                },
            })
        };
        stage.apply::<PersistentVolumeClaim>(&claim("16Mi")).await;
        let volume = stage.volume_of("data").await;
        let directory = stage.node().directory_of(&volume).unwrap();
        let file = directory.join("file");
        let refused = fs::write(&file, vec![1; 20 << 20]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);

        stage.apply::<PersistentVolumeClaim>(&claim("32Mi")).await;
        let claims = stage.api::<PersistentVolumeClaim>();
        eventually("the claim is told that it has grown", async || {
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

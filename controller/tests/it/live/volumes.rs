//! Volumes that grow under running pods.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use mainstay_crds::{ConditionStatus, ConditionType};
use serde_json::json;

use super::faults::rests;
use super::kubelet::Kubelet;
use super::rest::expect_rest;
use super::stage::{Running, Stage};
use super::wire::{Kills, a_few_writes_at_a_time};

/// Creates a storage class for this test alone; returns its name.
async fn storage_class(stage: &Stage, can_grow: bool) -> String {
    let name = format!("of-{}", stage.namespace);
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": name },
        "provisioner": "example.com/none", "allowVolumeExpansion": can_grow,
    });
    let class: StorageClass = serde_json::from_value(class).unwrap();
    let classes = Api::<StorageClass>::all(stage.client.clone());
    classes
        .create(&PostParams::default(), &class)
        .await
        .unwrap();
    name
}

async fn requests(stage: &Stage) -> Vec<String> {
    let claims = stage.api::<PersistentVolumeClaim>();
    let claims = claims.list(&ListParams::default()).await.unwrap();
    let size = |claim: PersistentVolumeClaim| {
        let requests = claim.spec?.resources?.requests?;
        Some(requests.get("storage")?.0.clone())
    };
    claims.into_iter().filter_map(size).collect()
}

async fn uids(stage: &Stage) -> BTreeMap<String, String> {
    let pods = stage
        .api::<Pod>()
        .list(&ListParams::default())
        .await
        .unwrap();
    pods.into_iter()
        .map(|pod| (pod.name_any(), pod.uid().unwrap()))
        .collect()
}

fn template(set: &StatefulSet) -> Option<&str> {
    let claims = set.spec.as_ref()?.volume_claim_templates.as_ref()?;
    let resources = claims.first()?.spec.as_ref()?.resources.as_ref()?;
    Some(&resources.requests.as_ref()?.get("storage")?.0)
}

/// Three members with volumes of 10 GiB that can grow, settled.
async fn elastic(stage: &Stage) -> (Kubelet, Running) {
    let class = storage_class(stage, true).await;
    let kubelet = Kubelet::play(stage);
    let controller = stage.control().await;
    let spec = json!({ "replicas": 3, "storageClass": class, "storageCapacity": "10Gi" });
    stage.create("main", spec).await;
    stage.settled("main").await;
    (kubelet, controller)
}

#[tokio::test]
async fn claims_grow_and_the_set_is_made_again_around_pods_that_notice_nothing() {
    let stage = Stage::set().await;
    let (kubelet, controller) = elastic(&stage).await;
    let (pods, set) = (uids(&stage).await, stage.set_of("main", 3).await);
    assert_eq!(pods.len(), 3);

    let larger = json!({ "spec": { "storageCapacity": "20Gi" } });
    stage.change("main", larger).await;
    let grown = |set: &StatefulSet| template(set) == Some("20Gi");
    let again = stage.until("main", "made again", grown).await;
    assert_ne!(again.uid(), set.uid());
    stage.settled("main").await;
    assert_eq!(requests(&stage).await, ["20Gi"; 3]);
    assert_eq!(uids(&stage).await, pods, "pods were replaced");
    let volumes = ConditionType::DataVolumesReady;
    stage
        .condition("main", volumes, ConditionStatus::True)
        .await;
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn nor_do_pods_notice_when_controllers_are_killed_meanwhile() {
    Box::pin(grow_volumes(Kills::Seldom)).await;
}

pub(super) async fn grow_volumes(kills: Kills) {
    let stage = Stage::with(kills).await;
    let (kubelet, controller) = elastic(&stage).await;
    controller.kill();
    let (pods, set) = (uids(&stage).await, stage.set_of("main", 3).await);
    assert_eq!(pods.len(), 3);

    let larger = json!({ "spec": { "storageCapacity": "20Gi" } });
    stage.change("main", larger).await;
    let is_grown = async || {
        assert_eq!(uids(&stage).await, pods, "pods were replaced");
        let now = stage.api::<StatefulSet>().get_opt("main").await.unwrap();
        let is_again = now.is_some_and(|now| template(&now) == Some("20Gi"));
        is_again && requests(&stage).await == ["20Gi"; 3] && rests(&stage, 3).await
    };
    let lives = a_few_writes_at_a_time(&stage, "all has grown", is_grown).await;
    kills.assert_proven(lives, 2);
    expect_rest(&stage, "main").await;
    let again = stage.set_of("main", 3).await;
    assert_ne!(again.uid(), set.uid());
    assert_eq!(uids(&stage).await, pods, "pods were replaced");
    drop(kubelet);
}

#[tokio::test]
async fn a_class_that_cannot_grow_is_told_and_nothing_is_lost() {
    let stage = Stage::set().await;
    let class = storage_class(&stage, false).await;
    let kubelet = Kubelet::play(&stage);
    let controller = stage.control().await;
    let spec = json!({ "replicas": 1, "storageClass": class, "storageCapacity": "10Gi" });
    stage.create("main", spec).await;
    stage.settled("main").await;
    let set = stage.set_of("main", 1).await;

    let larger = json!({ "spec": { "storageCapacity": "20Gi" } });
    stage.change("main", larger).await;
    let volumes = ConditionType::DataVolumesReady;
    let told = stage
        .condition("main", volumes, ConditionStatus::False)
        .await;
    assert!(told.message.contains("cannot be expanded"), "{told:?}");
    assert_eq!(requests(&stage).await, ["10Gi"]);
    let now = stage.api::<StatefulSet>().get("main").await.unwrap();
    assert_eq!(now.uid(), set.uid(), "the set was made again for nothing");
    drop(kubelet);
    controller.stop().await;
}

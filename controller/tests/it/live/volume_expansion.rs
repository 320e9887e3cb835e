//! Expansion of volumes while pods run.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use mainstay_crds::{ConditionStatus, ConditionType};
use serde_json::json;

use super::fake_kubelet::FakeKubelet;
use super::fault_injection::{KillRate, run_with_kills};
use super::faults::is_settled;
use super::steady_state::assert_settled_idle;
use super::test_env::{RunningController, TestEnv};

/// Creates a storage class for this test alone; returns its name.
async fn create_storage_class(stage: &TestEnv, can_grow: bool) -> String {
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

async fn list_requested_sizes(stage: &TestEnv) -> Vec<String> {
    let pvcs = stage.api::<PersistentVolumeClaim>();
    let pvcs = pvcs.list(&ListParams::default()).await.unwrap();
    let size = |pvc: PersistentVolumeClaim| {
        let requests = pvc.spec?.resources?.requests?;
        Some(requests.get("storage")?.0.clone())
    };
    pvcs.into_iter().filter_map(size).collect()
}

async fn list_pod_uids(stage: &TestEnv) -> BTreeMap<String, String> {
    let pods = stage
        .api::<Pod>()
        .list(&ListParams::default())
        .await
        .unwrap();
    pods.into_iter()
        .map(|pod| (pod.name_any(), pod.uid().unwrap()))
        .collect()
}

fn template_size(set: &StatefulSet) -> Option<&str> {
    let pvcs = set.spec.as_ref()?.volume_claim_templates.as_ref()?;
    let resources = pvcs.first()?.spec.as_ref()?.resources.as_ref()?;
    Some(&resources.requests.as_ref()?.get("storage")?.0)
}

/// Creates three members with expandable volumes of 10 GiB and waits until they are settled.
async fn create_expandable_cluster(stage: &TestEnv) -> (FakeKubelet, RunningController) {
    let class = create_storage_class(stage, true).await;
    let kubelet = FakeKubelet::start(stage);
    let controller = stage.start_controller().await;
    let spec = json!({ "replicas": 3, "storageClass": class, "storageCapacity": "10Gi" });
    stage.create_etcd("main", spec).await;
    stage.wait_settled("main").await;
    (kubelet, controller)
}

#[tokio::test]
async fn pvcs_expand_and_the_set_is_recreated_without_restarting_pods() {
    let stage = TestEnv::start().await;
    let (kubelet, controller) = create_expandable_cluster(&stage).await;
    let (pods, set) = (
        list_pod_uids(&stage).await,
        stage.wait_for_replicas("main", 3).await,
    );
    assert_eq!(pods.len(), 3);

    let larger = json!({ "spec": { "storageCapacity": "20Gi" } });
    stage.patch_etcd("main", larger).await;
    let grown = |set: &StatefulSet| template_size(set) == Some("20Gi");
    let recreated = stage.wait_for("main", "recreated", grown).await;
    assert_ne!(recreated.uid(), set.uid());
    stage.wait_settled("main").await;
    assert_eq!(list_requested_sizes(&stage).await, ["20Gi"; 3]);
    assert_eq!(list_pod_uids(&stage).await, pods, "pods were replaced");
    let volumes = ConditionType::DataVolumesReady;
    stage
        .wait_for_condition("main", volumes, ConditionStatus::True)
        .await;
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn expansion_keeps_pods_running_while_controllers_are_killed() {
    Box::pin(expand_volumes(KillRate::Low)).await;
}

pub(super) async fn expand_volumes(kill_rate: KillRate) {
    let stage = TestEnv::with_kill_rate(kill_rate).await;
    let (kubelet, controller) = create_expandable_cluster(&stage).await;
    controller.kill();
    let (pods, set) = (
        list_pod_uids(&stage).await,
        stage.wait_for_replicas("main", 3).await,
    );
    assert_eq!(pods.len(), 3);

    let larger = json!({ "spec": { "storageCapacity": "20Gi" } });
    stage.patch_etcd("main", larger).await;
    let is_expanded = async || {
        assert_eq!(list_pod_uids(&stage).await, pods, "pods were replaced");
        let now = stage.api::<StatefulSet>().get_opt("main").await.unwrap();
        let is_recreated = now.is_some_and(|now| template_size(&now) == Some("20Gi"));
        is_recreated
            && list_requested_sizes(&stage).await == ["20Gi"; 3]
            && is_settled(&stage, 3).await
    };
    let kills = run_with_kills(&stage, "all volumes are expanded", is_expanded).await;
    kill_rate.assert_enough_kills(kills, 2);
    assert_settled_idle(&stage, "main").await;
    let recreated = stage.wait_for_replicas("main", 3).await;
    assert_ne!(recreated.uid(), set.uid());
    assert_eq!(list_pod_uids(&stage).await, pods, "pods were replaced");
    drop(kubelet);
}

#[tokio::test]
async fn storage_class_without_expansion_is_reported_and_changes_nothing() {
    let stage = TestEnv::start().await;
    let class = create_storage_class(&stage, false).await;
    let kubelet = FakeKubelet::start(&stage);
    let controller = stage.start_controller().await;
    let spec = json!({ "replicas": 1, "storageClass": class, "storageCapacity": "10Gi" });
    stage.create_etcd("main", spec).await;
    stage.wait_settled("main").await;
    let set = stage.wait_for_replicas("main", 1).await;

    let larger = json!({ "spec": { "storageCapacity": "20Gi" } });
    stage.patch_etcd("main", larger).await;
    let volumes = ConditionType::DataVolumesReady;
    let reported = stage
        .wait_for_condition("main", volumes, ConditionStatus::False)
        .await;
    assert!(
        reported.message.contains("cannot be expanded"),
        "{reported:?}"
    );
    assert_eq!(list_requested_sizes(&stage).await, ["10Gi"]);
    let now = stage.api::<StatefulSet>().get("main").await.unwrap();
    assert_eq!(
        now.uid(),
        set.uid(),
        "the StatefulSet was recreated for nothing"
    );
    drop(kubelet);
    controller.stop().await;
}

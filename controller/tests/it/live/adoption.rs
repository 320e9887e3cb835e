//! Adoption of objects that etcd-druid created, without losing a pod.

use std::sync::Mutex;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use mainstay_crds::Etcd;
use serde_json::{Value, json};

use super::cluster::ProxiedCluster;
use super::fake_kubelet::FakeKubelet;
use super::fault_injection::{KillRate, run_with_kills};
use super::faults::{is_settled, list_pod_uids};
use super::steady_state::assert_settled_idle;
use super::test_env::TestEnv;

/// A StatefulSet as etcd-druid renders it.
fn druid_stateful_set(etcd: &Etcd) -> Value {
    let labels = json!({ "app.kubernetes.io/managed-by": "etcd-druid", "app.kubernetes.io/part-of": "main" });
    let mut pod_labels = labels.clone();
    pod_labels["app.kubernetes.io/component"] = json!("etcd-statefulset");
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": { "name": "main", "labels": pod_labels, "ownerReferences": [{
            "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd", "name": "main",
            "uid": etcd.uid().unwrap(), "controller": true, "blockOwnerDeletion": true,
        }] },
        "spec": {
            "replicas": etcd.spec.replicas, "serviceName": "main-peer", "podManagementPolicy": "Parallel",
            "selector": { "matchLabels": labels },
            "updateStrategy": { "type": "RollingUpdate" },
            "template": {
                "metadata": { "labels": pod_labels },
                "spec": {
                    "shareProcessNamespace": true,
                    "containers": [{ "name": "etcd", "image": "wrapper:v0.6.2", "args": ["start-etcd"], "env": [{ "name": "ONLY_THEIRS", "value": "x" }] }],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": { "name": "main" },
                "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "16Gi" } } },
            }],
        },
    })
}

/// Creates it with the field manager of etcd-druid.
async fn create_druid_set(stage: &TestEnv, etcd: &Etcd) {
    let set: StatefulSet = serde_json::from_value(druid_stateful_set(etcd)).unwrap();
    let params = PostParams {
        field_manager: Some("etcd-druid".to_owned()),
        ..PostParams::default()
    };
    stage.api().create(&params, &set).await.unwrap();
}

/// Whether the StatefulSet controller keeps pods when the template changes.
fn is_on_delete(set: &StatefulSet) -> bool {
    let strategy = set.spec.as_ref().unwrap().update_strategy.as_ref();
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete")
}

fn pod_containers(set: &StatefulSet) -> &[Container] {
    let pod = set.spec.as_ref().unwrap().template.spec.as_ref();
    &pod.unwrap().containers
}

fn has_druid_env(container: &Container) -> bool {
    let mut env = container.env.iter().flatten();
    env.any(|env| env.name == "ONLY_THEIRS")
}

#[tokio::test]
async fn etcd_druid_set_is_adopted_and_its_own_fields_are_removed() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let etcd = stage.create_etcd("main", json!({ "replicas": 1 })).await;
    create_druid_set(&stage, &etcd).await;
    let before = stage.wait_for("main-0", "there", |_: &Pod| true).await;

    let controller = stage.start_controller().await;
    let adopted = |set: &StatefulSet| is_on_delete(set) && pod_containers(set).len() == 2;
    let set = stage.wait_for("main", "adopted", adopted).await;
    let etcd = pod_containers(&set).iter().find(|one| one.name == "etcd");
    let etcd = etcd.unwrap().clone();
    let pod = set.spec.unwrap().template.spec.unwrap();
    assert!(!has_druid_env(&etcd), "{etcd:?}");
    assert_ne!(etcd.args, Some(vec!["start-etcd".to_owned()]));
    assert!(!pod.share_process_namespace.unwrap_or(false));
    assert_eq!(
        set.metadata.uid,
        stage
            .api::<StatefulSet>()
            .get("main")
            .await
            .unwrap()
            .metadata
            .uid
    );
    let now = stage.api::<Pod>().get("main-0").await.unwrap();
    assert_eq!(
        now.uid(),
        before.uid(),
        "a pod that may be part of a quorum is not replaced while etcd does not respond"
    );
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn adoption_replaces_each_pod_once_while_controllers_are_killed() {
    Box::pin(adopt_three(KillRate::Low)).await;
}

pub(super) async fn adopt_three(kill_rate: KillRate) {
    let stage = TestEnv::with_kill_rate(kill_rate).await;
    let kubelet = FakeKubelet::start(&stage);
    let proxied = ProxiedCluster::start("main", 3, 3).await;
    proxied.register_pods(&kubelet).await;
    let etcd = stage.create_etcd("main", proxied.spec(3)).await;
    create_druid_set(&stage, &etcd).await;
    stage
        .wait_until("three pods exist", async || {
            list_pod_uids(&stage).await.len() == 3
        })
        .await;
    let (old, set) = (
        list_pod_uids(&stage).await,
        stage.wait_for_replicas("main", 3).await,
    );

    let observed = Mutex::new(old.clone());
    let is_adopted = async || {
        let now = stage.wait_for_replicas("main", 3).await;
        assert_eq!(now.uid(), set.uid(), "the StatefulSet was recreated");
        assert!(
            is_on_delete(&now) || pod_containers(&now) == pod_containers(&set),
            "Kubernetes would replace its pods"
        );
        let now = list_pod_uids(&stage).await;
        observed.lock().unwrap().extend(now.iter().cloned());
        now.len() == 3 && now.is_disjoint(&old) && is_settled(&stage, 3).await
    };
    let kills = run_with_kills(&stage, "the cluster is adopted", is_adopted).await;
    kill_rate.assert_enough_kills(kills, 5);
    assert_settled_idle(&stage, "main").await;
    let now = stage.wait_for_replicas("main", 3).await;
    assert!(!pod_containers(&now).iter().any(has_druid_env));
    assert_eq!(
        observed.lock().unwrap().len(),
        6,
        "a pod was replaced twice"
    );
    assert_eq!(proxied.member_names().await.0.len(), 3);
    drop(kubelet);
}

#[tokio::test]
async fn label_set_by_another_manager_stays() {
    let stage = TestEnv::start().await;
    let controller = stage.start_controller().await;
    stage.create_etcd("main", json!({ "replicas": 1 })).await;
    stage.wait_for_replicas("main", 1).await;
    let label = json!({ "metadata": { "labels": { "team": "blue" } } });
    let sets = stage.api::<StatefulSet>();
    sets.patch("main", &PatchParams::default(), &Patch::Merge(&label))
        .await
        .unwrap();
    stage
        .patch_etcd("main", json!({ "spec": { "etcd": { "quota": "4Gi" } } }))
        .await;
    let is_newer = |set: &StatefulSet| set.metadata.generation.unwrap() > 1;
    let set = stage.wait_for("main", "changed", is_newer).await;
    assert_eq!(set.labels().get("team").map(String::as_str), Some("blue"));
    controller.stop().await;
}

//! Objects of etcd-druid become ours without a pod being lost.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use steward_crds::Etcd;

use super::kubelet::Kubelet;
use super::stage::Stage;

/// A StatefulSet as etcd-druid makes it.
fn theirs(etcd: &Etcd) -> Value {
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
            "replicas": 1, "serviceName": "main-peer", "podManagementPolicy": "Parallel",
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

#[tokio::test]
async fn a_set_of_etcd_druid_is_adopted_and_what_only_it_said_is_gone() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage.client, &stage.namespace);
    let etcd = stage.create("main", json!({ "replicas": 1 })).await;
    let theirs = theirs(&etcd);
    let theirs: StatefulSet = serde_json::from_value(theirs).unwrap();
    let params = PostParams {
        field_manager: Some("etcd-druid".to_owned()),
        ..PostParams::default()
    };
    stage.api().create(&params, &theirs).await.unwrap();
    let before = stage.until("main-0", "there", |_: &Pod| true).await;

    let controller = stage.control().await;
    let adopted = |set: &StatefulSet| {
        let spec = set.spec.as_ref().unwrap();
        let strategy = spec
            .update_strategy
            .as_ref()
            .and_then(|strategy| strategy.type_.as_deref());
        strategy == Some("OnDelete") && spec.template.spec.as_ref().unwrap().containers.len() == 2
    };
    let set = stage.until("main", "adopted", adopted).await;
    let pod = set.spec.unwrap().template.spec.unwrap();
    let etcd = pod
        .containers
        .iter()
        .find(|container| container.name == "etcd")
        .unwrap();
    assert!(
        !etcd
            .env
            .iter()
            .flatten()
            .any(|env| env.name == "ONLY_THEIRS"),
        "{etcd:?}"
    );
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
        "a pod that may have a quorum is not replaced while etcd does not answer"
    );
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn a_label_somebody_else_sets_stays() {
    let stage = Stage::set().await;
    let controller = stage.control().await;
    stage.create("main", json!({ "replicas": 1 })).await;
    stage.set_of("main", 1).await;
    let label = json!({ "metadata": { "labels": { "team": "blue" } } });
    let sets = stage.api::<StatefulSet>();
    sets.patch("main", &PatchParams::default(), &Patch::Merge(&label))
        .await
        .unwrap();
    stage
        .change("main", json!({ "spec": { "etcd": { "quota": "4Gi" } } }))
        .await;
    let is_newer = |set: &StatefulSet| set.metadata.generation.unwrap() > 1;
    let set = stage.until("main", "changed", is_newer).await;
    assert_eq!(set.labels().get("team").map(String::as_str), Some("blue"));
    controller.stop().await;
}

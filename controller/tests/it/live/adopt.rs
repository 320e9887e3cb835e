//! Objects of etcd-druid become ours without a pod being lost.

use std::sync::Mutex;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use mainstay_crds::Etcd;
use serde_json::{Value, json};

use super::cluster::Behind;
use super::faults::{pods, rests};
use super::kubelet::Kubelet;
use super::rest::expect_rest;
use super::stage::Stage;
use super::wire::{Kills, a_few_writes_at_a_time};

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

/// Makes it as etcd-druid would.
async fn make_theirs(stage: &Stage, etcd: &Etcd) {
    let theirs: StatefulSet = serde_json::from_value(theirs(etcd)).unwrap();
    let params = PostParams {
        field_manager: Some("etcd-druid".to_owned()),
        ..PostParams::default()
    };
    stage.api().create(&params, &theirs).await.unwrap();
}

/// Whether Kubernetes leaves pods alone whose template changes.
fn leaves_pods_alone(set: &StatefulSet) -> bool {
    let strategy = set.spec.as_ref().unwrap().update_strategy.as_ref();
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete")
}

/// The containers of its pods.
fn containers(set: &StatefulSet) -> &[Container] {
    let pod = set.spec.as_ref().unwrap().template.spec.as_ref();
    &pod.unwrap().containers
}

fn says_what_only_they_said(container: &Container) -> bool {
    let mut env = container.env.iter().flatten();
    env.any(|env| env.name == "ONLY_THEIRS")
}

#[tokio::test]
async fn a_set_of_etcd_druid_is_adopted_and_what_only_it_said_is_gone() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let etcd = stage.create("main", json!({ "replicas": 1 })).await;
    make_theirs(&stage, &etcd).await;
    let before = stage.until("main-0", "there", |_: &Pod| true).await;

    let controller = stage.control().await;
    let adopted = |set: &StatefulSet| leaves_pods_alone(set) && containers(set).len() == 2;
    let set = stage.until("main", "adopted", adopted).await;
    let etcd = containers(&set).iter().find(|one| one.name == "etcd");
    let etcd = etcd.unwrap().clone();
    let pod = set.spec.unwrap().template.spec.unwrap();
    assert!(!says_what_only_they_said(&etcd), "{etcd:?}");
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
async fn adopters_that_are_killed_replace_each_pod_once() {
    Box::pin(adopt_three(Kills::Seldom)).await;
}

pub(super) async fn adopt_three(kills: Kills) {
    let stage = Stage::with(kills).await;
    let kubelet = Kubelet::play(&stage);
    let behind = Behind::start("main", 3, 3).await;
    behind.settle_in(&kubelet).await;
    let etcd = stage.create("main", behind.spec(3)).await;
    make_theirs(&stage, &etcd).await;
    stage
        .eventually("three pods are there", async || {
            pods(&stage).await.len() == 3
        })
        .await;
    let (old, set) = (pods(&stage).await, stage.set_of("main", 3).await);

    let seen = Mutex::new(old.clone());
    let is_adopted = async || {
        let now = stage.set_of("main", 3).await;
        assert_eq!(now.uid(), set.uid(), "it was made again");
        assert!(
            leaves_pods_alone(&now) || containers(&now) == containers(&set),
            "Kubernetes would replace its pods"
        );
        let now = pods(&stage).await;
        seen.lock().unwrap().extend(now.iter().cloned());
        now.len() == 3 && now.is_disjoint(&old) && rests(&stage, 3).await
    };
    let lives = a_few_writes_at_a_time(&stage, "it is adopted", is_adopted).await;
    kills.assert_proven(lives, 5);
    expect_rest(&stage, "main").await;
    let now = stage.set_of("main", 3).await;
    assert!(!containers(&now).iter().any(says_what_only_they_said));
    assert_eq!(seen.lock().unwrap().len(), 6, "a pod was replaced twice");
    assert_eq!(behind.names().await.0.len(), 3);
    drop(kubelet);
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

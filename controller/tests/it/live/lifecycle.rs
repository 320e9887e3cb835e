//! From a resource to objects and back to nothing.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use mainstay_crds::{ConditionStatus, ConditionType, Etcd};
use serde_json::{Value, json};

use super::kubelet::Kubelet;
use super::stage::Stage;

/// Every part of a cluster of three is there and told of.
async fn expect_whole(stage: &Stage) {
    assert!(stage.api::<ServiceAccount>().get("main").await.is_ok());
    assert!(
        stage
            .api::<Role>()
            .get("druid.gardener.cloud:etcd:main")
            .await
            .is_ok()
    );
    assert!(
        stage
            .api::<RoleBinding>()
            .get("druid.gardener.cloud:etcd:main")
            .await
            .is_ok()
    );
    assert!(stage.api::<Service>().get("main-client").await.is_ok());
    assert!(stage.api::<Service>().get("main-peer").await.is_ok());
    assert_eq!(stage.count::<Lease>().await, 3);
    stage
        .condition("main", ConditionType::Ready, ConditionStatus::True)
        .await;
    stage
        .condition(
            "main",
            ConditionType::AllMembersReady,
            ConditionStatus::True,
        )
        .await;
    stage
        .condition(
            "main",
            ConditionType::AllMembersUpdated,
            ConditionStatus::True,
        )
        .await;
    stage
        .condition(
            "main",
            ConditionType::DataVolumesReady,
            ConditionStatus::True,
        )
        .await;
}

/// Somebody changes the configuration.
async fn scribble(stage: &Stage) {
    let vandal = json!({ "data": { "etcd.conf.yaml": "name: nobody" } });
    stage
        .api::<ConfigMap>()
        .patch(
            "main-config",
            &PatchParams::default(),
            &Patch::Merge(&vandal),
        )
        .await
        .unwrap();
}

/// Somebody deletes a Service, and it comes back.
async fn lose_service(stage: &Stage) {
    stage
        .api::<Service>()
        .delete("main-client", &DeleteParams::default())
        .await
        .unwrap();
    stage
        .until("main-client", "there again", |_: &Service| true)
        .await;
}

async fn repaired(stage: &Stage) -> ConfigMap {
    stage
        .until("main-config", "repaired", |map: &ConfigMap| {
            map.data
                .as_ref()
                .is_some_and(|data| data["etcd.conf.yaml"].contains("etcd-cluster"))
        })
        .await
}

/// What somebody changes or deletes comes back.
async fn vandalise(stage: &Stage) {
    scribble(stage).await;
    lose_service(stage).await;
    repaired(stage).await;
}

#[tokio::test]
async fn changes_by_hand_stay_while_an_annotation_says_so_until_the_spec_changes() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let controller = stage.control().await;
    stage.create("main", json!({ "replicas": 1 })).await;
    stage.settled("main").await;
    let annotate = |value: Value| json!({ "metadata": { "annotations": { "druid.gardener.cloud/disable-etcd-component-protection": value } } });
    stage.change("main", annotate(json!(""))).await;
    stage
        .until("main", "told of it", |etcd: &Etcd| {
            let last = etcd.status.as_ref().unwrap().last_operation.as_ref();
            last.is_some_and(|last| last.description.contains("left alone"))
        })
        .await;

    scribble(&stage).await;
    // Each of these takes a pass, which looks at everything.
    for _ in 0..2 {
        lose_service(&stage).await;
        let map = stage.api::<ConfigMap>().get("main-config").await.unwrap();
        assert_eq!(map.data.unwrap()["etcd.conf.yaml"], "name: nobody");
    }
    let quota = json!({ "spec": { "etcd": { "quota": "4Gi" } } });
    stage.change("main", quota).await;
    let map = repaired(&stage).await.data.unwrap();
    assert!(map["etcd.conf.yaml"].contains("quota-backend-bytes: 4294967296"));

    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn a_resource_becomes_a_cluster_is_repaired_sleeps_wakes_and_goes() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let controller = stage.control().await;
    stage.create("main", json!({ "replicas": 3 })).await;

    // It is made.
    let etcd = stage.settled("main").await;
    assert_eq!(etcd.finalizers(), ["druid.gardener.cloud/etcd-druid"]);
    expect_whole(&stage).await;
    vandalise(&stage).await;

    // It sleeps; volumes and Leases stay.
    stage
        .change("main", json!({ "spec": { "replicas": 0 } }))
        .await;
    stage.set_of("main", 0).await;
    let asleep = stage.settled("main").await;
    assert_eq!(stage.count::<PersistentVolumeClaim>().await, 3);
    assert_eq!(asleep.status.unwrap().ready, Some(true));

    // It wakes with as many members as it had.
    stage
        .change("main", json!({ "spec": { "replicas": 3 } }))
        .await;
    stage.set_of("main", 3).await;

    // It goes; volumes stay.
    stage
        .api::<Etcd>()
        .delete("main", &DeleteParams::default())
        .await
        .unwrap();
    stage
        .eventually("the Etcd is gone", async || {
            stage.api::<Etcd>().get_opt("main").await.unwrap().is_none()
        })
        .await;
    assert_eq!(stage.count::<StatefulSet>().await, 0);
    assert_eq!(stage.count::<Lease>().await, 0);
    assert_eq!(stage.count::<PersistentVolumeClaim>().await, 3);
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn a_spec_is_acted_on_when_somebody_asks_and_left_alone_when_suspended() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let auto = |config: &mut mainstay_controller::config::OperatorConfiguration| {
        config.controllers.etcd.enable_etcd_spec_auto_reconcile = false;
    };
    let controller = stage.control_with(auto).await;
    stage.create("main", json!({ "replicas": 1 })).await;
    stage.settled("main").await;

    stage
        .change("main", json!({ "spec": { "etcd": { "quota": "4Gi" } } }))
        .await;
    let waits = |etcd: &Etcd| {
        let last = etcd
            .status
            .as_ref()
            .and_then(|status| status.last_operation.as_ref());
        last.is_some_and(|last| last.description.contains("waits for the annotation"))
    };
    stage
        .until("main", "waiting for the annotation", waits)
        .await;
    let quota = async || {
        let map = stage.api::<ConfigMap>().get("main-config").await.unwrap();
        map.data.unwrap()["etcd.conf.yaml"].contains("quota-backend-bytes: 4294967296")
    };
    assert!(!quota().await);

    let ask =
        json!({ "metadata": { "annotations": { "druid.gardener.cloud/operation": "reconcile" } } });
    stage.change("main", ask).await;
    stage.eventually("the quota is applied", quota).await;
    stage
        .until("main", "rid of the annotation", |etcd: &Etcd| {
            !etcd
                .annotations()
                .contains_key("druid.gardener.cloud/operation")
        })
        .await;

    let suspend = json!({ "metadata": { "annotations": {
        "druid.gardener.cloud/suspend-etcd-spec-reconcile": "",
        "druid.gardener.cloud/operation": "reconcile",
    } }, "spec": { "replicas": 3 } });
    stage.change("main", suspend).await;
    let suspended = |etcd: &Etcd| {
        let last = etcd
            .status
            .as_ref()
            .and_then(|status| status.last_operation.as_ref());
        last.is_some_and(|last| last.description.contains("suspended"))
    };
    stage.until("main", "suspended", suspended).await;
    stage.set_of("main", 1).await;
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn without_runtime_there_is_configuration_only() {
    let stage = Stage::set().await;
    let controller = stage.control().await;
    stage.create("main", json!({ "replicas": 3 })).await;
    stage.set_of("main", 3).await;
    let off = json!({ "metadata": { "annotations": {
        "druid.gardener.cloud/disable-etcd-runtime-component-creation": "",
    } } });
    stage.change("main", off).await;
    stage.set_of("main", 0).await;
    stage
        .eventually("the Services are gone", async || {
            stage.count::<Service>().await == 0
        })
        .await;
    stage
        .eventually("the Leases are gone", async || {
            stage.count::<Lease>().await == 0
        })
        .await;
    assert!(stage.api::<ConfigMap>().get("main-config").await.is_ok());
    controller.stop().await;
}

//! The life of an Etcd: creation, repair, hibernation and deletion.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use mainstay_crds::{ConditionStatus, ConditionType, Etcd};
use serde_json::{Value, json};

use super::fake_kubelet::FakeKubelet;
use super::test_env::TestEnv;

/// All objects of a cluster of three exist, and its conditions are True.
async fn assert_all_parts(stage: &TestEnv) {
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
    assert_eq!(stage.count_objects::<Lease>().await, 3);
    stage
        .wait_for_condition("main", ConditionType::Ready, ConditionStatus::True)
        .await;
    stage
        .wait_for_condition(
            "main",
            ConditionType::AllMembersReady,
            ConditionStatus::True,
        )
        .await;
    stage
        .wait_for_condition(
            "main",
            ConditionType::AllMembersUpdated,
            ConditionStatus::True,
        )
        .await;
    stage
        .wait_for_condition(
            "main",
            ConditionType::DataVolumesReady,
            ConditionStatus::True,
        )
        .await;
}

/// Overwrites the configuration, as a user would.
async fn overwrite_config(stage: &TestEnv) {
    let tampered = json!({ "data": { "etcd.conf.yaml": "name: changed" } });
    stage
        .api::<ConfigMap>()
        .patch(
            "main-config",
            &PatchParams::default(),
            &Patch::Merge(&tampered),
        )
        .await
        .unwrap();
}

/// Deletes a Service and waits until it is recreated.
async fn delete_service(stage: &TestEnv) {
    stage
        .api::<Service>()
        .delete("main-client", &DeleteParams::default())
        .await
        .unwrap();
    stage
        .wait_for("main-client", "recreated", |_: &Service| true)
        .await;
}

async fn wait_config_repaired(stage: &TestEnv) -> ConfigMap {
    stage
        .wait_for("main-config", "repaired", |map: &ConfigMap| {
            map.data
                .as_ref()
                .is_some_and(|data| data["etcd.conf.yaml"].contains("etcd-cluster"))
        })
        .await
}

/// Changed and deleted objects are repaired.
async fn tamper_and_wait(stage: &TestEnv) {
    overwrite_config(stage).await;
    delete_service(stage).await;
    wait_config_repaired(stage).await;
}

#[tokio::test]
async fn manual_changes_stay_while_annotated_until_the_spec_changes() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let controller = stage.start_controller().await;
    stage.create_etcd("main", json!({ "replicas": 1 })).await;
    stage.wait_settled("main").await;
    let annotate = |value: Value| json!({ "metadata": { "annotations": { "druid.gardener.cloud/disable-etcd-component-protection": value } } });
    stage.patch_etcd("main", annotate(json!(""))).await;
    stage
        .wait_for("main", "reported to keep manual changes", |etcd: &Etcd| {
            let last = etcd.status.as_ref().unwrap().last_operation.as_ref();
            last.is_some_and(|last| {
                last.description
                    .contains("manual changes to its objects are kept")
            })
        })
        .await;

    overwrite_config(&stage).await;
    // Recreating the Service takes a reconcile, which compares all objects.
    for _ in 0..2 {
        delete_service(&stage).await;
        let map = stage.api::<ConfigMap>().get("main-config").await.unwrap();
        assert_eq!(map.data.unwrap()["etcd.conf.yaml"], "name: changed");
    }
    let quota = json!({ "spec": { "etcd": { "quota": "4Gi" } } });
    stage.patch_etcd("main", quota).await;
    let map = wait_config_repaired(&stage).await.data.unwrap();
    assert!(map["etcd.conf.yaml"].contains("quota-backend-bytes: 4294967296"));

    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn cluster_is_created_repaired_hibernated_woken_up_and_deleted() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let controller = stage.start_controller().await;
    stage.create_etcd("main", json!({ "replicas": 3 })).await;

    // Create.
    let etcd = stage.wait_settled("main").await;
    assert_eq!(etcd.finalizers(), ["druid.gardener.cloud/etcd-druid"]);
    assert_all_parts(&stage).await;
    tamper_and_wait(&stage).await;

    // Hibernate; volumes and Leases stay.
    stage
        .patch_etcd("main", json!({ "spec": { "replicas": 0 } }))
        .await;
    stage.wait_for_replicas("main", 0).await;
    let hibernated = stage.wait_settled("main").await;
    assert_eq!(stage.count_objects::<PersistentVolumeClaim>().await, 3);
    assert_eq!(hibernated.status.unwrap().ready, Some(true));

    // Wake up with the same number of members.
    stage
        .patch_etcd("main", json!({ "spec": { "replicas": 3 } }))
        .await;
    stage.wait_for_replicas("main", 3).await;

    // Delete; volumes stay.
    stage
        .api::<Etcd>()
        .delete("main", &DeleteParams::default())
        .await
        .unwrap();
    stage
        .wait_until("the Etcd is deleted", async || {
            stage.api::<Etcd>().get_opt("main").await.unwrap().is_none()
        })
        .await;
    assert_eq!(stage.count_objects::<StatefulSet>().await, 0);
    assert_eq!(stage.count_objects::<Lease>().await, 0);
    assert_eq!(stage.count_objects::<PersistentVolumeClaim>().await, 3);
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn spec_is_applied_on_request_and_ignored_while_suspended() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let auto = |config: &mut mainstay_controller::config::OperatorConfiguration| {
        config.controllers.etcd.enable_etcd_spec_auto_reconcile = false;
    };
    let controller = stage.start_controller_with(auto).await;
    stage.create_etcd("main", json!({ "replicas": 1 })).await;
    stage.wait_settled("main").await;

    stage
        .patch_etcd("main", json!({ "spec": { "etcd": { "quota": "4Gi" } } }))
        .await;
    let waits = |etcd: &Etcd| {
        let last = etcd
            .status
            .as_ref()
            .and_then(|status| status.last_operation.as_ref());
        last.is_some_and(|last| last.description.contains("Spec change pending"))
    };
    stage
        .wait_for("main", "waiting for the annotation", waits)
        .await;
    let quota = async || {
        let map = stage.api::<ConfigMap>().get("main-config").await.unwrap();
        map.data.unwrap()["etcd.conf.yaml"].contains("quota-backend-bytes: 4294967296")
    };
    assert!(!quota().await);

    let request =
        json!({ "metadata": { "annotations": { "druid.gardener.cloud/operation": "reconcile" } } });
    stage.patch_etcd("main", request).await;
    stage.wait_until("the quota is applied", quota).await;
    stage
        .wait_for("main", "without the annotation", |etcd: &Etcd| {
            !etcd
                .annotations()
                .contains_key("druid.gardener.cloud/operation")
        })
        .await;

    let suspend = json!({ "metadata": { "annotations": {
        "druid.gardener.cloud/suspend-etcd-spec-reconcile": "",
        "druid.gardener.cloud/operation": "reconcile",
    } }, "spec": { "replicas": 3 } });
    stage.patch_etcd("main", suspend).await;
    let suspended = |etcd: &Etcd| {
        let last = etcd
            .status
            .as_ref()
            .and_then(|status| status.last_operation.as_ref());
        last.is_some_and(|last| last.description.contains("suspended"))
    };
    stage.wait_for("main", "suspended", suspended).await;
    stage.wait_for_replicas("main", 1).await;
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn disabled_runtime_leaves_configuration_only() {
    let stage = TestEnv::start().await;
    let controller = stage.start_controller().await;
    stage.create_etcd("main", json!({ "replicas": 3 })).await;
    stage.wait_for_replicas("main", 3).await;
    let off = json!({ "metadata": { "annotations": {
        "druid.gardener.cloud/disable-etcd-runtime-component-creation": "",
    } } });
    stage.patch_etcd("main", off).await;
    stage.wait_for_replicas("main", 0).await;
    stage
        .wait_until("the Services are deleted", async || {
            stage.count_objects::<Service>().await == 0
        })
        .await;
    stage
        .wait_until("the Leases are deleted", async || {
            stage.count_objects::<Lease>().await == 0
        })
        .await;
    assert!(stage.api::<ConfigMap>().get("main-config").await.is_ok());
    controller.stop().await;
}

//! The controller writes nothing for a settled cluster.

use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::ResourceExt;
use mainstay_crds::Etcd;
use serde_json::json;

use super::fake_kubelet::FakeKubelet;
use super::test_env::{RunningController, TestEnv};

/// Times in a status have a resolution of one second; this is a little more.
const STATUS_RESOLUTION: Duration = Duration::from_millis(1_100);

#[tokio::test]
async fn settled_cluster_causes_no_writes_even_from_a_new_controller() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let controller = stage.start_controller().await;
    for name in ["main", "events"] {
        let spec = json!({
            "replicas": 3,
            "etcd": { "resources": { "requests": { "cpu": "0.5", "memory": "1024Mi" } } },
        });
        stage.create_etcd(name, spec).await;
    }
    for name in ["main", "events"] {
        stage.wait_settled(name).await;
    }
    stage.wait_until_idle(&controller).await;
    let before = (
        controller.metrics.total_writes(),
        list_versions(&stage).await,
    );
    for _ in 0..3 {
        reconcile_later(&stage, &controller).await;
        assert_eq!(
            controller.metrics.total_writes(),
            before.0,
            "a request was sent"
        );
    }
    assert_eq!(
        list_versions(&stage).await,
        before.1,
        "something changed besides the annotation that triggers a reconcile"
    );

    controller.stop().await;
    assert_new_controller_idle(&stage, &["main", "events"]).await;
    assert_eq!(
        list_versions(&stage).await,
        before.1,
        "a new controller changed something"
    );
    drop(kubelet);
}

/// Reconciles everything again, at a later second.
pub(super) async fn reconcile_later(stage: &TestEnv, controller: &RunningController) {
    tokio::time::sleep(STATUS_RESOLUTION).await;
    stage.reconcile_again(controller).await;
}

/// Starts a controller and asserts that it reconciles these Etcds without a write.
async fn assert_new_controller_idle(stage: &TestEnv, names: &[&str]) {
    let controller = stage.start_controller().await;
    stage
        .wait_until("the new controller has reconciled them", async || {
            let text = controller.metrics.render().unwrap();
            let line = |name: &&str| format!(r#"mainstay_etcd_generation_lag{{etcd="{name}""#);
            names.iter().map(line).all(|line| text.contains(&line))
        })
        .await;
    stage.wait_until_idle(&controller).await;
    assert_eq!(
        controller.metrics.total_writes(),
        0,
        "a new controller wrote: {}",
        controller.metrics.render().unwrap()
    );
    controller.stop().await;
}

/// Waits until a controller is idle, then asserts that a new one writes nothing.
pub(super) async fn assert_nothing_to_write(stage: &TestEnv) {
    let controller = stage.start_controller().await;
    stage.wait_until_idle(&controller).await;
    controller.stop().await;
    assert_new_controller_idle(stage, &["main"]).await;
}

/// Like [`assert_nothing_to_write`], for an Etcd that must settle first.
pub(super) async fn assert_settled_idle(stage: &TestEnv, name: &str) {
    let controller = stage.start_controller().await;
    stage.wait_settled(name).await;
    stage.wait_until_idle(&controller).await;
    controller.stop().await;
    assert_new_controller_idle(stage, &[name]).await;
}

/// Values that change when an Etcd or its StatefulSet is written. Annotations of the Etcd, which tests set, are left out.
async fn list_versions(stage: &TestEnv) -> Vec<String> {
    let mut versions = Vec::new();
    for name in ["main", "events"] {
        let etcd = stage.get_etcd(name).await;
        let status = serde_json::to_string(&etcd.status).unwrap();
        versions.push(format!("{:?} {status}", etcd.metadata.generation));
        versions.push(
            stage
                .api::<StatefulSet>()
                .get(name)
                .await
                .unwrap()
                .resource_version()
                .unwrap(),
        );
    }
    versions
}

#[tokio::test]
async fn unreadable_etcd_does_not_block_the_others() {
    let stage = TestEnv::start().await;
    let controller = stage.start_controller().await;
    stage
        .create_etcd(
            "odd",
            json!({ "storageCapacity": "1Gi", "backup": { "deltaSnapshotPeriod": "99999999999h",
        "store": { "prefix": "p", "provider": "aws" } } }),
        )
        .await;
    stage.create_etcd("main", json!({ "replicas": 1 })).await;
    stage.wait_for_replicas("main", 1).await;
    let is_reported = |etcd: &Etcd| {
        let errors = etcd
            .status
            .as_ref()
            .and_then(|status| status.last_errors.as_ref());
        errors.is_some_and(|errors| errors[0].description.contains("deltaSnapshotPeriod"))
    };
    stage
        .wait_for("odd", "reported as invalid", is_reported)
        .await;
    controller.stop().await;
}

//! A cluster at rest is not written to.

use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::ResourceExt;
use mainstay_crds::Etcd;
use serde_json::json;

use super::kubelet::FakeKubelet;
use super::stage::{RunningController, TestEnv};

/// Statuses tell moments by the second.
const STATUS_RESOLUTION: Duration = Duration::from_millis(1_100);

#[tokio::test]
async fn at_rest_nothing_is_written_and_a_new_controller_writes_nothing_either() {
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
    let before = (controller.metrics.total_writes(), list_versions(&stage).await);
    for _ in 0..3 {
        reconcile_later(&stage, &controller).await;
        assert_eq!(controller.metrics.total_writes(), before.0, "something was sent");
    }
    assert_eq!(
        list_versions(&stage).await,
        before.1,
        "something changed but what asks for another reconcile"
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

/// Lets everything be reconciled at another moment.
pub(super) async fn reconcile_later(stage: &TestEnv, controller: &RunningController) {
    tokio::time::sleep(STATUS_RESOLUTION).await;
    stage.reconcile_again(controller).await;
}

/// A controller that begins now looks at these and finds nothing to write.
async fn assert_new_controller_idle(stage: &TestEnv, names: &[&str]) {
    let controller = stage.start_controller().await;
    stage
        .wait_until("the new controller has looked at them", async || {
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

/// Waits until a controller has nothing to write any more; then the next one has nothing to write either.
pub(super) async fn assert_nothing_to_write(stage: &TestEnv) {
    let controller = stage.start_controller().await;
    stage.wait_until_idle(&controller).await;
    controller.stop().await;
    assert_new_controller_idle(stage, &["main"]).await;
}

/// The same for an Etcd that is to be settled first.
pub(super) async fn assert_settled_idle(stage: &TestEnv, name: &str) {
    let controller = stage.start_controller().await;
    stage.wait_settled(name).await;
    stage.wait_until_idle(&controller).await;
    controller.stop().await;
    assert_new_controller_idle(stage, &[name]).await;
}

/// What changes when a resource or its set is written; what a test says by annotations counts for nothing.
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
async fn an_unreadable_resource_stops_nobody_else() {
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
    let told = |etcd: &Etcd| {
        let errors = etcd
            .status
            .as_ref()
            .and_then(|status| status.last_errors.as_ref());
        errors.is_some_and(|errors| errors[0].description.contains("deltaSnapshotPeriod"))
    };
    stage.wait_for("odd", "told what is wrong", told).await;
    controller.stop().await;
}

//! A cluster at rest is not written to.

use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::ResourceExt;
use mainstay_crds::Etcd;
use serde_json::json;

use super::kubelet::Kubelet;
use super::stage::{Running, Stage};

/// Statuses tell moments by the second.
const A_SECOND: Duration = Duration::from_millis(1_100);

#[tokio::test]
async fn at_rest_nothing_is_written_and_a_new_controller_writes_nothing_either() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let controller = stage.control().await;
    for name in ["main", "events"] {
        let spec = json!({
            "replicas": 3,
            "etcd": { "resources": { "requests": { "cpu": "0.5", "memory": "1024Mi" } } },
        });
        stage.create(name, spec).await;
    }
    for name in ["main", "events"] {
        stage.settled(name).await;
    }
    stage.at_rest(&controller).await;
    let before = (controller.metrics.writes(), versions(&stage).await);
    for _ in 0..3 {
        later(&stage, &controller).await;
        assert_eq!(controller.metrics.writes(), before.0, "something was sent");
    }
    assert_eq!(
        versions(&stage).await,
        before.1,
        "something changed but what asks for another reconcile"
    );

    controller.stop().await;
    a_new_controller_writes_nothing(&stage, &["main", "events"]).await;
    assert_eq!(
        versions(&stage).await,
        before.1,
        "a new controller changed something"
    );
    drop(kubelet);
}

/// Lets everything be reconciled at another moment.
pub(super) async fn later(stage: &Stage, controller: &Running) {
    tokio::time::sleep(A_SECOND).await;
    stage.look_again(controller).await;
}

/// A controller that begins now looks at these and finds nothing to write.
async fn a_new_controller_writes_nothing(stage: &Stage, names: &[&str]) {
    let controller = stage.control().await;
    stage
        .eventually("the new controller has looked at them", async || {
            let text = controller.metrics.render().unwrap();
            let line = |name: &&str| format!(r#"mainstay_etcd_generation_lag{{etcd="{name}""#);
            names.iter().map(line).all(|line| text.contains(&line))
        })
        .await;
    stage.at_rest(&controller).await;
    assert_eq!(
        controller.metrics.writes(),
        0,
        "a new controller wrote: {}",
        controller.metrics.render().unwrap()
    );
    controller.stop().await;
}

/// Waits until a controller has nothing to write any more; then the next one has nothing to write either.
pub(super) async fn nothing_is_left_to_write(stage: &Stage) {
    let controller = stage.control().await;
    stage.at_rest(&controller).await;
    controller.stop().await;
    a_new_controller_writes_nothing(stage, &["main"]).await;
}

/// The same for an Etcd that is to be settled first.
pub(super) async fn expect_rest(stage: &Stage, name: &str) {
    let controller = stage.control().await;
    stage.settled(name).await;
    stage.at_rest(&controller).await;
    controller.stop().await;
    a_new_controller_writes_nothing(stage, &[name]).await;
}

/// What changes when a resource or its set is written; what a test says by annotations counts for nothing.
async fn versions(stage: &Stage) -> Vec<String> {
    let mut versions = Vec::new();
    for name in ["main", "events"] {
        let etcd = stage.etcd(name).await;
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
    let stage = Stage::set().await;
    let controller = stage.control().await;
    stage
        .create(
            "odd",
            json!({ "storageCapacity": "1Gi", "backup": { "deltaSnapshotPeriod": "99999999999h",
        "store": { "prefix": "p", "provider": "aws" } } }),
        )
        .await;
    stage.create("main", json!({ "replicas": 1 })).await;
    stage.set_of("main", 1).await;
    let told = |etcd: &Etcd| {
        let errors = etcd
            .status
            .as_ref()
            .and_then(|status| status.last_errors.as_ref());
        errors.is_some_and(|errors| errors[0].description.contains("deltaSnapshotPeriod"))
    };
    stage.until("odd", "told what is wrong", told).await;
    controller.stop().await;
}

//! A cluster at rest is not written to.

use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::ResourceExt;
use serde_json::json;
use steward_crds::Etcd;

use super::kubelet::Kubelet;
use super::recovery::passes;
use super::stage::Stage;

#[tokio::test]
async fn at_rest_nothing_is_written_and_a_new_controller_writes_nothing_either() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage.client, &stage.namespace);
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
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(versions(&stage).await, before.1, "something was written");
    assert_eq!(controller.metrics.writes(), before.0, "something was sent");

    controller.stop().await;
    let controller = stage.control().await;
    stage
        .eventually("the new controller has looked at both", async || {
            let text = controller.metrics.render().unwrap();
            text.contains(r#"steward_etcd_generation_lag{etcd="events""#)
                && text.contains(r#"steward_etcd_generation_lag{etcd="main""#)
        })
        .await;
    assert_eq!(
        versions(&stage).await,
        before.1,
        "a new controller changed something"
    );
    assert_eq!(
        controller.metrics.writes(),
        0,
        "a new controller wrote: {}",
        controller.metrics.render().unwrap()
    );
    drop(kubelet);
    controller.stop().await;
}

/// A controller comes to rest with an Etcd, and the next one has nothing to write.
pub(super) async fn expect_rest(stage: &Stage, name: &str) {
    let controller = stage.control().await;
    stage.settled(name).await;
    stage.at_rest(&controller).await;
    controller.stop().await;
    let controller = stage.control().await;
    stage
        .eventually("the next controller has looked", async || {
            passes(&controller.metrics) > 0
        })
        .await;
    stage.at_rest(&controller).await;
    assert_eq!(
        controller.metrics.writes(),
        0,
        "the next controller wrote: {}",
        controller.metrics.render().unwrap()
    );
    controller.stop().await;
}

async fn versions(stage: &Stage) -> Vec<String> {
    let mut versions = Vec::new();
    for name in ["main", "events"] {
        versions.push(stage.etcd(name).await.resource_version().unwrap());
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

//! The API server is gone for a while, and comes back.

use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::json;
use tokio::time::sleep;

use super::kubelet::Kubelet;
use super::lead::elected;
use super::rest::later;
use super::stage::Stage;

#[tokio::test]
async fn an_api_server_that_restarts_in_the_middle_of_changes_delays_them_and_no_more() {
    let mut stage = Stage::alone().await;
    let kubelet = Kubelet::play(&stage);
    let controller = stage.control().await;
    stage.create("main", json!({ "replicas": 3 })).await;
    for moment in [50, 400, 900] {
        sleep(Duration::from_millis(moment)).await;
        stage.server.stop();
        stage.server.restart().await;
    }
    stage.settled("main").await;
    for replicas in [0, 3] {
        let patch = json!({ "spec": { "replicas": replicas } });
        stage.change("main", patch).await;
        sleep(Duration::from_millis(100)).await;
        stage.server.stop();
        sleep(Duration::from_secs(2)).await;
        stage.server.restart().await;
        stage.set_of("main", replicas).await;
        stage.settled("main").await;
    }
    assert_eq!(stage.count::<StatefulSet>().await, 1);
    assert_eq!(stage.count::<Lease>().await, 3);
    // Watches come back one after the other, each after a pause of its own, list everything, and may have news.
    stage.at_rest(&controller).await;
    let writes = controller.metrics.writes();
    for _ in 0..3 {
        later(&stage, &controller).await;
        assert_eq!(controller.metrics.writes(), writes, "it writes at rest");
    }
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn a_leader_that_cannot_renew_its_lease_ends_and_the_next_one_carries_on() {
    let mut stage = Stage::alone().await;
    let kubelet = Kubelet::play(&stage);
    let first = stage.control_with(elected).await;
    stage.create("main", json!({ "replicas": 1 })).await;
    stage.settled("main").await;
    stage.server.stop();
    let ended = tokio::time::timeout(Duration::from_mins(1), first.ended());
    let error = ended.await.expect("it ends in time").expect_err("an error");
    assert!(
        error.to_string().contains("leadership was lost"),
        "{error:#}"
    );
    stage.server.restart().await;
    let second = stage.control_with(elected).await;
    stage
        .change("main", json!({ "spec": { "replicas": 0 } }))
        .await;
    stage.set_of("main", 0).await;
    stage.settled("main").await;
    drop(kubelet);
    second.stop().await;
}

//! The API server is unavailable for a while.

use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::json;
use tokio::time::sleep;

use super::fake_kubelet::FakeKubelet;
use super::leader_election::enable_election;
use super::steady_state::reconcile_later;
use super::test_env::TestEnv;

#[tokio::test]
async fn api_server_restart_only_delays_running_changes() {
    let mut stage = TestEnv::start_dedicated().await;
    let kubelet = FakeKubelet::start(&stage);
    let controller = stage.start_controller().await;
    stage.create_etcd("main", json!({ "replicas": 3 })).await;
    for moment in [50, 400, 900] {
        sleep(Duration::from_millis(moment)).await;
        stage.server.stop();
        stage.server.restart().await;
    }
    stage.wait_settled("main").await;
    for replicas in [0, 3] {
        let patch = json!({ "spec": { "replicas": replicas } });
        stage.patch_etcd("main", patch).await;
        sleep(Duration::from_millis(100)).await;
        stage.server.stop();
        sleep(Duration::from_secs(2)).await;
        stage.server.restart().await;
        stage.wait_for_replicas("main", replicas).await;
        stage.wait_settled("main").await;
    }
    assert_eq!(stage.count_objects::<StatefulSet>().await, 1);
    assert_eq!(stage.count_objects::<Lease>().await, 3);
    // Each watch reconnects after its own backoff, lists everything, and may deliver changes.
    stage.wait_until_idle(&controller).await;
    let writes = controller.metrics.total_writes();
    for _ in 0..3 {
        reconcile_later(&stage, &controller).await;
        assert_eq!(
            controller.metrics.total_writes(),
            writes,
            "it writes while idle"
        );
    }
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn leader_that_cannot_renew_its_lease_exits_and_the_next_takes_over() {
    let mut stage = TestEnv::start_dedicated().await;
    let kubelet = FakeKubelet::start(&stage);
    let first = stage.start_controller_with(enable_election).await;
    stage.create_etcd("main", json!({ "replicas": 1 })).await;
    stage.wait_settled("main").await;
    stage.server.stop();
    let ended = tokio::time::timeout(Duration::from_mins(1), first.wait());
    let error = ended.await.expect("it ends in time").expect_err("an error");
    assert!(
        error.to_string().contains("leadership was lost"),
        "{error:#}"
    );
    stage.server.restart().await;
    let second = stage.start_controller_with(enable_election).await;
    stage
        .patch_etcd("main", json!({ "spec": { "replicas": 0 } }))
        .await;
    stage.wait_for_replicas("main", 0).await;
    stage.wait_settled("main").await;
    drop(kubelet);
    second.stop().await;
}

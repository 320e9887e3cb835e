//! Scale-in: members are removed only while the others keep quorum.

use mainstay_crds::Etcd;
use serde_json::json;

use super::cluster::start_settled_three;
use super::test_env::TestEnv;

/// Description of the last operation.
fn last_operation_description(etcd: &Etcd) -> &str {
    let status = etcd.status.as_ref();
    let last = status.and_then(|status| status.last_operation.as_ref());
    last.map_or("", |last| &last.description)
}

#[tokio::test]
async fn removal_that_would_lose_quorum_is_refused_until_it_is_safe() {
    let stage = TestEnv::start().await;
    let (kubelet, mut proxied, controller) = start_settled_three(&stage).await;

    proxied.cluster.members[0].kill();
    proxied.cluster.wait_for_new_leader(0).await;
    proxied.register_pods(&kubelet).await;
    let fewer = json!({ "spec": proxied.spec(1) });
    stage.patch_etcd("main", fewer).await;
    let reason = "Blocked: removing main-2 would lose quorum, 1 of 2 remaining members healthy";
    let is_refused = |etcd: &Etcd| last_operation_description(etcd).contains(reason);
    stage.wait_for("main", "refused", is_refused).await;
    stage.wait_until_idle(&controller).await;
    let (voters, learners) = proxied.member_names().await;
    assert_eq!(voters, ["main-0", "main-1", "main-2"]);
    assert!(learners.is_empty(), "{learners:?}");
    stage.wait_for_replicas("main", 3).await;

    proxied.cluster.members[0].restart().await;
    stage.wait_for_replicas("main", 1).await;
    stage.wait_settled("main").await;
    assert_eq!(proxied.member_names().await.0, ["main-0"]);
    controller.stop().await;
}

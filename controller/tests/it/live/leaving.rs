//! Members that leave, when the others can do without them.

use mainstay_crds::Etcd;
use serde_json::json;

use super::cluster::start_settled_three;
use super::stage::TestEnv;

/// What the controller says of its last step.
fn last_operation_description(etcd: &Etcd) -> &str {
    let status = etcd.status.as_ref();
    let last = status.and_then(|status| status.last_operation.as_ref());
    last.map_or("", |last| &last.description)
}

#[tokio::test]
async fn a_removal_that_costs_the_quorum_is_refused_with_its_reason_until_it_is_safe() {
    let stage = TestEnv::start().await;
    let (kubelet, mut behind, controller) = start_settled_three(&stage).await;

    behind.cluster.members[0].kill();
    behind.cluster.wait_for_new_leader(0).await;
    behind.register_pods(&kubelet).await;
    let fewer = json!({ "spec": { "replicas": 1 } });
    stage.patch_etcd("main", fewer).await;
    let reason =
        "refuses to remove main-2: 1 of the 2 members left would be healthy, which is no quorum";
    let is_refused = |etcd: &Etcd| last_operation_description(etcd).contains(reason);
    stage.wait_for("main", "refused", is_refused).await;
    stage.wait_until_idle(&controller).await;
    let (voters, learners) = behind.member_names().await;
    assert_eq!(voters, ["main-0", "main-1", "main-2"]);
    assert!(learners.is_empty(), "{learners:?}");
    stage.wait_for_replicas("main", 3).await;

    behind.cluster.members[0].restart().await;
    stage.wait_for_replicas("main", 1).await;
    stage.wait_settled("main").await;
    assert_eq!(behind.member_names().await.0, ["main-0"]);
    controller.stop().await;
}

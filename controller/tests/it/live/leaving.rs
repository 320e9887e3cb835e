//! Members that leave, when the others can do without them.

use mainstay_crds::Etcd;
use serde_json::json;

use super::cluster::settled_three;
use super::stage::Stage;

/// What the controller says of its last step.
fn says(etcd: &Etcd) -> &str {
    let status = etcd.status.as_ref();
    let last = status.and_then(|status| status.last_operation.as_ref());
    last.map_or("", |last| &last.description)
}

#[tokio::test]
async fn a_removal_that_costs_the_quorum_is_refused_with_its_reason_until_it_is_safe() {
    let stage = Stage::set().await;
    let (kubelet, mut behind, controller) = settled_three(&stage).await;

    behind.cluster.members[0].kill();
    behind.cluster.leader_after(0).await;
    behind.settle_in(&kubelet).await;
    let fewer = json!({ "spec": { "replicas": 1 } });
    stage.change("main", fewer).await;
    let reason =
        "refuses to remove main-2: 1 of the 2 members left would be healthy, which is no quorum";
    let is_refused = |etcd: &Etcd| says(etcd).contains(reason);
    stage.until("main", "refused", is_refused).await;
    stage.at_rest(&controller).await;
    let (voters, learners) = behind.names().await;
    assert_eq!(voters, ["main-0", "main-1", "main-2"]);
    assert!(learners.is_empty(), "{learners:?}");
    stage.set_of("main", 3).await;

    behind.cluster.members[0].restart().await;
    stage.set_of("main", 1).await;
    stage.settled("main").await;
    assert_eq!(behind.names().await.0, ["main-0"]);
    controller.stop().await;
}

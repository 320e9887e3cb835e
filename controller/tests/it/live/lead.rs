//! Two controllers, one of which acts.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use steward_controller::config::OperatorConfiguration;

use super::stage::Stage;

fn elected(config: &mut OperatorConfiguration) {
    let election = &mut config.leader_election;
    election.enabled = true;
    election.lease_duration = Duration::from_secs(4);
    election.renew_deadline = Duration::from_secs(3);
    election.retry_period = Duration::from_millis(500);
}

#[tokio::test]
async fn one_acts_and_the_other_takes_over_when_it_is_killed() {
    let stage = Stage::set().await;
    let first = stage.control_with(elected).await;
    stage.create("one", json!({ "replicas": 1 })).await;
    stage.set_of("one", 1).await;
    let second = stage.control_with(elected).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(second.metrics.writes(), 0, "the second one acted too");

    first.kill();
    stage.create("two", json!({ "replicas": 1 })).await;
    stage.set_of("two", 1).await;
    assert!(second.metrics.writes() > 0);
    second.stop().await;
}

#[tokio::test]
async fn a_controller_whose_lease_was_taken_ends_by_itself() {
    let stage = Stage::set().await;
    let controller = stage.control_with(elected).await;
    stage.create("one", json!({ "replicas": 1 })).await;
    stage.set_of("one", 1).await;
    let thief = json!({ "spec": { "holderIdentity": "somebody", "leaseDurationSeconds": 3600 } });
    let leases = stage.api::<Lease>();
    leases
        .patch(
            "druid-leader-election",
            &PatchParams::default(),
            &Patch::Merge(&thief),
        )
        .await
        .unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(30), controller.ended())
        .await
        .expect("it ends in time");
    let error = ended.expect_err("an end that is an error");
    assert!(
        error.to_string().contains("leadership was lost"),
        "{error:#}"
    );
}

//! Members that come, one at a time, whoever is killed meanwhile.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::cluster::Behind;
use super::faults::rests;
use super::kubelet::Kubelet;
use super::rest::expect_rest;
use super::stage::Stage;
use super::wire::{Kills, a_few_writes_at_a_time};

/// Starts the servers of members that are added, until dropped.
struct Node(JoinHandle<()>);

impl Node {
    fn run(behind: &Arc<Mutex<Behind>>, kubelet: &Arc<Kubelet>) -> Self {
        let (behind, kubelet) = (Arc::clone(behind), Arc::clone(kubelet));
        Self(tokio::spawn(async move {
            loop {
                behind.lock().await.join(&kubelet).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How many pods there are to be.
async fn size(stage: &Stage) -> usize {
    let set = stage.api::<StatefulSet>().get("main").await.unwrap();
    let replicas = set.spec.unwrap().replicas.unwrap();
    replicas.try_into().unwrap()
}

/// Who votes. Nobody comes before the one before it votes, and nobody is a member before its pod is asked for.
async fn voters(stage: &Stage, behind: &Mutex<Behind>) -> Vec<String> {
    let before = size(stage).await;
    let (voters, learners) = behind.lock().await.names().await;
    let after = size(stage).await;
    assert!(learners.len() <= 1, "{learners:?} came at once");
    assert!(before <= voters.len() + 1, "{before} pods for {voters:?}");
    assert!(
        voters.len() + learners.len() <= after,
        "{after} pods for {voters:?} and {learners:?}"
    );
    voters
}

#[tokio::test]
async fn a_cluster_grows_by_one_member_after_the_other_whoever_is_killed() {
    grow_to_three(Kills::Seldom).await;
}

pub(super) async fn grow_to_three(kills: Kills) {
    let stage = Stage::with(kills).await;
    let kubelet = Arc::new(Kubelet::play(&stage));
    let behind = Behind::start("main", 1, 3).await;
    behind.settle_in(&kubelet).await;
    let controller = stage.control().await;
    stage.create("main", behind.spec(1)).await;
    stage.settled("main").await;
    controller.kill();
    kubelet.order(|orders| {
        let later = ["main-1".to_owned(), "main-2".to_owned()];
        orders.idle.extend(later);
    });
    let behind = Arc::new(Mutex::new(behind));
    let node = Node::run(&behind, &kubelet);

    let more = json!({ "spec": { "replicas": 3 } });
    stage.change("main", more).await;
    let all = ["main-0", "main-1", "main-2"];
    let is_whole = async || voters(&stage, &behind).await == all && rests(&stage, 3).await;
    let lives = a_few_writes_at_a_time(&stage, "all vote", is_whole).await;
    kills.assert_proven(lives, 5);
    expect_rest(&stage, "main").await;
    assert_eq!(voters(&stage, &behind).await, all);
    drop(node);
}

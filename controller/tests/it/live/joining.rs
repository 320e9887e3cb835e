//! Members that come, one at a time, whoever is killed meanwhile.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::cluster::ProxiedCluster;
use super::faults::is_settled;
use super::kubelet::FakeKubelet;
use super::rest::assert_settled_idle;
use super::stage::TestEnv;
use super::wire::{KillRate, run_with_kills};

/// Starts the servers of members that are added, until dropped.
struct MemberStarter(JoinHandle<()>);

impl MemberStarter {
    fn start(behind: &Arc<Mutex<ProxiedCluster>>, kubelet: &Arc<FakeKubelet>) -> Self {
        let (behind, kubelet) = (Arc::clone(behind), Arc::clone(kubelet));
        Self(tokio::spawn(async move {
            loop {
                behind.lock().await.start_added_member(&kubelet).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }))
    }
}

impl Drop for MemberStarter {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How many pods there are to be.
async fn desired_replicas(stage: &TestEnv) -> usize {
    let set = stage.api::<StatefulSet>().get("main").await.unwrap();
    let replicas = set.spec.unwrap().replicas.unwrap();
    replicas.try_into().unwrap()
}

/// Who votes. Nobody comes before the one before it votes, and nobody is a member before its pod is asked for.
async fn check_voters(stage: &TestEnv, behind: &Mutex<ProxiedCluster>) -> Vec<String> {
    let before = desired_replicas(stage).await;
    let (voters, learners) = behind.lock().await.member_names().await;
    let after = desired_replicas(stage).await;
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
    scale_out_to_three(KillRate::Low).await;
}

pub(super) async fn scale_out_to_three(kill_rate: KillRate) {
    let stage = TestEnv::with_kill_rate(kill_rate).await;
    let kubelet = Arc::new(FakeKubelet::start(&stage));
    let behind = ProxiedCluster::start("main", 1, 3).await;
    behind.register_pods(&kubelet).await;
    let controller = stage.start_controller().await;
    stage.create_etcd("main", behind.spec(1)).await;
    stage.wait_settled("main").await;
    controller.kill();
    kubelet.configure(|behavior| {
        let later = ["main-1".to_owned(), "main-2".to_owned()];
        behavior.ignored_pods.extend(later);
    });
    let behind = Arc::new(Mutex::new(behind));
    let node = MemberStarter::start(&behind, &kubelet);

    let more = json!({ "spec": { "replicas": 3 } });
    stage.patch_etcd("main", more).await;
    let all = ["main-0", "main-1", "main-2"];
    let is_whole = async || check_voters(&stage, &behind).await == all && is_settled(&stage, 3).await;
    let lives = run_with_kills(&stage, "all vote", is_whole).await;
    kill_rate.assert_enough_kills(lives, 5);
    assert_settled_idle(&stage, "main").await;
    assert_eq!(check_voters(&stage, &behind).await, all);
    drop(node);
}

//! Scale-out: members join one at a time, also when controllers are killed.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::cluster::ProxiedCluster;
use super::fake_kubelet::FakeKubelet;
use super::fault_injection::{KillRate, run_with_kills};
use super::faults::is_settled;
use super::steady_state::assert_settled_idle;
use super::test_env::TestEnv;

/// Starts the server of every added member, until dropped.
struct MemberStarter(JoinHandle<()>);

impl MemberStarter {
    fn start(proxied: &Arc<Mutex<ProxiedCluster>>, kubelet: &Arc<FakeKubelet>) -> Self {
        let (proxied, kubelet) = (Arc::clone(proxied), Arc::clone(kubelet));
        Self(tokio::spawn(async move {
            loop {
                proxied.lock().await.start_added_member(&kubelet).await;
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

/// Replicas of the StatefulSet.
async fn desired_replicas(stage: &TestEnv) -> usize {
    let set = stage.api::<StatefulSet>().get("main").await.unwrap();
    let replicas = set.spec.unwrap().replicas.unwrap();
    replicas.try_into().unwrap()
}

/// Names of the voters. Asserts that a member joins only after the previous one votes, and not before its pod is requested.
async fn check_voters(stage: &TestEnv, proxied: &Mutex<ProxiedCluster>) -> Vec<String> {
    let before = desired_replicas(stage).await;
    let (voters, learners) = proxied.lock().await.member_names().await;
    let after = desired_replicas(stage).await;
    assert!(learners.len() <= 1, "{learners:?} joined at once");
    assert!(before <= voters.len() + 1, "{before} pods for {voters:?}");
    assert!(
        voters.len() + learners.len() <= after,
        "{after} pods for {voters:?} and {learners:?}"
    );
    voters
}

#[tokio::test]
async fn cluster_scales_out_one_member_at_a_time_despite_controller_kills() {
    scale_out_to_three(KillRate::Low).await;
}

pub(super) async fn scale_out_to_three(kill_rate: KillRate) {
    let stage = TestEnv::with_kill_rate(kill_rate).await;
    let kubelet = Arc::new(FakeKubelet::start(&stage));
    let proxied = ProxiedCluster::start("main", 1, 3).await;
    proxied.register_pods(&kubelet).await;
    let controller = stage.start_controller().await;
    stage.create_etcd("main", proxied.spec(1)).await;
    stage.wait_settled("main").await;
    controller.kill();
    let more = json!({ "spec": proxied.spec(3) });
    kubelet.configure(|behavior| {
        let later = ["main-1".to_owned(), "main-2".to_owned()];
        behavior.ignored_pods.extend(later);
    });
    let proxied = Arc::new(Mutex::new(proxied));
    let node = MemberStarter::start(&proxied, &kubelet);

    stage.patch_etcd("main", more).await;
    let all = ["main-0", "main-1", "main-2"];
    let is_whole =
        async || check_voters(&stage, &proxied).await == all && is_settled(&stage, 3).await;
    let kills = run_with_kills(&stage, "all members vote", is_whole).await;
    kill_rate.assert_enough_kills(kills, 5);
    assert_settled_idle(&stage, "main").await;
    assert_eq!(check_voters(&stage, &proxied).await, all);
    drop(node);
}

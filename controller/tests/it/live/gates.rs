//! What has to be before a change: a full snapshot, and an etcd that may follow the one that runs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::ResourceExt;
use mainstay_crds::{Etcd, OperationState};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::cluster::ProxiedCluster;
use super::faults::{list_pod_uids, is_settled};
use super::kubelet::FakeKubelet;
use super::protection::SNAPSHOT_RESPONSE;
use super::recovery::store_spec;
use super::stage::{RunningController, TestEnv};

/// What a sidecar does that is asked for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SidecarBehavior {
    Fails,
    Blocks,
    Succeeds,
}

/// What there was when a snapshot was taken.
#[derive(Debug)]
struct SnapshotMoment {
    pods: BTreeSet<String>,
    image: String,
    replicas: Option<i32>,
}

/// The sidecars of all pods.
struct FakeSidecars {
    port: u16,
    behavior: watch::Sender<SidecarBehavior>,
    snapshots: Arc<Mutex<Vec<SnapshotMoment>>>,
    serving: JoinHandle<()>,
}

impl FakeSidecars {
    async fn start(stage: &Arc<TestEnv>, mood: SidecarBehavior) -> Self {
        let (mood, mut heard) = watch::channel(mood);
        let taken = Arc::new(Mutex::new(Vec::new()));
        let (kept, stage) = (Arc::clone(&taken), Arc::clone(stage));
        let answer = || async move {
            let decides = |mood: &SidecarBehavior| *mood != SidecarBehavior::Blocks;
            let mood = *heard.wait_for(decides).await.expect("a test that goes on");
            if mood == SidecarBehavior::Fails {
                return (StatusCode::INTERNAL_SERVER_ERROR, "the store is full");
            }
            let now = capture_moment(&stage).await;
            kept.lock().unwrap().push(now);
            (StatusCode::OK, SNAPSHOT_RESPONSE)
        };
        let router = Router::new().route("/snapshot/full", post(answer));
        let listener = TcpListener::bind("0.0.0.0:0").await.expect("an address");
        let port = listener.local_addr().expect("an address").port();
        let serving = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("it serves");
        });
        Self {
            port,
            behavior: mood,
            snapshots: taken,
            serving,
        }
    }

    fn set_behavior(&self, mood: SidecarBehavior) {
        self.behavior.send(mood).expect("somebody serves");
    }

    /// What there was when the only snapshot was taken.
    fn take_only_snapshot(&self) -> SnapshotMoment {
        let mut taken = self.snapshots.lock().unwrap();
        assert_eq!(taken.len(), 1, "{taken:?}");
        taken.remove(0)
    }
}

impl Drop for FakeSidecars {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn capture_moment(stage: &TestEnv) -> SnapshotMoment {
    let set = stage.api::<StatefulSet>().get("main").await.unwrap();
    SnapshotMoment {
        pods: list_pod_uids(stage).await,
        image: etcd_image(&set),
        replicas: set.spec.and_then(|spec| spec.replicas),
    }
}

/// Which etcd a template starts.
fn etcd_image(set: &StatefulSet) -> String {
    let pod = set.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    let etcd = pod.containers.iter().find(|one| one.name == "etcd");
    etcd.unwrap().image.clone().unwrap()
}

/// Three members with a backup.
struct BackedUpCluster {
    env: Arc<TestEnv>,
    sidecars: FakeSidecars,
    _kubelet: FakeKubelet,
    _proxied: ProxiedCluster,
}

impl BackedUpCluster {
    /// They are at rest, and so is their controller.
    async fn start(mood: SidecarBehavior) -> (Self, RunningController) {
        let stage = Arc::new(TestEnv::start().await);
        let kubelet = FakeKubelet::start(&stage);
        let behind = ProxiedCluster::start("main", 3, 3).await;
        behind.register_pods(&kubelet).await;
        let sidecars = FakeSidecars::start(&stage, mood).await;
        let controller = stage.start_controller().await;
        let mut spec = behind.spec(3);
        spec["backup"] = json!({ "store": store_spec(), "port": sidecars.port });
        stage.create_etcd("main", spec).await;
        stage.wait_settled("main").await;
        stage.wait_until_idle(&controller).await;
        let play = Self {
            env: stage,
            sidecars,
            _kubelet: kubelet,
            _proxied: behind,
        };
        (play, controller)
    }
}

/// Waits until the status says this.
async fn wait_for_operation(stage: &TestEnv, how: OperationState, words: &str) -> Etcd {
    stage
        .wait_for("main", words, |etcd: &Etcd| {
            let status = etcd.status.as_ref();
            let last = status.and_then(|status| status.last_operation.as_ref());
            last.is_some_and(|last| last.state == how && last.description.contains(words))
        })
        .await
}

/// Waits until the status says that there is no such change because the sidecar refuses.
async fn wait_for_refusal(stage: &TestEnv, change: &str) {
    let words = format!("there is no {change} without a snapshot, which failed");
    let etcd = wait_for_operation(stage, OperationState::Error, &words).await;
    let error = etcd.status.unwrap().last_errors.unwrap().remove(0);
    assert_eq!(error.code, "ERR_CREATE_SNAPSHOT");
    let why = &error.description;
    assert!(
        why.contains("500") && why.contains("the store is full"),
        "{why}"
    );
}

async fn wait_all_replaced(stage: &TestEnv, old: &BTreeSet<String>) {
    stage
        .wait_until("all pods were replaced", async || {
            let now = list_pod_uids(stage).await;
            now.len() == 3 && now.is_disjoint(old) && is_settled(stage, 3).await
        })
        .await;
}

fn image_patch(version: &str) -> Value {
    json!({ "spec": { "etcd": { "image": format!("elsewhere/etcd:{version}") } } })
}

/// Waits for two more passes: whoever would go without a snapshot has gone by then.
async fn reconcile_twice(stage: &TestEnv, controller: &RunningController) {
    for _ in 0..2 {
        stage.reconcile_again(controller).await;
    }
}

#[tokio::test]
async fn nobody_goes_to_sleep_before_a_snapshot_was_taken() {
    let (play, controller) = BackedUpCluster::start(SidecarBehavior::Fails).await;
    let (stage, sidecars) = (&play.env, &play.sidecars);
    let old = list_pod_uids(stage).await;

    let sleep = json!({ "spec": { "replicas": 0 } });
    stage.patch_etcd("main", sleep).await;
    wait_for_refusal(stage, "hibernation").await;
    reconcile_twice(stage, &controller).await;
    stage.wait_for_replicas("main", 3).await;
    assert_eq!(list_pod_uids(stage).await, old, "somebody went");

    // It is asked again by itself.
    sidecars.set_behavior(SidecarBehavior::Succeeds);
    stage.wait_for_replicas("main", 0).await;
    stage.wait_settled("main").await;
    let taken = sidecars.take_only_snapshot();
    assert_eq!((taken.pods, taken.replicas), (old, Some(3)));
    controller.stop().await;
}

#[tokio::test]
async fn no_etcd_is_followed_by_another_before_a_snapshot_was_taken() {
    let (play, controller) = BackedUpCluster::start(SidecarBehavior::Fails).await;
    let (stage, sidecars) = (&play.env, &play.sidecars);
    let before = capture_moment(stage).await;

    stage.patch_etcd("main", image_patch("v3.5.99")).await;
    wait_for_refusal(stage, "upgrade of etcd").await;
    reconcile_twice(stage, &controller).await;
    let now = capture_moment(stage).await;
    assert_eq!((&now.pods, &now.image), (&before.pods, &before.image));
    controller.kill();

    // The next one does not know that it was refused, nor that it was asked.
    sidecars.set_behavior(SidecarBehavior::Succeeds);
    let controller = stage.start_controller().await;
    wait_all_replaced(stage, &before.pods).await;
    let taken = sidecars.take_only_snapshot();
    assert_eq!((taken.pods, taken.image), (before.pods, before.image));
    let image = capture_moment(stage).await.image;
    assert_eq!(image, "elsewhere/etcd:v3.5.99");
    controller.stop().await;
}

#[tokio::test]
async fn no_pod_is_replaced_while_the_snapshot_before_that_is_being_taken() {
    let (play, controller) = BackedUpCluster::start(SidecarBehavior::Blocks).await;
    let (stage, sidecars) = (&play.env, &play.sidecars);
    let old = list_pod_uids(stage).await;

    let quota = json!({ "spec": { "etcd": { "quota": "4Gi" } } });
    stage.patch_etcd("main", quota).await;
    let words = "waits for the snapshot before rollout";
    wait_for_operation(stage, OperationState::Requeue, words).await;
    reconcile_twice(stage, &controller).await;
    assert_eq!(list_pod_uids(stage).await, old, "somebody went");

    sidecars.set_behavior(SidecarBehavior::Succeeds);
    wait_all_replaced(stage, &old).await;
    assert_eq!(sidecars.take_only_snapshot().pods, old);
    controller.stop().await;
}

#[tokio::test]
async fn an_older_etcd_is_refused_with_the_reason_and_changes_nothing() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let behind = ProxiedCluster::start("main", 1, 1).await;
    behind.register_pods(&kubelet).await;
    let controller = stage.start_controller().await;
    stage.create_etcd("main", behind.spec(1)).await;
    stage.wait_settled("main").await;
    stage.wait_until_idle(&controller).await;
    let (old, set) = (list_pod_uids(&stage).await, stage.wait_for_replicas("main", 1).await);

    stage.patch_etcd("main", image_patch("v3.4.34")).await;
    let words = "an older minor version is not installed over a newer one";
    let etcd = wait_for_operation(&stage, OperationState::Requeue, words).await;
    let last = etcd.status.unwrap().last_operation.unwrap();
    let start = "etcd 3.4.34 cannot follow 3.5.";
    assert!(last.description.starts_with(start), "{last:?}");
    stage.wait_until_idle(&controller).await;
    let now = stage.wait_for_replicas("main", 1).await;
    assert_eq!(now.metadata.generation, set.metadata.generation);
    assert_eq!((now.uid(), etcd_image(&now)), (set.uid(), etcd_image(&set)));
    assert_eq!(list_pod_uids(&stage).await, old, "a pod was replaced");

    let back = json!({ "spec": { "etcd": { "image": null } } });
    stage.patch_etcd("main", back).await;
    stage.wait_settled("main").await;
    assert_eq!(list_pod_uids(&stage).await, old, "a pod was replaced");
    drop(kubelet);
    controller.stop().await;
}

//! Preconditions of disruptive changes: a full snapshot, and a supported etcd upgrade path.

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

use super::backup_jobs::SNAPSHOT_RESPONSE;
use super::cluster::ProxiedCluster;
use super::fake_kubelet::FakeKubelet;
use super::faults::{is_settled, list_pod_uids};
use super::recovery::store_spec;
use super::test_env::{RunningController, TestEnv};

/// Response of a sidecar to a snapshot request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SidecarBehavior {
    Fails,
    Blocks,
    Succeeds,
}

/// State of the cluster at the time of a snapshot.
#[derive(Debug)]
struct SnapshotMoment {
    pods: BTreeSet<String>,
    image: String,
    replicas: Option<i32>,
}

/// One HTTP server that stands in for the sidecars of all pods.
struct FakeSidecars {
    port: u16,
    behavior: watch::Sender<SidecarBehavior>,
    snapshots: Arc<Mutex<Vec<SnapshotMoment>>>,
    serving: JoinHandle<()>,
}

impl FakeSidecars {
    async fn start(stage: &Arc<TestEnv>, initial: SidecarBehavior) -> Self {
        let (sender, mut receiver) = watch::channel(initial);
        let snapshots = Arc::new(Mutex::new(Vec::new()));
        let (recorded, stage) = (Arc::clone(&snapshots), Arc::clone(stage));
        let respond = || async move {
            let responds = |behavior: &SidecarBehavior| *behavior != SidecarBehavior::Blocks;
            let behavior = *receiver
                .wait_for(responds)
                .await
                .expect("the test still runs");
            if behavior == SidecarBehavior::Fails {
                return (StatusCode::INTERNAL_SERVER_ERROR, "the store is full");
            }
            let now = capture_moment(&stage).await;
            recorded.lock().unwrap().push(now);
            (StatusCode::OK, SNAPSHOT_RESPONSE)
        };
        let router = Router::new().route("/snapshot/full", post(respond));
        let listener = TcpListener::bind("0.0.0.0:0").await.expect("an address");
        let port = listener.local_addr().expect("an address").port();
        let serving = tokio::spawn(async move {
            axum::serve(listener, router)
                .await
                .expect("the server runs");
        });
        Self {
            port,
            behavior: sender,
            snapshots,
            serving,
        }
    }

    fn set_behavior(&self, behavior: SidecarBehavior) {
        self.behavior.send(behavior).expect("the server runs");
    }

    /// The state at the only snapshot; panics unless there was exactly one.
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

/// Image of etcd in the pod template.
fn etcd_image(set: &StatefulSet) -> String {
    let pod = set.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    let etcd = pod.containers.iter().find(|one| one.name == "etcd");
    etcd.unwrap().image.clone().unwrap()
}

/// A cluster of three members with a backup.
struct BackedUpCluster {
    env: Arc<TestEnv>,
    sidecars: FakeSidecars,
    _kubelet: FakeKubelet,
    _proxied: ProxiedCluster,
}

impl BackedUpCluster {
    /// Starts the cluster and waits until it is settled and its controller idle.
    async fn start(initial: SidecarBehavior) -> (Self, RunningController) {
        let env = Arc::new(TestEnv::start().await);
        let kubelet = FakeKubelet::start(&env);
        let proxied = ProxiedCluster::start("main", 3, 3).await;
        proxied.register_pods(&kubelet).await;
        let sidecars = FakeSidecars::start(&env, initial).await;
        let controller = env.start_controller().await;
        let mut spec = proxied.spec(3);
        spec["backup"] = json!({ "store": store_spec(), "port": sidecars.port });
        env.create_etcd("main", spec).await;
        env.wait_settled("main").await;
        env.wait_until_idle(&controller).await;
        let cluster = Self {
            env,
            sidecars,
            _kubelet: kubelet,
            _proxied: proxied,
        };
        (cluster, controller)
    }
}

/// Waits until the last operation has this state and contains this text.
async fn wait_for_operation(stage: &TestEnv, expected: OperationState, text: &str) -> Etcd {
    stage
        .wait_for("main", text, |etcd: &Etcd| {
            let status = etcd.status.as_ref();
            let last = status.and_then(|status| status.last_operation.as_ref());
            last.is_some_and(|last| last.state == expected && last.description.contains(text))
        })
        .await
}

/// Waits until the status reports that the change is blocked by a failed snapshot.
async fn wait_for_refusal(stage: &TestEnv, change: &str) {
    let text = format!("{change} blocked: snapshot failed");
    let etcd = wait_for_operation(stage, OperationState::Error, &text).await;
    let error = etcd.status.unwrap().last_errors.unwrap().remove(0);
    assert_eq!(error.code, "ERR_CREATE_SNAPSHOT");
    let description = &error.description;
    assert!(
        description.contains("500") && description.contains("the store is full"),
        "{description}"
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

/// Waits for two more reconciles: a change that ignores the missing snapshot would have happened by then.
async fn reconcile_twice(stage: &TestEnv, controller: &RunningController) {
    for _ in 0..2 {
        stage.reconcile_again(controller).await;
    }
}

#[tokio::test]
async fn hibernation_waits_for_a_snapshot() {
    let (cluster, controller) = BackedUpCluster::start(SidecarBehavior::Fails).await;
    let (stage, sidecars) = (&cluster.env, &cluster.sidecars);
    let old = list_pod_uids(stage).await;

    // The rules of the CRD allow additional URLs of existing members only, so they are removed in the same change.
    let etcd = json!({ "additionalAdvertisePeerURLs": null });
    let hibernate = json!({ "spec": { "replicas": 0, "etcd": etcd } });
    stage.patch_etcd("main", hibernate).await;
    wait_for_refusal(stage, "Hibernation").await;
    reconcile_twice(stage, &controller).await;
    stage.wait_for_replicas("main", 3).await;
    assert_eq!(list_pod_uids(stage).await, old, "a pod was replaced");

    // The controller retries the snapshot by itself.
    sidecars.set_behavior(SidecarBehavior::Succeeds);
    stage.wait_for_replicas("main", 0).await;
    stage.wait_settled("main").await;
    let taken = sidecars.take_only_snapshot();
    assert_eq!((taken.pods, taken.replicas), (old, Some(3)));
    controller.stop().await;
}

#[tokio::test]
async fn upgrade_waits_for_a_snapshot() {
    let (cluster, controller) = BackedUpCluster::start(SidecarBehavior::Fails).await;
    let (stage, sidecars) = (&cluster.env, &cluster.sidecars);
    let before = capture_moment(stage).await;

    stage.patch_etcd("main", image_patch("v3.5.99")).await;
    wait_for_refusal(stage, "Upgrade").await;
    reconcile_twice(stage, &controller).await;
    let now = capture_moment(stage).await;
    assert_eq!((&now.pods, &now.image), (&before.pods, &before.image));
    controller.kill();

    // A new controller has no record of the failed request and must take a snapshot of its own.
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
async fn no_pod_is_replaced_while_the_snapshot_before_it_is_running() {
    let (cluster, controller) = BackedUpCluster::start(SidecarBehavior::Blocks).await;
    let (stage, sidecars) = (&cluster.env, &cluster.sidecars);
    let old = list_pod_uids(stage).await;

    let quota = json!({ "spec": { "etcd": { "quota": "4Gi" } } });
    stage.patch_etcd("main", quota).await;
    let text = "Rollout pending: waiting for the full snapshot";
    wait_for_operation(stage, OperationState::Requeue, text).await;
    reconcile_twice(stage, &controller).await;
    assert_eq!(list_pod_uids(stage).await, old, "a pod was replaced");

    sidecars.set_behavior(SidecarBehavior::Succeeds);
    wait_all_replaced(stage, &old).await;
    assert_eq!(sidecars.take_only_snapshot().pods, old);
    controller.stop().await;
}

#[tokio::test]
async fn older_etcd_is_refused_with_the_reason_and_changes_nothing() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let proxied = ProxiedCluster::start("main", 1, 1).await;
    proxied.register_pods(&kubelet).await;
    let controller = stage.start_controller().await;
    stage.create_etcd("main", proxied.spec(1)).await;
    stage.wait_settled("main").await;
    stage.wait_until_idle(&controller).await;
    let (old, set) = (
        list_pod_uids(&stage).await,
        stage.wait_for_replicas("main", 1).await,
    );

    stage.patch_etcd("main", image_patch("v3.4.34")).await;
    let text = "downgrades to an older minor version are not supported";
    let etcd = wait_for_operation(&stage, OperationState::Requeue, text).await;
    let last = etcd.status.unwrap().last_operation.unwrap();
    let start = "Upgrade refused: etcd 3.4.34 cannot follow 3.5.";
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

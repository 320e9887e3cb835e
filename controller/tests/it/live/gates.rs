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

use super::cluster::Behind;
use super::faults::{pods, rests};
use super::kubelet::Kubelet;
use super::protection::TAKEN;
use super::recovery::store;
use super::stage::{Running, Stage};

/// What a sidecar does that is asked for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Refuses,
    TakesItsTime,
    Obeys,
}

/// What there was when a snapshot was taken.
#[derive(Debug)]
struct Taken {
    pods: BTreeSet<String>,
    image: String,
    replicas: Option<i32>,
}

/// The sidecars of all pods.
struct Sidecars {
    port: u16,
    mood: watch::Sender<Mood>,
    taken: Arc<Mutex<Vec<Taken>>>,
    serving: JoinHandle<()>,
}

impl Sidecars {
    async fn start(stage: &Arc<Stage>, mood: Mood) -> Self {
        let (mood, mut heard) = watch::channel(mood);
        let taken = Arc::new(Mutex::new(Vec::new()));
        let (kept, stage) = (Arc::clone(&taken), Arc::clone(stage));
        let answer = || async move {
            let decides = |mood: &Mood| *mood != Mood::TakesItsTime;
            let mood = *heard.wait_for(decides).await.expect("a test that goes on");
            if mood == Mood::Refuses {
                return (StatusCode::INTERNAL_SERVER_ERROR, "the store is full");
            }
            let now = look(&stage).await;
            kept.lock().unwrap().push(now);
            (StatusCode::OK, TAKEN)
        };
        let router = Router::new().route("/snapshot/full", post(answer));
        let listener = TcpListener::bind("0.0.0.0:0").await.expect("an address");
        let port = listener.local_addr().expect("an address").port();
        let serving = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("it serves");
        });
        Self {
            port,
            mood,
            taken,
            serving,
        }
    }

    fn are(&self, mood: Mood) {
        self.mood.send(mood).expect("somebody serves");
    }

    /// What there was when the only snapshot was taken.
    fn taken(&self) -> Taken {
        let mut taken = self.taken.lock().unwrap();
        assert_eq!(taken.len(), 1, "{taken:?}");
        taken.remove(0)
    }
}

impl Drop for Sidecars {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn look(stage: &Stage) -> Taken {
    let set = stage.api::<StatefulSet>().get("main").await.unwrap();
    Taken {
        pods: pods(stage).await,
        image: image(&set),
        replicas: set.spec.and_then(|spec| spec.replicas),
    }
}

/// Which etcd a template starts.
fn image(set: &StatefulSet) -> String {
    let pod = set.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    let etcd = pod.containers.iter().find(|one| one.name == "etcd");
    etcd.unwrap().image.clone().unwrap()
}

/// Three members with a backup.
struct Play {
    stage: Arc<Stage>,
    sidecars: Sidecars,
    _kubelet: Kubelet,
    _behind: Behind,
}

impl Play {
    /// They are at rest, and so is their controller.
    async fn begin(mood: Mood) -> (Self, Running) {
        let stage = Arc::new(Stage::set().await);
        let kubelet = Kubelet::play(&stage);
        let behind = Behind::start("main", 3, 3).await;
        behind.settle_in(&kubelet).await;
        let sidecars = Sidecars::start(&stage, mood).await;
        let controller = stage.control().await;
        let mut spec = behind.spec(3);
        spec["backup"] = json!({ "store": store(), "port": sidecars.port });
        stage.create("main", spec).await;
        stage.settled("main").await;
        stage.at_rest(&controller).await;
        let play = Self {
            stage,
            sidecars,
            _kubelet: kubelet,
            _behind: behind,
        };
        (play, controller)
    }
}

/// Waits until the status says this.
async fn told(stage: &Stage, how: OperationState, words: &str) -> Etcd {
    stage
        .until("main", words, |etcd: &Etcd| {
            let status = etcd.status.as_ref();
            let last = status.and_then(|status| status.last_operation.as_ref());
            last.is_some_and(|last| last.state == how && last.description.contains(words))
        })
        .await
}

/// Waits until the status says that there is no such change because the sidecar refuses.
async fn told_of_refusal(stage: &Stage, change: &str) {
    let words = format!("there is no {change} without a snapshot, which failed");
    let etcd = told(stage, OperationState::Error, &words).await;
    let error = etcd.status.unwrap().last_errors.unwrap().remove(0);
    assert_eq!(error.code, "ERR_CREATE_SNAPSHOT");
    let why = &error.description;
    assert!(
        why.contains("500") && why.contains("the store is full"),
        "{why}"
    );
}

async fn all_replaced(stage: &Stage, old: &BTreeSet<String>) {
    stage
        .eventually("all pods were replaced", async || {
            let now = pods(stage).await;
            now.len() == 3 && now.is_disjoint(old) && rests(stage, 3).await
        })
        .await;
}

fn another_image(version: &str) -> Value {
    json!({ "spec": { "etcd": { "image": format!("elsewhere/etcd:{version}") } } })
}

/// Waits for two more passes: whoever would go without a snapshot has gone by then.
async fn looked_at_twice(stage: &Stage, controller: &Running) {
    for _ in 0..2 {
        stage.look_again(controller).await;
    }
}

#[tokio::test]
async fn nobody_goes_to_sleep_before_a_snapshot_was_taken() {
    let (play, controller) = Play::begin(Mood::Refuses).await;
    let (stage, sidecars) = (&play.stage, &play.sidecars);
    let old = pods(stage).await;

    let sleep = json!({ "spec": { "replicas": 0 } });
    stage.change("main", sleep).await;
    told_of_refusal(stage, "hibernation").await;
    looked_at_twice(stage, &controller).await;
    stage.set_of("main", 3).await;
    assert_eq!(pods(stage).await, old, "somebody went");

    // It is asked again by itself.
    sidecars.are(Mood::Obeys);
    stage.set_of("main", 0).await;
    stage.settled("main").await;
    let taken = sidecars.taken();
    assert_eq!((taken.pods, taken.replicas), (old, Some(3)));
    controller.stop().await;
}

#[tokio::test]
async fn no_etcd_is_followed_by_another_before_a_snapshot_was_taken() {
    let (play, controller) = Play::begin(Mood::Refuses).await;
    let (stage, sidecars) = (&play.stage, &play.sidecars);
    let before = look(stage).await;

    stage.change("main", another_image("v3.5.99")).await;
    told_of_refusal(stage, "upgrade of etcd").await;
    looked_at_twice(stage, &controller).await;
    let now = look(stage).await;
    assert_eq!((&now.pods, &now.image), (&before.pods, &before.image));
    controller.kill();

    // The next one does not know that it was refused, nor that it was asked.
    sidecars.are(Mood::Obeys);
    let controller = stage.control().await;
    all_replaced(stage, &before.pods).await;
    let taken = sidecars.taken();
    assert_eq!((taken.pods, taken.image), (before.pods, before.image));
    let image = look(stage).await.image;
    assert_eq!(image, "elsewhere/etcd:v3.5.99");
    controller.stop().await;
}

#[tokio::test]
async fn no_pod_is_replaced_while_the_snapshot_before_that_is_being_taken() {
    let (play, controller) = Play::begin(Mood::TakesItsTime).await;
    let (stage, sidecars) = (&play.stage, &play.sidecars);
    let old = pods(stage).await;

    let quota = json!({ "spec": { "etcd": { "quota": "4Gi" } } });
    stage.change("main", quota).await;
    let words = "waits for the snapshot before rollout";
    told(stage, OperationState::Requeue, words).await;
    looked_at_twice(stage, &controller).await;
    assert_eq!(pods(stage).await, old, "somebody went");

    sidecars.are(Mood::Obeys);
    all_replaced(stage, &old).await;
    assert_eq!(sidecars.taken().pods, old);
    controller.stop().await;
}

#[tokio::test]
async fn an_older_etcd_is_refused_with_the_reason_and_changes_nothing() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let behind = Behind::start("main", 1, 1).await;
    behind.settle_in(&kubelet).await;
    let controller = stage.control().await;
    stage.create("main", behind.spec(1)).await;
    stage.settled("main").await;
    stage.at_rest(&controller).await;
    let (old, set) = (pods(&stage).await, stage.set_of("main", 1).await);

    stage.change("main", another_image("v3.4.34")).await;
    let words = "an older minor version is not installed over a newer one";
    let etcd = told(&stage, OperationState::Requeue, words).await;
    let last = etcd.status.unwrap().last_operation.unwrap();
    let start = "etcd 3.4.34 cannot follow 3.5.";
    assert!(last.description.starts_with(start), "{last:?}");
    stage.at_rest(&controller).await;
    let now = stage.set_of("main", 1).await;
    assert_eq!(now.metadata.generation, set.metadata.generation);
    assert_eq!((now.uid(), image(&now)), (set.uid(), image(&set)));
    assert_eq!(pods(&stage).await, old, "a pod was replaced");

    let back = json!({ "spec": { "etcd": { "image": null } } });
    stage.change("main", back).await;
    stage.settled("main").await;
    assert_eq!(pods(&stage).await, old, "a pod was replaced");
    drop(kubelet);
    controller.stop().await;
}

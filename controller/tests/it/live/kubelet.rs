//! The kubelet, the volume provisioner and the sidecars, played by the test: pods become ready, claims bound, Leases held.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::stage::Stage;

/// How often sidecars renew their Leases.
const HEARTBEAT: SignedDuration = SignedDuration::from_secs(10);

/// The interval between two rounds of the kubelet; a test that waits for a round starts it at once.
const PAUSE: Duration = Duration::from_millis(150);
/// A loopback address without a listener: an etcd of this machine may listen on 127.0.0.1.
const NOBODY: &str = "127.0.0.9";

/// What the kubelet does with pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Orders {
    /// Pods that stay as they are.
    pub(super) idle: BTreeSet<String>,
    /// Addresses of pods; others get one where nobody listens.
    pub(super) addresses: BTreeMap<String, String>,
    /// Who holds which Lease; others are held by somebody made up.
    pub(super) holders: BTreeMap<String, String>,
    /// What init containers say that do not let etcd start.
    pub(super) verdicts: BTreeMap<String, Value>,
    /// Pods, by uid, whose init found its data good and whose etcd ends again and again on it.
    pub(super) crashing: BTreeSet<String>,
    /// Claims, by uid, whose volume is gone.
    pub(super) lost: BTreeSet<String>,
    /// When there are any, only pods of these uids become ready: the others wait until their server runs.
    pub(super) started: Option<BTreeSet<String>>,
    /// How Jobs end, by name; the pods of others stay as they are.
    pub(super) jobs: BTreeMap<String, Ends>,
}

/// How a Job ends: whether it goes well, and its last words.
#[derive(Clone, Debug)]
pub(super) enum Ends {
    /// Not yet: its pod runs.
    Later,
    Well(Value),
    Badly(Value),
    /// For want of memory: what is left is the end of its log.
    Killed(String),
}

pub(super) struct Kubelet {
    orders: Arc<Mutex<Orders>>,
    rounds: Rounds,
    task: JoinHandle<()>,
}

/// How often a kubelet looked at everything, and how often it wrote or could not look.
#[derive(Clone, Debug)]
pub(super) struct Rounds {
    now: watch::Sender<Round>,
    /// A test waits for the next round.
    hurry: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Round {
    is_played: bool,
    finished: u64,
    writes: u64,
}

impl Default for Rounds {
    fn default() -> Self {
        Self {
            now: watch::Sender::new(Round::default()),
            hurry: Arc::default(),
        }
    }
}

impl Rounds {
    /// Waits until the kubelet looked at everything once more; whether it had nothing to write.
    pub(super) async fn is_quiet(&self) -> bool {
        let before = *self.now.borrow();
        let mut rounds = self.now.subscribe();
        // The round that is under way may have begun before.
        for more in [1, 2] {
            self.hurry.notify_one();
            let is_over = |now: &Round| !now.is_played || now.finished >= before.finished + more;
            rounds.wait_for(is_over).await.expect("a stage");
        }
        self.now.borrow().writes == before.writes
    }

    fn play(&self, is_played: bool) {
        self.now.send_modify(|round| round.is_played = is_played);
    }

    fn finish(&self, writes: u64) {
        self.now.send_modify(|round| {
            round.finished += 1;
            round.writes += writes;
        });
    }
}

impl Kubelet {
    /// Plays for one namespace until dropped.
    pub(super) fn play(stage: &Stage) -> Self {
        let orders = Arc::new(Mutex::new(Orders::default()));
        let scene = Scene {
            client: stage.client.clone(),
            namespace: stage.namespace.clone(),
            writes: AtomicU64::new(0),
        };
        let (shared, rounds) = (Arc::clone(&orders), stage.rounds.clone());
        rounds.play(true);
        let counted = rounds.clone();
        let task = tokio::spawn(async move {
            loop {
                let now = shared.lock().unwrap().clone();
                scene.pods(&now).await;
                scene.claims(&now).await;
                scene.leases(&now).await;
                counted.finish(scene.writes.swap(0, Ordering::Relaxed));
                tokio::time::timeout(PAUSE, counted.hurry.notified())
                    .await
                    .ok();
            }
        });
        Self {
            orders,
            rounds,
            task,
        }
    }

    pub(super) fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.orders.lock().unwrap());
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
        self.rounds.play(false);
    }
}

struct Scene {
    client: Client,
    namespace: String,
    writes: AtomicU64,
}

impl Scene {
    /// It wrote, or could not look.
    fn count(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    async fn pods(&self, orders: &Orders) {
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let Ok(list) = pods.list(&ListParams::default()).await else {
            return self.count();
        };
        for pod in list {
            let name = pod.name_any();
            if let Some(job) = pod.labels().get("job-name") {
                self.job_pod(&pods, &pod, orders.jobs.get(job)).await;
                continue;
            }
            let has_started = |uid: &String| {
                let started = orders.started.as_ref();
                started.is_none_or(|started| started.contains(uid))
            };
            if !pod.metadata.uid.as_ref().is_some_and(has_started) {
                continue;
            }
            let status = match orders.verdicts.get(&name) {
                _ if pod.uid().is_some_and(|uid| orders.crashing.contains(&uid)) => crashes(),
                Some(verdict) => refused(verdict),
                None if orders.idle.contains(&name) => continue,
                None => ready(orders.addresses.get(&name).map_or(NOBODY, String::as_str)),
            };
            let conditions = |status: &Value| status["conditions"][1]["status"].clone();
            let has = pod
                .status
                .as_ref()
                .and_then(|status| status.conditions.as_ref());
            let is_ready = has
                .into_iter()
                .flatten()
                .any(|one| one.type_ == "Ready" && one.status == "True");
            let address = pod
                .status
                .as_ref()
                .and_then(|status| status.pod_ip.as_deref());
            if is_ready == (conditions(&status) == "True")
                && address == status["podIP"].as_str()
                && has.is_some()
            {
                continue;
            }
            self.count();
            let patch = json!({ "status": status });
            pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .ok();
        }
    }

    async fn job_pod(&self, pods: &Api<Pod>, pod: &Pod, ends: Option<&Ends>) {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let (Some(ends), Some("Pending" | "Running")) = (ends, phase) else {
            return;
        };
        let (phase, code, reason, words) = match ends {
            Ends::Later if phase == Some("Running") => return,
            Ends::Later => {
                self.count();
                let patch = json!({ "status": { "phase": "Running" } });
                let patch = Patch::Merge(&patch);
                let name = pod.name_any();
                pods.patch_status(&name, &PatchParams::default(), &patch)
                    .await
                    .ok();
                return;
            }
            Ends::Well(words) => ("Succeeded", 0, "Completed", words.to_string()),
            Ends::Badly(words) => ("Failed", 1, "Error", words.to_string()),
            Ends::Killed(log) => ("Failed", 137, "OOMKilled", log.clone()),
        };
        let ended =
            json!({ "terminated": { "exitCode": code, "reason": reason, "message": words } });
        self.count();
        let patch = json!({ "status": { "phase": phase, "containerStatuses": [{
            "name": "restore", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": ended,
        }]}});
        pods.patch_status(
            &pod.name_any(),
            &PatchParams::default(),
            &Patch::Merge(&patch),
        )
        .await
        .ok();
    }

    async fn claims(&self, orders: &Orders) {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &self.namespace);
        let Ok(list) = claims.list(&ListParams::default()).await else {
            return self.count();
        };
        for claim in list {
            let requested = claim
                .spec
                .as_ref()
                .and_then(|spec| spec.resources.as_ref()?.requests.clone());
            let is_lost = claim.uid().is_some_and(|uid| orders.lost.contains(&uid));
            let phase = if is_lost { "Lost" } else { "Bound" };
            let is_told = claim.status.as_ref().is_some_and(|status| {
                status.capacity == requested && status.phase.as_deref() == Some(phase)
            });
            if !is_told {
                self.count();
                let patch = json!({ "status": { "phase": phase, "capacity": requested } });
                claims
                    .patch_status(
                        &claim.name_any(),
                        &PatchParams::default(),
                        &Patch::Merge(&patch),
                    )
                    .await
                    .ok();
            }
        }
    }

    async fn leases(&self, orders: &Orders) {
        let leases = Api::<Lease>::namespaced(self.client.clone(), &self.namespace);
        let members = ListParams::default().labels("app.kubernetes.io/component=etcd-member-lease");
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let (Ok(list), Ok(pods)) = (
            leases.list(&members).await,
            pods.list(&ListParams::default()).await,
        ) else {
            return self.count();
        };
        for lease in list {
            let name = lease.name_any();
            let lives = pods.items.iter().any(|pod| pod.name_any() == name);
            let holder = lease
                .spec
                .as_ref()
                .and_then(|spec| spec.holder_identity.clone());
            let wanted = orders
                .holders
                .get(&name)
                .cloned()
                .unwrap_or_else(|| made_up(&name));
            let renewed = lease
                .spec
                .as_ref()
                .and_then(|spec| spec.renew_time.as_ref());
            let is_fresh =
                renewed.is_some_and(|at| Timestamp::now().duration_since(at.0) < HEARTBEAT);
            let is_held = holder.as_deref() == Some(&wanted) && is_fresh;
            if !lives || orders.idle.contains(&name) || is_held {
                continue;
            }
            self.count();
            let patch = json!({ "spec": { "holderIdentity": wanted, "renewTime": MicroTime(Timestamp::now()) } });
            leases
                .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .ok();
        }
    }
}

/// `main-2` as member 3 of some cluster.
fn made_up(name: &str) -> String {
    let ordinal: u32 = name
        .rsplit('-')
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default();
    let role = if ordinal == 0 { "Leader" } else { "Member" };
    format!("{:x}:c1:{role}", ordinal + 1)
}

fn ready(address: &str) -> Value {
    let conditions = ["Initialized", "Ready", "ContainersReady"]
        .map(|type_| json!({ "type": type_, "status": "True" }));
    json!({ "phase": "Running", "podIP": address, "conditions": conditions, "initContainerStatuses": null })
}

fn crashes() -> Value {
    let conditions = [
        ("Initialized", "True"),
        ("Ready", "False"),
        ("ContainersReady", "False"),
    ]
    .map(|(type_, status)| json!({ "type": type_, "status": status }));
    json!({
        "phase": "Running",
        "podIP": NOBODY,
        "conditions": conditions,
        "initContainerStatuses": null,
        "containerStatuses": [{
            "name": "etcd", "image": "", "imageID": "", "ready": false, "restartCount": 7,
            "state": { "waiting": { "reason": "CrashLoopBackOff" } },
        }],
    })
}

fn refused(verdict: &Value) -> Value {
    let conditions = ["Initialized", "Ready", "ContainersReady"]
        .map(|type_| json!({ "type": type_, "status": "False" }));
    let ended = json!({ "terminated": { "exitCode": 1, "message": verdict.to_string() } });
    json!({
        "phase": "Pending",
        "podIP": NOBODY,
        "conditions": conditions,
        "initContainerStatuses": [{
            "name": "init", "image": "", "imageID": "", "ready": false, "restartCount": 1,
            "state": ended,
        }],
    })
}

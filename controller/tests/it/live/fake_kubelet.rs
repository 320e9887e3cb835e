//! Stands in for the kubelet, the volume provisioner and the sidecars: pods become ready, PVCs bound, Leases held.

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

use super::test_env::TestEnv;

/// Interval at which sidecars renew their Leases.
const HEARTBEAT: SignedDuration = SignedDuration::from_secs(10);

/// The interval between two rounds of the kubelet; a test that waits for a round starts it at once.
const ROUND_INTERVAL: Duration = Duration::from_millis(150);
/// A loopback address without a listener: an etcd of this machine may listen on 127.0.0.1.
const UNUSED_ADDRESS: &str = "127.0.0.9";

/// What the fake kubelet does. Keys are pod names unless noted.
#[derive(Clone, Debug, Default)]
pub(super) struct KubeletBehavior {
    /// Pods whose status stays unchanged.
    pub(super) ignored_pods: BTreeSet<String>,
    /// Pod addresses; other pods get one without a listener.
    pub(super) pod_addresses: BTreeMap<String, String>,
    /// Lease holders; other Leases get a made-up holder.
    pub(super) lease_holders: BTreeMap<String, String>,
    /// Output of init containers that fail.
    pub(super) init_verdicts: BTreeMap<String, Value>,
    /// UIDs of pods whose init succeeds and whose etcd crash-loops.
    pub(super) crashing_pods: BTreeSet<String>,
    /// UIDs of PVCs whose volume is lost.
    pub(super) lost_pvcs: BTreeSet<String>,
    /// If set, only pods with these UIDs become ready: the others wait until the test has started their server.
    pub(super) started_pods: Option<BTreeSet<String>>,
    /// Results of Jobs, by Job name; the pods of other Jobs stay unchanged.
    pub(super) job_results: BTreeMap<String, JobResult>,
}

/// Result of a Job, with the termination message of its pod.
#[derive(Clone, Debug)]
pub(super) enum JobResult {
    /// Its pod runs.
    StillRunning,
    Succeeded(Value),
    Failed(Value),
    /// Killed for lack of memory: the termination message is the end of its log.
    OomKilled(String),
}

pub(super) struct FakeKubelet {
    behavior: Arc<Mutex<KubeletBehavior>>,
    rounds: KubeletRounds,
    task: JoinHandle<()>,
}

/// Progress of the fake kubelet, shared with tests that wait for it.
#[derive(Clone, Debug)]
pub(super) struct KubeletRounds {
    current: watch::Sender<KubeletRound>,
    /// Starts the next round at once.
    wake: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, Default)]
struct KubeletRound {
    is_running: bool,
    finished: u64,
    writes: u64,
}

impl Default for KubeletRounds {
    fn default() -> Self {
        Self {
            current: watch::Sender::new(KubeletRound::default()),
            wake: Arc::default(),
        }
    }
}

impl KubeletRounds {
    /// Waits for one more complete round; returns whether it wrote nothing.
    pub(super) async fn is_next_round_quiet(&self) -> bool {
        let before = *self.current.borrow();
        let mut rounds = self.current.subscribe();
        // The round in progress may have started before the last change, so wait for two.
        for more in [1, 2] {
            self.wake.notify_one();
            let is_over =
                |now: &KubeletRound| !now.is_running || now.finished >= before.finished + more;
            rounds
                .wait_for(is_over)
                .await
                .expect("the sender lives in the stage");
        }
        self.current.borrow().writes == before.writes
    }

    fn set_running(&self, is_running: bool) {
        self.current
            .send_modify(|round| round.is_running = is_running);
    }

    fn finish_round(&self, writes: u64) {
        self.current.send_modify(|round| {
            round.finished += 1;
            round.writes += writes;
        });
    }
}

impl FakeKubelet {
    /// Runs for one namespace until dropped.
    pub(super) fn start(stage: &TestEnv) -> Self {
        let behavior = Arc::new(Mutex::new(KubeletBehavior::default()));
        let kubelet = KubeletClient {
            client: stage.client.clone(),
            namespace: stage.namespace.clone(),
            writes: AtomicU64::new(0),
        };
        let (shared, rounds) = (Arc::clone(&behavior), stage.rounds.clone());
        rounds.set_running(true);
        let counted = rounds.clone();
        let task = tokio::spawn(async move {
            loop {
                let now = shared.lock().unwrap().clone();
                kubelet.update_pods(&now).await;
                kubelet.bind_pvcs(&now).await;
                kubelet.renew_leases(&now).await;
                counted.finish_round(kubelet.writes.swap(0, Ordering::Relaxed));
                tokio::time::timeout(ROUND_INTERVAL, counted.wake.notified())
                    .await
                    .ok();
            }
        });
        Self {
            behavior,
            rounds,
            task,
        }
    }

    pub(super) fn configure(&self, change: impl FnOnce(&mut KubeletBehavior)) {
        change(&mut self.behavior.lock().unwrap());
    }
}

impl Drop for FakeKubelet {
    fn drop(&mut self) {
        self.task.abort();
        self.rounds.set_running(false);
    }
}

struct KubeletClient {
    client: Client,
    namespace: String,
    writes: AtomicU64,
}

impl KubeletClient {
    /// Counts a write. A failed list counts, too: the round is not quiet.
    fn record_write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    async fn update_pods(&self, behavior: &KubeletBehavior) {
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let Ok(list) = pods.list(&ListParams::default()).await else {
            return self.record_write();
        };
        for pod in list {
            let name = pod.name_any();
            if let Some(job) = pod.labels().get("job-name") {
                self.update_job_pod(&pods, &pod, behavior.job_results.get(job))
                    .await;
                continue;
            }
            let has_started = |uid: &String| {
                let started = behavior.started_pods.as_ref();
                started.is_none_or(|started| started.contains(uid))
            };
            if !pod.metadata.uid.as_ref().is_some_and(has_started) {
                continue;
            }
            let status = match behavior.init_verdicts.get(&name) {
                _ if pod
                    .uid()
                    .is_some_and(|uid| behavior.crashing_pods.contains(&uid)) =>
                {
                    crashing_status()
                }
                Some(verdict) => init_failed_status(verdict),
                None if behavior.ignored_pods.contains(&name) => continue,
                None => ready_status(
                    behavior
                        .pod_addresses
                        .get(&name)
                        .map_or(UNUSED_ADDRESS, String::as_str),
                ),
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
            let address = pod.status.as_ref().and_then(|it| it.pod_ip.as_deref());
            if is_ready == (conditions(&status) == "True")
                && address == status["podIP"].as_str()
                && has.is_some()
            {
                continue;
            }
            self.record_write();
            let patch = json!({ "status": status });
            pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .ok();
        }
    }

    async fn update_job_pod(&self, pods: &Api<Pod>, pod: &Pod, ends: Option<&JobResult>) {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let (Some(ends), Some("Pending" | "Running")) = (ends, phase) else {
            return;
        };
        let (phase, code, reason, output) = match ends {
            JobResult::StillRunning if phase == Some("Running") => return,
            JobResult::StillRunning => {
                self.record_write();
                let patch = json!({ "status": { "phase": "Running" } });
                let patch = Patch::Merge(&patch);
                let name = pod.name_any();
                pods.patch_status(&name, &PatchParams::default(), &patch)
                    .await
                    .ok();
                return;
            }
            JobResult::Succeeded(output) => ("Succeeded", 0, "Completed", output.to_string()),
            JobResult::Failed(output) => ("Failed", 1, "Error", output.to_string()),
            JobResult::OomKilled(log) => ("Failed", 137, "OOMKilled", log.clone()),
        };
        let ended =
            json!({ "terminated": { "exitCode": code, "reason": reason, "message": output } });
        self.record_write();
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

    async fn bind_pvcs(&self, behavior: &KubeletBehavior) {
        let pvcs = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &self.namespace);
        let Ok(list) = pvcs.list(&ListParams::default()).await else {
            return self.record_write();
        };
        for pvc in list {
            let requested = pvc
                .spec
                .as_ref()
                .and_then(|spec| spec.resources.as_ref()?.requests.clone());
            let is_lost = pvc
                .uid()
                .is_some_and(|uid| behavior.lost_pvcs.contains(&uid));
            let phase = if is_lost { "Lost" } else { "Bound" };
            let is_current = pvc.status.as_ref().is_some_and(|status| {
                status.capacity == requested && status.phase.as_deref() == Some(phase)
            });
            if !is_current {
                self.record_write();
                let patch = json!({ "status": { "phase": phase, "capacity": requested } });
                pvcs.patch_status(
                    &pvc.name_any(),
                    &PatchParams::default(),
                    &Patch::Merge(&patch),
                )
                .await
                .ok();
            }
        }
    }

    async fn renew_leases(&self, behavior: &KubeletBehavior) {
        let leases = Api::<Lease>::namespaced(self.client.clone(), &self.namespace);
        let members = ListParams::default().labels("app.kubernetes.io/component=etcd-member-lease");
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let (Ok(list), Ok(pods)) = (
            leases.list(&members).await,
            pods.list(&ListParams::default()).await,
        ) else {
            return self.record_write();
        };
        for lease in list {
            let name = lease.name_any();
            let has_pod = pods.items.iter().any(|pod| pod.name_any() == name);
            let holder = lease
                .spec
                .as_ref()
                .and_then(|spec| spec.holder_identity.clone());
            let desired = behavior
                .lease_holders
                .get(&name)
                .cloned()
                .unwrap_or_else(|| fake_holder_identity(&name));
            let renewed = lease
                .spec
                .as_ref()
                .and_then(|spec| spec.renew_time.as_ref());
            let is_fresh =
                renewed.is_some_and(|at| Timestamp::now().duration_since(at.0) < HEARTBEAT);
            let is_held = holder.as_deref() == Some(&desired) && is_fresh;
            if !has_pod || behavior.ignored_pods.contains(&name) || is_held {
                continue;
            }
            self.record_write();
            let patch = json!({ "spec": { "holderIdentity": desired, "renewTime": MicroTime(Timestamp::now()) } });
            leases
                .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .ok();
        }
    }
}

/// Holder identity of a made-up member: `main-2` is member 3, `main-0` the leader.
fn fake_holder_identity(name: &str) -> String {
    let ordinal: u32 = name
        .rsplit('-')
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default();
    let role = if ordinal == 0 { "Leader" } else { "Member" };
    format!("{:x}:c1:{role}", ordinal + 1)
}

fn ready_status(address: &str) -> Value {
    let conditions = ["Initialized", "Ready", "ContainersReady"]
        .map(|type_| json!({ "type": type_, "status": "True" }));
    json!({ "phase": "Running", "podIP": address, "conditions": conditions, "initContainerStatuses": null })
}

fn crashing_status() -> Value {
    let conditions = [
        ("Initialized", "True"),
        ("Ready", "False"),
        ("ContainersReady", "False"),
    ]
    .map(|(type_, status)| json!({ "type": type_, "status": status }));
    json!({
        "phase": "Running",
        "podIP": UNUSED_ADDRESS,
        "conditions": conditions,
        "initContainerStatuses": null,
        "containerStatuses": [{
            "name": "etcd", "image": "", "imageID": "", "ready": false, "restartCount": 7,
            "state": { "waiting": { "reason": "CrashLoopBackOff" } },
        }],
    })
}

fn init_failed_status(verdict: &Value) -> Value {
    let conditions = ["Initialized", "Ready", "ContainersReady"]
        .map(|type_| json!({ "type": type_, "status": "False" }));
    let ended = json!({ "terminated": { "exitCode": 1, "message": verdict.to_string() } });
    json!({
        "phase": "Pending",
        "podIP": UNUSED_ADDRESS,
        "conditions": conditions,
        "initContainerStatuses": [{
            "name": "init", "image": "", "imageID": "", "ready": false, "restartCount": 1,
            "state": ended,
        }],
    })
}

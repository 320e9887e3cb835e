//! Simulates Kubernetes and the sidecars: creates ready pods and bound PVCs for `StatefulSets`, renews the Leases of members,
//! and reports a delta snapshot in the snapshot Leases every few minutes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::server::NamespacedName;

const MANAGED_BY_SELECTOR: &str = "app.kubernetes.io/managed-by=etcd-druid";
/// Number of renewals of a member Lease per reported delta snapshot.
const ROUNDS_PER_DELTA: usize = 10;
/// Suffix of the names of snapshot Leases.
const FULL_LEASE_SUFFIX: &str = "-full-snap";
const DELTA_LEASE_SUFFIX: &str = "-delta-snap";
/// One revision for all: pods are never updated in this simulation.
const POD_REVISION: &str = "revision-1";
/// StatefulSets handled in parallel.
const CONCURRENCY: usize = 8;

pub(super) struct ClusterSimulator {
    /// Renewals so far; holding the lock pauses them.
    renewals: Arc<Mutex<u64>>,
    tasks: JoinSet<()>,
}

type LeaseKeys = Arc<std::sync::Mutex<BTreeSet<NamespacedName>>>;

impl ClusterSimulator {
    pub(super) fn start(client: &Client, every: Duration) -> Self {
        let renewals = Arc::new(Mutex::new(0));
        let members = LeaseKeys::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(simulate_stateful_sets(client.clone()));
        tasks.spawn(simulate_leases(client.clone(), Arc::clone(&members)));
        tasks.spawn(renew_leases(
            client.clone(),
            members,
            Arc::clone(&renewals),
            every,
        ));
        Self { renewals, tasks }
    }

    /// Renewals so far; they are paused until the guard is dropped.
    pub(super) async fn pause_renewals(&self) -> OwnedMutexGuard<u64> {
        Arc::clone(&self.renewals).lock_owned().await
    }

    pub(super) fn stop(mut self) {
        self.tasks.abort_all();
    }
}

fn merge_params() -> PatchParams {
    PatchParams::default()
}

async fn simulate_stateful_sets(client: Client) {
    let api = Api::<StatefulSet>::all(client.clone());
    watcher(api, watcher::Config::default().labels(MANAGED_BY_SELECTOR))
        .default_backoff()
        .applied_objects()
        .for_each_concurrent(CONCURRENCY, |set| {
            let client = client.clone();
            async move {
                if let Ok(set) = set {
                    create_pods(&client, &set).await;
                }
            }
        })
        .await;
}

/// Creates pods and PVCs of a StatefulSet, once per generation.
async fn create_pods(client: &Client, set: &StatefulSet) {
    let namespace = set.namespace().unwrap_or_default();
    let replicas = set
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    let generation = set.metadata.generation;
    let status = set.status.as_ref();
    if status.and_then(|status| status.observed_generation) == generation {
        return;
    }
    for ordinal in 0..replicas {
        create_pod(client, set, ordinal).await;
    }
    let status = json!({ "status": {
        "observedGeneration": generation, "replicas": replicas, "readyReplicas": replicas,
        "currentReplicas": replicas, "updatedReplicas": replicas,
        "currentRevision": POD_REVISION, "updateRevision": POD_REVISION,
    } });
    let sets = Api::<StatefulSet>::namespaced(client.clone(), &namespace);
    sets.patch_status(&set.name_any(), &merge_params(), &Patch::Merge(&status))
        .await
        .ok();
}

async fn create_pod(client: &Client, set: &StatefulSet, ordinal: i32) {
    let namespace = set.namespace().unwrap_or_default();
    let Some(spec) = &set.spec else { return };
    let name = format!("{}-{ordinal}", set.name_any());
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), &namespace);
    let mut volumes = Vec::new();
    for template in spec.volume_claim_templates.iter().flatten() {
        let mut claim = template.clone();
        let claim_name = format!("{}-{name}", template.name_any());
        claim.metadata.name = Some(claim_name.clone());
        claim
            .metadata
            .labels
            .clone_from(&spec.selector.match_labels);
        claim.status = None;
        let requested = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.resources.as_ref()?.requests.clone());
        if claims.create(&PostParams::default(), &claim).await.is_ok() {
            let bound = json!({ "status": { "phase": "Bound", "capacity": requested } });
            claims
                .patch_status(&claim_name, &merge_params(), &Patch::Merge(&bound))
                .await
                .ok();
        }
        volumes.push(json!({
            "name": template.name_any(),
            "persistentVolumeClaim": { "claimName": claim_name },
        }));
    }
    let Ok(mut pod) = serde_json::to_value(&spec.template) else {
        return;
    };
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["labels"]["controller-revision-hash"] = json!(POD_REVISION);
    if let Some(own) = pod["spec"]["volumes"].as_array_mut() {
        own.extend(volumes);
    }
    let Ok(pod) = serde_json::from_value::<Pod>(pod) else {
        return;
    };
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    if pods.create(&PostParams::default(), &pod).await.is_ok() {
        pods.patch_status(&name, &merge_params(), &Patch::Merge(&ready_status()))
            .await
            .ok();
    }
}

fn ready_status() -> Value {
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"]
        .map(|type_| json!({ "type": type_, "status": "True" }));
    json!({ "status": { "phase": "Running", "podIP": "127.0.0.1", "conditions": conditions } })
}

/// Acquires Leases without a holder, as the sidecar of a member does.
async fn simulate_leases(client: Client, members: LeaseKeys) {
    let api = Api::<Lease>::all(client.clone());
    watcher(api, watcher::Config::default().labels(MANAGED_BY_SELECTOR))
        .default_backoff()
        .applied_objects()
        .for_each_concurrent(CONCURRENCY, |lease| {
            let (client, members) = (client.clone(), Arc::clone(&members));
            async move {
                let Ok(lease) = lease else { return };
                let spec = lease.spec.as_ref();
                if spec.is_some_and(|spec| spec.holder_identity.is_some()) {
                    return;
                }
                let (namespace, name) = (lease.namespace().unwrap_or_default(), lease.name_any());
                patch_lease(&client, (&namespace, &name), Some(&initial_holder(&name))).await;
                if let Ok(mut members) = members.lock() {
                    members.insert((namespace, name));
                }
            }
        })
        .await;
}

/// The first holder identity: ID and role of a member, or the revision of a backup.
fn initial_holder(lease: &str) -> String {
    if lease.ends_with(FULL_LEASE_SUFFIX) || lease.ends_with(DELTA_LEASE_SUFFIX) {
        return format_revision(0);
    }
    let ordinal = lease.rsplit('-').next().unwrap_or_default();
    let role = if ordinal == "0" { "Leader" } else { "Member" };
    format!("a{ordinal}:c1:{role}")
}

fn format_revision(round: usize) -> String {
    (1000 + round).to_string()
}

/// The action of a Lease's holder in a round.
enum LeaseAction {
    /// No write.
    Skip,
    /// Renews the Lease.
    Renew,
    /// Renews the Lease with a new holder identity.
    SetHolder(String),
}

fn next_lease_action(lease: &str, number: usize, round: usize) -> LeaseAction {
    let is_due = number % ROUNDS_PER_DELTA == round % ROUNDS_PER_DELTA;
    if lease.ends_with(DELTA_LEASE_SUFFIX) && is_due {
        LeaseAction::SetHolder(format_revision(round + 1))
    } else if lease.ends_with(DELTA_LEASE_SUFFIX) || lease.ends_with(FULL_LEASE_SUFFIX) {
        LeaseAction::Skip
    } else {
        LeaseAction::Renew
    }
}

async fn patch_lease(client: &Client, (namespace, name): (&str, &str), holder: Option<&str>) {
    let mut spec = json!({ "renewTime": MicroTime(Timestamp::now()) });
    if let Some(holder) = holder {
        spec["holderIdentity"] = json!(holder);
    }
    let patch = json!({ "spec": spec });
    Api::<Lease>::namespaced(client.clone(), namespace)
        .patch(name, &merge_params(), &Patch::Merge(&patch))
        .await
        .ok();
}

/// Renews every Lease once per interval, one after the other.
async fn renew_leases(
    client: Client,
    members: LeaseKeys,
    renewals: Arc<Mutex<u64>>,
    every: Duration,
) {
    for round in 0.. {
        let all: Vec<NamespacedName> = match members.lock() {
            Ok(members) => members.iter().cloned().collect(),
            Err(_) => return,
        };
        let started = Instant::now();
        let count = u32::try_from(all.len().max(1)).unwrap_or(u32::MAX);
        for (number, (namespace, name)) in all.iter().enumerate() {
            let holder = match next_lease_action(name, number, round) {
                LeaseAction::Skip => continue,
                LeaseAction::Renew => None,
                LeaseAction::SetHolder(revision) => Some(revision),
            };
            let mut renewed = renewals.lock().await;
            patch_lease(&client, (namespace, name), holder.as_deref()).await;
            *renewed += 1;
            drop(renewed);
            let done = u32::try_from(number + 1).unwrap_or(count);
            sleep_until(started + every * done / count).await;
        }
        if all.is_empty() {
            sleep(Duration::from_secs(1)).await;
        }
    }
}

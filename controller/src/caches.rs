//! Watches on all managed objects, selected by label, kept in small caches and mapped to reconciles of their Etcd.
//!
//! ```text
//! API server ─ watch, by label ─► trim ─► pack ─► store
//!                                   └ relevant change? ─► reconcile of the Etcd
//! ```
//!
//! Invariants: Secrets are not watched. Pods are trimmed to the fields in use. A renewed Lease is stored but triggers no
//! reconcile: a thousand idle clusters renew hundreds of Leases per second.

pub(crate) mod backoff;
mod lazy_etcd;
pub(crate) mod packed;

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backoff::WatchBackoff;
use futures::channel::mpsc;
use futures::{SinkExt, TryStreamExt, pin_mut};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::reflector::{ObjectRef, store};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Client, Resource, ResourceExt};
use mainstay_manifests::labels::{JOB_ETCD, MANAGED_BY, MANAGED_BY_DRUID, PART_OF};
use packed::{Packed, PackedStore};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::fingerprint::hash_value;
use crate::trim;

pub(crate) use lazy_etcd::LazyEtcd;

/// Pending reconcile requests before the watches block: more than there are clusters, and little memory.
const TRIGGER_BUFFER: usize = 4096;
/// Objects per list page. All kinds are listed in parallel and an unpacked page is large, so pages are small.
pub(crate) const PAGE_SIZE: u32 = 50;

/// Caches of all watched kinds.
#[derive(Clone, Debug)]
pub(crate) struct Stores {
    pub(crate) service_accounts: PackedStore<ServiceAccount>,
    pub(crate) roles: PackedStore<Role>,
    pub(crate) role_bindings: PackedStore<RoleBinding>,
    pub(crate) leases: PackedStore<Lease>,
    pub(crate) pdbs: PackedStore<DynamicObject>,
    pub(crate) services: PackedStore<Service>,
    pub(crate) config_maps: PackedStore<ConfigMap>,
    pub(crate) stateful_sets: PackedStore<StatefulSet>,
    pub(crate) pods: PackedStore<Pod>,
    pub(crate) pvcs: PackedStore<PersistentVolumeClaim>,
    pub(crate) jobs: PackedStore<Job>,
    /// The version of PodDisruptionBudgets that the API server serves.
    pub(crate) pdb_resource: ApiResource,
}

/// The running watches.
#[derive(Debug)]
pub(crate) struct Watches {
    pub(crate) stores: Stores,
    /// Etcds whose objects have changed.
    pub(crate) triggers: mpsc::Receiver<ObjectRef<LazyEtcd>>,
    /// One task per kind; a task that ends is an error.
    pub(crate) tasks: JoinSet<()>,
    is_ready: Arc<AtomicBool>,
}

#[derive(Debug, thiserror::Error)]
#[error("watch ended before its first list was complete")]
#[non_exhaustive]
pub(crate) struct WatchEnded;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum WatchScope {
    /// All namespaces.
    #[default]
    Cluster,
    Namespace(String),
}

impl WatchScope {
    pub(crate) fn api<K>(&self, client: &Client) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        match self {
            Self::Cluster => Api::all(client.clone()),
            Self::Namespace(namespace) => Api::namespaced(client.clone(), namespace),
        }
    }

    fn dynamic_api(&self, client: &Client, resource: &ApiResource) -> Api<DynamicObject> {
        match self {
            Self::Cluster => Api::all_with(client.clone(), resource),
            Self::Namespace(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        }
    }
}

struct WatchStarter {
    client: Client,
    scope: WatchScope,
    triggers: mpsc::Sender<ObjectRef<LazyEtcd>>,
    is_ready: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Watches {
    /// Starts all watches; `budgets` is the version of PodDisruptionBudgets that the API server serves.
    pub(crate) fn start(client: &Client, scope: &WatchScope, budgets: ApiResource) -> Self {
        let (send, triggers) = mpsc::channel(TRIGGER_BUFFER);
        let is_ready = Arc::new(AtomicBool::new(false));
        let mut start = WatchStarter {
            client: client.clone(),
            scope: scope.clone(),
            triggers: send,
            is_ready: Arc::clone(&is_ready),
            tasks: JoinSet::new(),
        };
        let stores = Stores {
            service_accounts: start.watch_kind(|_| {}, hash_resource_version),
            roles: start.watch_kind(|_| {}, hash_resource_version),
            role_bindings: start.watch_kind(|_| {}, hash_resource_version),
            leases: start.watch_kind(trim::trim_lease, trim::hash_lease_change),
            pdbs: start.watch_pdbs(&budgets),
            services: start.watch_kind(|_| {}, hash_resource_version),
            config_maps: start.watch_kind(|_| {}, hash_resource_version),
            stateful_sets: start.watch_kind(|_| {}, hash_resource_version),
            pods: start.watch_kind(trim::trim_pod, trim::hash_pod_change),
            pvcs: start.watch_kind(trim::trim_pvc, hash_resource_version),
            jobs: start.watch_kind(|_| {}, hash_resource_version),
            pdb_resource: budgets,
        };
        let tasks = start.tasks;
        Self {
            stores,
            triggers,
            tasks,
            is_ready,
        }
    }

    /// Waits until every kind has been listed once. Changes trigger reconciles only from then on, because a reconcile on
    /// incomplete caches would take existing objects for missing.
    pub(crate) async fn wait_until_ready(&self) -> Result<(), WatchEnded> {
        let Stores {
            service_accounts,
            roles,
            role_bindings,
            leases,
            pdbs,
            services,
            config_maps,
            stateful_sets,
            pods,
            pvcs,
            jobs,
            pdb_resource: _,
        } = &self.stores;
        let first = tokio::try_join!(
            service_accounts.wait_until_ready(),
            roles.wait_until_ready(),
            role_bindings.wait_until_ready(),
            leases.wait_until_ready(),
            pdbs.wait_until_ready(),
            services.wait_until_ready(),
            config_maps.wait_until_ready(),
            stateful_sets.wait_until_ready(),
            pods.wait_until_ready(),
            pvcs.wait_until_ready(),
            jobs.wait_until_ready(),
        );
        first.map_err(|_| WatchEnded)?;
        self.is_ready.store(true, Ordering::Release);
        Ok(())
    }
}

impl WatchStarter {
    fn watch_kind<K>(&mut self, trim: fn(&mut K), mark: fn(&K) -> u64) -> PackedStore<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        let api = self.scope.api::<K>(&self.client);
        let (reader, writer) = store::<Packed<K>>();
        self.spawn_watch(api, writer, trim, mark);
        reader
    }

    fn watch_pdbs(&mut self, resource: &ApiResource) -> PackedStore<DynamicObject> {
        let api = self.scope.dynamic_api(&self.client, resource);
        let writer = store::Writer::new(resource.clone());
        let reader = writer.as_reader();
        self.spawn_watch(api, writer, |_| {}, hash_resource_version);
        reader
    }

    fn spawn_watch<K>(
        &mut self,
        api: Api<K>,
        mut writer: store::Writer<Packed<K>>,
        trim: fn(&mut K),
        mark: fn(&K) -> u64,
    ) where
        K: Resource + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Eq + Hash + Clone + Debug + Send + Sync + Unpin,
    {
        let config = watcher::Config::default()
            .labels(&format!("{MANAGED_BY}={MANAGED_BY_DRUID}"))
            .page_size(PAGE_SIZE);
        let mut send = self.triggers.clone();
        let is_started = Arc::clone(&self.is_ready);
        let stream = watch(api, config)
            // managedFields are the largest part of many objects and never read.
            .modify(move |object| {
                object.meta_mut().managed_fields = None;
                trim(object);
            })
            .backoff(WatchBackoff::default());
        self.tasks.spawn(async move {
            let mut marks = WatchChangeTracker::new(mark);
            pin_mut!(stream);
            loop {
                match stream.try_next().await {
                    Ok(Some(event)) => {
                        let changed = marks.process_event(&event);
                        // Stored before the reconcile is triggered, so that it observes the change.
                        writer.apply_watcher_event(&Packed::pack_event(&event));
                        // The controller lists and reconciles all Etcds itself at the start.
                        if !is_started.load(Ordering::Acquire) {
                            continue;
                        }
                        for etcd in changed {
                            if send.send(etcd).await.is_err() {
                                return; // the receiver is gone: the process is stopping
                            }
                        }
                    }
                    Ok(None) => return,
                    Err(error) => {
                        tracing::warn!(error = %mainstay_telemetry::ErrorChain(&error), kind = std::any::type_name::<K>(), "watch interrupted, retrying");
                    }
                }
            }
        });
    }
}

/// Namespace and name of an object.
type ObjectKey = (String, String);

#[derive(Clone, Debug)]
struct TrackedObject {
    /// Hash of the fields whose change is relevant.
    change_hash: u64,
    /// From the labels; `None` without one.
    etcd_name: Option<String>,
}

/// The last observed state of each object of one kind, to tell relevant changes from others.
struct WatchChangeTracker<K> {
    hash_change: fn(&K) -> u64,
    known: HashMap<ObjectKey, TrackedObject>,
    /// Objects of a list in progress, after the watch was interrupted.
    relisted: HashMap<ObjectKey, TrackedObject>,
}

impl<K: Resource> WatchChangeTracker<K> {
    fn new(hash_change: fn(&K) -> u64) -> Self {
        Self {
            hash_change,
            known: HashMap::new(),
            relisted: HashMap::new(),
        }
    }

    /// The Etcds that a watch event affects. A list is processed when it is complete: only then it is in the store, and only
    /// then missing objects are known to be deleted.
    fn process_event(&mut self, event: &Event<K>) -> Vec<ObjectRef<LazyEtcd>> {
        match event {
            Event::Apply(object) => {
                let (key, now) = self.track(object);
                let owner = owning_etcd(&key, &now);
                let before = self.known.insert(key, now.clone());
                let is_new = before.is_none_or(|before| before.change_hash != now.change_hash);
                owner.filter(|_| is_new).into_iter().collect()
            }
            Event::Delete(object) => {
                let (key, now) = self.track(object);
                self.known.remove(&key);
                owning_etcd(&key, &now).into_iter().collect()
            }
            Event::Init => {
                self.relisted.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                let (key, now) = self.track(object);
                self.relisted.insert(key, now);
                Vec::new()
            }
            Event::InitDone => self.finish_relist(),
        }
    }

    fn finish_relist(&mut self) -> Vec<ObjectRef<LazyEtcd>> {
        let before = std::mem::replace(&mut self.known, std::mem::take(&mut self.relisted));
        let marks = |observed: &HashMap<ObjectKey, TrackedObject>, key: &ObjectKey| {
            observed.get(key).map(|one| one.change_hash)
        };
        let deleted = before
            .iter()
            .filter(|(key, _)| !self.known.contains_key(*key));
        let changed = self
            .known
            .iter()
            .filter(|(key, now)| marks(&before, key) != Some(now.change_hash));
        let affected: HashSet<_> = deleted
            .chain(changed)
            .filter_map(|(key, observed)| owning_etcd(key, observed))
            .collect();
        affected.into_iter().collect()
    }

    fn track(&self, object: &K) -> (ObjectKey, TrackedObject) {
        let labels = object.labels();
        // Pods of Jobs carry another label than the objects of the cluster.
        let owner = labels.get(PART_OF).or_else(|| labels.get(JOB_ETCD));
        let namespace = object.meta().namespace.clone().unwrap_or_default();
        let observed = TrackedObject {
            change_hash: (self.hash_change)(object),
            etcd_name: owner.cloned(),
        };
        ((namespace, object.name_any()), observed)
    }
}

fn owning_etcd(
    (namespace, _): &ObjectKey,
    observed: &TrackedObject,
) -> Option<ObjectRef<LazyEtcd>> {
    Some(ObjectRef::new(observed.etcd_name.as_deref()?).within(namespace))
}

/// For kinds of which every change is relevant.
fn hash_resource_version<K: Resource>(object: &K) -> u64 {
    hash_value(&object.meta().resource_version)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn service(name: &str, version: u32) -> Service {
        let mut service = Service::default();
        service.metadata.name = Some(format!("{name}-client"));
        service.metadata.namespace = Some("shoot".to_owned());
        service.metadata.resource_version = Some(version.to_string());
        service.metadata.labels = Some(BTreeMap::from([(PART_OF.to_owned(), name.to_owned())]));
        service
    }

    fn etcd_names(changed: Vec<ObjectRef<LazyEtcd>>) -> Vec<String> {
        let mut names: Vec<String> = changed.into_iter().map(|etcd| etcd.name).collect();
        names.sort();
        names
    }

    #[test]
    fn changes_during_a_watch_gap_are_reported_after_the_relist() {
        let mut marks = WatchChangeTracker::<Service>::new(hash_resource_version);
        for name in ["kept", "changed", "gone"] {
            let affected = marks.process_event(&Event::Apply(service(name, 1)));
            assert_eq!(etcd_names(affected), [name]);
        }
        let again = marks.process_event(&Event::Apply(service("kept", 1)));
        assert!(again.is_empty(), "nothing changed");

        let listed = [("kept", 1), ("changed", 2), ("made", 3)];
        let mut affected = marks.process_event(&Event::Init);
        for (name, version) in listed {
            affected.extend(marks.process_event(&Event::InitApply(service(name, version))));
        }
        assert!(affected.is_empty(), "{affected:?}");
        let affected = marks.process_event(&Event::InitDone);
        assert_eq!(etcd_names(affected), ["changed", "gone", "made"]);
    }
}

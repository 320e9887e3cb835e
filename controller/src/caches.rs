//! What is watched: everything a cluster is made of, by label, kept small, and turned into "look at this Etcd again".
//!
//! ```text
//! API server ─ watch, label-scoped ─► slim ─► packed ─► store
//!                                       └ what changed that matters? ─► Etcd to look at
//! ```
//!
//! **Holds**: secrets are not watched. Of pods only what is looked at is kept. A renewed Lease is stored
//! and wakes nobody: a thousand quiet clusters renew hundreds a second.

mod guarded;
pub mod packed;
pub mod pauses;

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
use pauses::WatchBackoff;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::trim;

pub use guarded::LazyEtcd;

/// How many Etcds may wait to be looked at before watches pause: more than there are clusters, little memory.
const TRIGGER_BUFFER: usize = 4096;
/// How many objects are listed at a time: all kinds are listed at once, and what is being read is large.
pub(crate) const PAGE_SIZE: u32 = 50;

/// Everything that is kept of the API server's objects.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each is the kind it is named after")]
pub struct Stores {
    pub service_accounts: PackedStore<ServiceAccount>,
    pub roles: PackedStore<Role>,
    pub role_bindings: PackedStore<RoleBinding>,
    pub leases: PackedStore<Lease>,
    pub pdbs: PackedStore<DynamicObject>,
    pub services: PackedStore<Service>,
    pub config_maps: PackedStore<ConfigMap>,
    pub stateful_sets: PackedStore<StatefulSet>,
    pub pods: PackedStore<Pod>,
    pub pvcs: PackedStore<PersistentVolumeClaim>,
    pub jobs: PackedStore<Job>,
    /// Which version of disruption budgets the API server serves.
    pub pdb_resource: ApiResource,
}

/// The watches as they run.
#[derive(Debug)]
pub struct Watches {
    /// What they keep.
    pub stores: Stores,
    /// The Etcds whose parts changed.
    pub triggers: mpsc::Receiver<ObjectRef<LazyEtcd>>,
    /// The watches; one that ends is an error.
    pub tasks: JoinSet<()>,
    is_ready: Arc<AtomicBool>,
}

/// Why watching did not begin.
#[derive(Debug, thiserror::Error)]
#[error("a watch ended before its first list was complete")]
#[non_exhaustive]
pub struct WatchEnded;

/// Where to look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WatchScope {
    /// Everywhere.
    #[default]
    Cluster,
    /// In one namespace.
    Namespace(String),
}

impl WatchScope {
    /// The objects of one kind in it.
    pub fn api<K>(&self, client: &Client) -> Api<K>
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
    /// Begins to watch; `budgets` is the version of disruption budgets the API server serves.
    pub fn start(client: &Client, scope: &WatchScope, budgets: ApiResource) -> Self {
        let (send, triggers) = mpsc::channel(TRIGGER_BUFFER);
        let is_started = Arc::new(AtomicBool::new(false));
        let mut start = WatchStarter {
            client: client.clone(),
            scope: scope.clone(),
            triggers: send,
            is_ready: Arc::clone(&is_started),
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
            is_ready: is_started,
        }
    }

    /// Waits until every kind has been listed once. From then on changes are told.
    pub async fn wait_until_ready(&self) -> Result<(), WatchEnded> {
        let Stores {
            service_accounts,
            roles,
            role_bindings,
            leases,
            pdbs: budgets,
            services,
            config_maps,
            stateful_sets,
            pods,
            pvcs: claims,
            jobs,
            pdb_resource: _,
        } = &self.stores;
        let first = tokio::try_join!(
            service_accounts.wait_until_ready(),
            roles.wait_until_ready(),
            role_bindings.wait_until_ready(),
            leases.wait_until_ready(),
            budgets.wait_until_ready(),
            services.wait_until_ready(),
            config_maps.wait_until_ready(),
            stateful_sets.wait_until_ready(),
            pods.wait_until_ready(),
            claims.wait_until_ready(),
            jobs.wait_until_ready(),
        );
        first.map_err(|_| WatchEnded)?;
        self.is_ready.store(true, Ordering::Release);
        Ok(())
    }
}

impl WatchStarter {
    fn watch_kind<K>(&mut self, slim: fn(&mut K), mark: fn(&K) -> u64) -> PackedStore<K>
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
        self.spawn_watch(api, writer, slim, mark);
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
        slim: fn(&mut K),
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
            .modify(move |object| {
                object.meta_mut().managed_fields = None;
                slim(object);
            })
            .backoff(WatchBackoff::default());
        self.tasks.spawn(async move {
            let mut marks = WatchChangeTracker::new(mark);
            pin_mut!(stream);
            loop {
                match stream.try_next().await {
                    Ok(Some(event)) => {
                        let changed = marks.process_event(&event);
                        writer.apply_watcher_event(&Packed::pack_event(&event));
                        if !is_started.load(Ordering::Acquire) {
                            continue;
                        }
                        for etcd in changed {
                            if send.send(etcd).await.is_err() {
                                return; // nobody listens any more: the process is stopping
                            }
                        }
                    }
                    Ok(None) => return,
                    Err(error) => {
                        tracing::warn!(error = %mainstay_telemetry::ErrorChain(&error), kind = std::any::type_name::<K>(), "a watch was interrupted");
                    }
                }
            }
        });
    }
}

/// Namespace and name of an object.
type ObjectKey = (String, String);

/// What was last seen of an object.
#[derive(Clone, Debug)]
struct TrackedObject {
    /// As a number.
    change_hash: u64,
    /// Name of the Etcd it belongs to.
    etcd_name: Option<String>,
}

/// What was last seen of each object.
struct WatchChangeTracker<K> {
    hash_change: fn(&K) -> u64,
    known: HashMap<ObjectKey, TrackedObject>,
    /// What is being listed again, after the watch was interrupted.
    relisted: HashMap<ObjectKey, TrackedObject>,
}

impl<K: Resource> WatchChangeTracker<K> {
    fn new(mark: fn(&K) -> u64) -> Self {
        Self {
            hash_change: mark,
            known: HashMap::new(),
            relisted: HashMap::new(),
        }
    }

    /// The Etcds whose parts changed in a way that matters. A list is told when it is complete, since only then it is in the
    /// store; what it lacks was deleted while nobody watched.
    fn process_event(&mut self, event: &Event<K>) -> Vec<ObjectRef<LazyEtcd>> {
        match event {
            Event::Apply(object) => {
                let (place, now) = self.track(object);
                let owner = owning_etcd(&place, &now);
                let before = self.known.insert(place, now.clone());
                let is_new = before.is_none_or(|before| before.change_hash != now.change_hash);
                owner.filter(|_| is_new).into_iter().collect()
            }
            Event::Delete(object) => {
                let (place, now) = self.track(object);
                self.known.remove(&place);
                owning_etcd(&place, &now).into_iter().collect()
            }
            Event::Init => {
                self.relisted.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                let (place, now) = self.track(object);
                self.relisted.insert(place, now);
                Vec::new()
            }
            Event::InitDone => self.finish_relist(),
        }
    }

    fn finish_relist(&mut self) -> Vec<ObjectRef<LazyEtcd>> {
        let before = std::mem::replace(&mut self.known, std::mem::take(&mut self.relisted));
        let marks =
            |observed: &HashMap<ObjectKey, TrackedObject>, place: &ObjectKey| observed.get(place).map(|one| one.change_hash);
        let gone = before
            .iter()
            .filter(|(place, _)| !self.known.contains_key(*place));
        let changed = self
            .known
            .iter()
            .filter(|(place, now)| marks(&before, place) != Some(now.change_hash));
        let told: HashSet<_> = gone
            .chain(changed)
            .filter_map(|(place, observed)| owning_etcd(place, observed))
            .collect();
        told.into_iter().collect()
    }

    fn track(&self, object: &K) -> (ObjectKey, TrackedObject) {
        let labels = object.labels();
        let owner = labels.get(PART_OF).or_else(|| labels.get(JOB_ETCD));
        let namespace = object.meta().namespace.clone().unwrap_or_default();
        let observed = TrackedObject {
            change_hash: (self.hash_change)(object),
            etcd_name: owner.cloned(),
        };
        ((namespace, object.name_any()), observed)
    }
}

/// The Etcd an object belongs to.
fn owning_etcd((namespace, _): &ObjectKey, observed: &TrackedObject) -> Option<ObjectRef<LazyEtcd>> {
    Some(ObjectRef::new(observed.etcd_name.as_deref()?).within(namespace))
}

/// Any change matters.
fn hash_resource_version<K: Resource>(object: &K) -> u64 {
    hash_value(&object.meta().resource_version)
}

/// A number that differs when the value does.
pub(crate) fn hash_value(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
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
    fn what_changed_or_went_while_nobody_watched_is_told_once_it_is_in_the_store() {
        let mut marks = WatchChangeTracker::<Service>::new(hash_resource_version);
        for name in ["kept", "changed", "gone"] {
            let told = marks.process_event(&Event::Apply(service(name, 1)));
            assert_eq!(etcd_names(told), [name]);
        }
        let again = marks.process_event(&Event::Apply(service("kept", 1)));
        assert!(again.is_empty(), "nothing changed");

        let listed = [("kept", 1), ("changed", 2), ("made", 3)];
        let mut told = marks.process_event(&Event::Init);
        for (name, version) in listed {
            told.extend(marks.process_event(&Event::InitApply(service(name, version))));
        }
        assert!(told.is_empty(), "{told:?}");
        let told = marks.process_event(&Event::InitDone);
        assert_eq!(etcd_names(told), ["changed", "gone", "made"]);
    }
}

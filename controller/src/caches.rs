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
use mainstay_manifests::labels::{JOB_FOR, MANAGED_BY, MANAGER, PART_OF};
use packed::{Packed, PackedStore};
use pauses::Pauses;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::trim;

pub use guarded::Guarded;

/// How many Etcds may wait to be looked at before watches pause: more than there are clusters, little memory.
const BACKLOG: usize = 4096;
/// How many objects are listed at a time: all kinds are listed at once, and what is being read is large.
pub(crate) const PAGE: u32 = 50;

/// Everything that is kept of the API server's objects.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each is the kind it is named after")]
pub struct Stores {
    pub service_accounts: PackedStore<ServiceAccount>,
    pub roles: PackedStore<Role>,
    pub role_bindings: PackedStore<RoleBinding>,
    pub leases: PackedStore<Lease>,
    pub budgets: PackedStore<DynamicObject>,
    pub services: PackedStore<Service>,
    pub config_maps: PackedStore<ConfigMap>,
    pub stateful_sets: PackedStore<StatefulSet>,
    pub pods: PackedStore<Pod>,
    pub claims: PackedStore<PersistentVolumeClaim>,
    pub jobs: PackedStore<Job>,
    /// Which version of disruption budgets the API server serves.
    pub budget_resource: ApiResource,
}

/// The watches as they run.
#[derive(Debug)]
pub struct Watching {
    /// What they keep.
    pub stores: Stores,
    /// The Etcds whose parts changed.
    pub triggers: mpsc::Receiver<ObjectRef<Guarded>>,
    /// The watches; one that ends is an error.
    pub tasks: JoinSet<()>,
    is_started: Arc<AtomicBool>,
}

/// Why watching did not begin.
#[derive(Debug, thiserror::Error)]
#[error("a watch ended before its first list was complete")]
#[non_exhaustive]
pub struct WatchEnded;

/// Where to look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Everywhere.
    #[default]
    Cluster,
    /// In one namespace.
    Namespace(String),
}

impl Scope {
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

    fn dynamic(&self, client: &Client, resource: &ApiResource) -> Api<DynamicObject> {
        match self {
            Self::Cluster => Api::all_with(client.clone(), resource),
            Self::Namespace(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        }
    }
}

struct Start {
    client: Client,
    scope: Scope,
    send: mpsc::Sender<ObjectRef<Guarded>>,
    is_started: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Watching {
    /// Begins to watch; `budgets` is the version of disruption budgets the API server serves.
    pub fn start(client: &Client, scope: &Scope, budgets: ApiResource) -> Self {
        let (send, triggers) = mpsc::channel(BACKLOG);
        let is_started = Arc::new(AtomicBool::new(false));
        let mut start = Start {
            client: client.clone(),
            scope: scope.clone(),
            send,
            is_started: Arc::clone(&is_started),
            tasks: JoinSet::new(),
        };
        let stores = Stores {
            service_accounts: start.all(|_| {}, whole),
            roles: start.all(|_| {}, whole),
            role_bindings: start.all(|_| {}, whole),
            leases: start.all(trim::lease, trim::lease_mark),
            budgets: start.budgets(&budgets),
            services: start.all(|_| {}, whole),
            config_maps: start.all(|_| {}, whole),
            stateful_sets: start.all(|_| {}, whole),
            pods: start.all(trim::pod, trim::pod_mark),
            claims: start.all(trim::claim, whole),
            jobs: start.all(|_| {}, whole),
            budget_resource: budgets,
        };
        let tasks = start.tasks;
        Self {
            stores,
            triggers,
            tasks,
            is_started,
        }
    }

    /// Waits until every kind has been listed once. From then on changes are told.
    pub async fn ready(&self) -> Result<(), WatchEnded> {
        let Stores {
            service_accounts,
            roles,
            role_bindings,
            leases,
            budgets,
            services,
            config_maps,
            stateful_sets,
            pods,
            claims,
            jobs,
            budget_resource: _,
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
        self.is_started.store(true, Ordering::Release);
        Ok(())
    }
}

impl Start {
    fn all<K>(&mut self, slim: fn(&mut K), mark: fn(&K) -> u64) -> PackedStore<K>
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
        self.run(api, writer, slim, mark);
        reader
    }

    fn budgets(&mut self, resource: &ApiResource) -> PackedStore<DynamicObject> {
        let api = self.scope.dynamic(&self.client, resource);
        let writer = store::Writer::new(resource.clone());
        let reader = writer.as_reader();
        self.run(api, writer, |_| {}, whole);
        reader
    }

    fn run<K>(
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
            .labels(&format!("{MANAGED_BY}={MANAGER}"))
            .page_size(PAGE);
        let mut send = self.send.clone();
        let is_started = Arc::clone(&self.is_started);
        let stream = watch(api, config)
            .modify(move |object| {
                object.meta_mut().managed_fields = None;
                slim(object);
            })
            .backoff(Pauses::default());
        self.tasks.spawn(async move {
            let mut marks = Marks::new(mark);
            pin_mut!(stream);
            loop {
                match stream.try_next().await {
                    Ok(Some(event)) => {
                        let changed = marks.changed(&event);
                        writer.apply_watcher_event(&Packed::event(&event));
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
                        tracing::warn!(error = %mainstay_telemetry::Chain(&error), kind = std::any::type_name::<K>(), "a watch was interrupted");
                    }
                }
            }
        });
    }
}

/// Namespace and name of an object.
type Place = (String, String);

/// What was last seen of an object.
#[derive(Clone, Debug)]
struct Seen {
    /// As a number.
    mark: u64,
    /// Name of the Etcd it belongs to.
    owner: Option<String>,
}

/// What was last seen of each object.
struct Marks<K> {
    mark: fn(&K) -> u64,
    seen: HashMap<Place, Seen>,
    /// What is being listed again, after the watch was interrupted.
    listed: HashMap<Place, Seen>,
}

impl<K: Resource> Marks<K> {
    fn new(mark: fn(&K) -> u64) -> Self {
        Self {
            mark,
            seen: HashMap::new(),
            listed: HashMap::new(),
        }
    }

    /// The Etcds whose parts changed in a way that matters. A list is told when it is complete, since only then it is in the
    /// store; what it lacks was deleted while nobody watched.
    fn changed(&mut self, event: &Event<K>) -> Vec<ObjectRef<Guarded>> {
        match event {
            Event::Apply(object) => {
                let (place, now) = self.look(object);
                let owner = etcd(&place, &now);
                let before = self.seen.insert(place, now.clone());
                let is_new = before.is_none_or(|before| before.mark != now.mark);
                owner.filter(|_| is_new).into_iter().collect()
            }
            Event::Delete(object) => {
                let (place, now) = self.look(object);
                self.seen.remove(&place);
                etcd(&place, &now).into_iter().collect()
            }
            Event::Init => {
                self.listed.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                let (place, now) = self.look(object);
                self.listed.insert(place, now);
                Vec::new()
            }
            Event::InitDone => self.listed_again(),
        }
    }

    fn listed_again(&mut self) -> Vec<ObjectRef<Guarded>> {
        let before = std::mem::replace(&mut self.seen, std::mem::take(&mut self.listed));
        let marks =
            |seen: &HashMap<Place, Seen>, place: &Place| seen.get(place).map(|one| one.mark);
        let gone = before
            .iter()
            .filter(|(place, _)| !self.seen.contains_key(*place));
        let changed = self
            .seen
            .iter()
            .filter(|(place, now)| marks(&before, place) != Some(now.mark));
        let told: HashSet<_> = gone
            .chain(changed)
            .filter_map(|(place, seen)| etcd(place, seen))
            .collect();
        told.into_iter().collect()
    }

    fn look(&self, object: &K) -> (Place, Seen) {
        let labels = object.labels();
        let owner = labels.get(PART_OF).or_else(|| labels.get(JOB_FOR));
        let namespace = object.meta().namespace.clone().unwrap_or_default();
        let seen = Seen {
            mark: (self.mark)(object),
            owner: owner.cloned(),
        };
        ((namespace, object.name_any()), seen)
    }
}

/// The Etcd an object belongs to.
fn etcd((namespace, _): &Place, seen: &Seen) -> Option<ObjectRef<Guarded>> {
    Some(ObjectRef::new(seen.owner.as_deref()?).within(namespace))
}

/// Any change matters.
fn whole<K: Resource>(object: &K) -> u64 {
    number(&object.meta().resource_version)
}

/// A number that differs when the value does.
pub(crate) fn number(value: &impl Hash) -> u64 {
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

    fn names(changed: Vec<ObjectRef<Guarded>>) -> Vec<String> {
        let mut names: Vec<String> = changed.into_iter().map(|etcd| etcd.name).collect();
        names.sort();
        names
    }

    #[test]
    fn what_changed_or_went_while_nobody_watched_is_told_once_it_is_in_the_store() {
        let mut marks = Marks::<Service>::new(whole);
        for name in ["kept", "changed", "gone"] {
            let told = marks.changed(&Event::Apply(service(name, 1)));
            assert_eq!(names(told), [name]);
        }
        let again = marks.changed(&Event::Apply(service("kept", 1)));
        assert!(again.is_empty(), "nothing changed");

        let listed = [("kept", 1), ("changed", 2), ("made", 3)];
        let mut told = marks.changed(&Event::Init);
        for (name, version) in listed {
            told.extend(marks.changed(&Event::InitApply(service(name, version))));
        }
        assert!(told.is_empty(), "{told:?}");
        let told = marks.changed(&Event::InitDone);
        assert_eq!(names(told), ["changed", "gone", "made"]);
    }
}

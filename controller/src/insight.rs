//! How far a controller is, for a caller in the same process that waits for it.
//!
//! A controller that writes nothing may have nothing to write, or may not have come to it yet: silence is no evidence of
//! either. This reports which version of every watched object the caches hold, and which version of every resource was reconciled
//! last. When both are the current versions and nothing was written, nothing is left to write.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::caches::Stores;
use crate::caches::packed::PackedStore;

/// An object at one version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Such as `Pod`.
    pub kind: String,
    /// The name of the object.
    pub name: String,
    /// Its `resourceVersion`.
    pub version: String,
}

/// Records nothing unless it was made with [`Insight::recording`]. Clones share what is recorded.
#[derive(Clone, Debug, Default)]
pub struct Insight(Option<Arc<Recorded>>);

#[derive(Debug, Default)]
struct Recorded {
    stores: OnceLock<Stores>,
    /// By kind, namespace and name.
    reconciled: Mutex<BTreeMap<(&'static str, String, String), String>>,
}

impl Insight {
    /// Records from now on.
    #[must_use]
    pub fn recording() -> Self {
        Self(Some(Arc::default()))
    }

    /// The caches are filled.
    pub(crate) fn caches(&self, stores: &Stores) {
        if let Some(recorded) = &self.0 {
            recorded.stores.set(stores.clone()).ok(); // a controller fills its caches once
        }
    }

    /// A reconcile of this resource ended, and is not retried.
    pub(crate) fn reconciled(&self, kind: &'static str, resource: &impl ResourceExt) {
        let Some((recorded, version)) = self.0.as_ref().zip(resource.resource_version()) else {
            return;
        };
        let namespace = resource.namespace().unwrap_or_default();
        let mut reconciled = recorded
            .reconciled
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        reconciled.insert((kind, namespace, resource.name_any()), version);
    }

    /// The version of a resource at which it was reconciled last; `None` when it never was, or nothing is recorded.
    #[must_use]
    pub fn reconciled_version(
        &self,
        kind: &'static str,
        namespace: &str,
        name: &str,
    ) -> Option<String> {
        let reconciled = &self.0.as_ref()?.reconciled;
        let reconciled = reconciled.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kind, namespace.to_owned(), name.to_owned());
        reconciled.get(&key).cloned()
    }

    /// Every object of a namespace as the caches hold it; `None` before they are filled.
    #[must_use]
    pub fn cached(&self, namespace: &str) -> Option<BTreeSet<Version>> {
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
            budget_resource,
        } = self.0.as_ref()?.stores.get()?;
        let all = [
            versions(service_accounts, namespace, &()),
            versions(roles, namespace, &()),
            versions(role_bindings, namespace, &()),
            versions(leases, namespace, &()),
            versions(budgets, namespace, budget_resource),
            versions(services, namespace, &()),
            versions(config_maps, namespace, &()),
            versions(stateful_sets, namespace, &()),
            versions(pods, namespace, &()),
            versions(claims, namespace, &()),
            versions(jobs, namespace, &()),
        ];
        Some(all.into_iter().flatten().collect())
    }
}

fn versions<K>(store: &PackedStore<K>, namespace: &str, of: &K::DynamicType) -> Vec<Version>
where
    K: Resource + DeserializeOwned + 'static,
    K::DynamicType: Eq + Hash + Clone + Debug,
{
    let objects = store.state();
    let objects = objects.iter().map(|packed| packed.unpack());
    let here = objects.filter(|object: &K| object.meta().namespace.as_deref() == Some(namespace));
    let version = |object: K| Version {
        kind: K::kind(of).into_owned(),
        name: object.name_any(),
        version: object.resource_version().unwrap_or_default(),
    };
    here.map(version).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn map(version: &str) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.name = Some("main".to_owned());
        map.metadata.namespace = Some("shoot".to_owned());
        map.metadata.resource_version = Some(version.to_owned());
        map
    }

    #[test]
    fn the_last_reconciled_version_is_recorded() {
        let insight = Insight::recording();
        let last = || insight.reconciled_version("Etcd", "shoot", "main");
        assert_eq!(last(), None);
        insight.reconciled("Etcd", &map("7"));
        insight.clone().reconciled("Etcd", &map("8"));
        assert_eq!(last().as_deref(), Some("8"));
        assert_eq!(insight.cached("shoot"), None, "no cache is filled yet");
    }

    #[test]
    fn nothing_is_recorded_unasked() {
        let insight = Insight::default();
        insight.reconciled("Etcd", &map("7"));
        let last = insight.reconciled_version("Etcd", "shoot", "main");
        assert_eq!(last, None);
    }
}

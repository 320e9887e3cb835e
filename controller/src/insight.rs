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
pub struct ObjectVersion {
    /// Such as `Pod`.
    pub kind: String,
    /// The name of the object.
    pub name: String,
    /// Its `resourceVersion`.
    pub version: String,
}

/// Records nothing unless it was made with [`Insight::recording`]. Clones share what is recorded.
#[derive(Clone, Debug, Default)]
pub struct ReconcileProbe(Option<Arc<ProbeState>>);

#[derive(Debug, Default)]
struct ProbeState {
    stores: OnceLock<Stores>,
    /// By kind, namespace and name.
    reconciled: Mutex<BTreeMap<(&'static str, String, String), String>>,
}

impl ReconcileProbe {
    /// Records from now on.
    #[must_use]
    pub fn enabled() -> Self {
        Self(Some(Arc::default()))
    }

    /// The caches are filled.
    pub(crate) fn set_stores(&self, stores: &Stores) {
        if let Some(recorded) = &self.0 {
            recorded.stores.set(stores.clone()).ok(); // a controller fills its caches once
        }
    }

    /// A reconcile of this resource ended, and is not retried.
    pub(crate) fn record_reconciled(&self, kind: &'static str, resource: &impl ResourceExt) {
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
    pub fn cached_versions(&self, namespace: &str) -> Option<BTreeSet<ObjectVersion>> {
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
            pdb_resource: budget_resource,
        } = self.0.as_ref()?.stores.get()?;
        let all = [
            list_versions(service_accounts, namespace, &()),
            list_versions(roles, namespace, &()),
            list_versions(role_bindings, namespace, &()),
            list_versions(leases, namespace, &()),
            list_versions(budgets, namespace, budget_resource),
            list_versions(services, namespace, &()),
            list_versions(config_maps, namespace, &()),
            list_versions(stateful_sets, namespace, &()),
            list_versions(pods, namespace, &()),
            list_versions(claims, namespace, &()),
            list_versions(jobs, namespace, &()),
        ];
        Some(all.into_iter().flatten().collect())
    }
}

fn list_versions<K>(store: &PackedStore<K>, namespace: &str, of: &K::DynamicType) -> Vec<ObjectVersion>
where
    K: Resource + DeserializeOwned + 'static,
    K::DynamicType: Eq + Hash + Clone + Debug,
{
    let objects = store.state();
    let objects = objects.iter().map(|packed| packed.unpack());
    let here = objects.filter(|object: &K| object.meta().namespace.as_deref() == Some(namespace));
    let version = |object: K| ObjectVersion {
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

    fn config_map(version: &str) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.name = Some("main".to_owned());
        map.metadata.namespace = Some("shoot".to_owned());
        map.metadata.resource_version = Some(version.to_owned());
        map
    }

    #[test]
    fn the_last_reconciled_version_is_recorded() {
        let insight = ReconcileProbe::enabled();
        let last = || insight.reconciled_version("Etcd", "shoot", "main");
        assert_eq!(last(), None);
        insight.record_reconciled("Etcd", &config_map("7"));
        insight.clone().record_reconciled("Etcd", &config_map("8"));
        assert_eq!(last().as_deref(), Some("8"));
        assert_eq!(insight.cached_versions("shoot"), None, "no cache is filled yet");
    }

    #[test]
    fn nothing_is_recorded_unasked() {
        let insight = ReconcileProbe::default();
        insight.record_reconciled("Etcd", &config_map("7"));
        let last = insight.reconciled_version("Etcd", "shoot", "main");
        assert_eq!(last, None);
    }
}

//! Progress of a controller, for tests in the same process.
//!
//! That nothing is written does not show that nothing is left to write. The probe reports the version of every cached
//! object and the version at which every resource was last reconciled. When both are current, nothing is left to write.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::caches::Stores;
use crate::caches::packed::PackedStore;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectVersion {
    pub kind: String,
    pub name: String,
    /// `resourceVersion`.
    pub version: String,
}

/// The default records nothing. Clones share the records.
#[derive(Clone, Debug, Default)]
pub struct ReconcileProbe(Option<Arc<ProbeState>>);

#[derive(Debug, Default)]
struct ProbeState {
    stores: OnceLock<Stores>,
    /// By kind, namespace and name.
    reconciled: Mutex<BTreeMap<(&'static str, String, String), String>>,
}

impl ReconcileProbe {
    #[must_use]
    pub fn enabled() -> Self {
        Self(Some(Arc::default()))
    }

    /// Call when the caches are filled.
    pub(crate) fn set_stores(&self, stores: &Stores) {
        if let Some(recorded) = &self.0 {
            recorded.stores.set(stores.clone()).ok(); // a controller fills its caches once
        }
    }

    /// A reconcile of this resource ended and is not retried.
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

    /// The version at which a resource was last reconciled; `None` if it never was, or the probe is disabled.
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

    /// All cached objects of a namespace; `None` before the caches are filled.
    #[must_use]
    pub fn cached_versions(&self, namespace: &str) -> Option<BTreeSet<ObjectVersion>> {
        let Stores {
            service_accounts,
            roles,
            role_bindings,
            leases,
            pdbs: pdb_store,
            services,
            config_maps,
            stateful_sets,
            pods,
            pvcs: pvcs_store,
            jobs,
            pdb_resource,
        } = self.0.as_ref()?.stores.get()?;
        let all = [
            list_versions(service_accounts, namespace, &()),
            list_versions(roles, namespace, &()),
            list_versions(role_bindings, namespace, &()),
            list_versions(leases, namespace, &()),
            list_versions(pdb_store, namespace, pdb_resource),
            list_versions(services, namespace, &()),
            list_versions(config_maps, namespace, &()),
            list_versions(stateful_sets, namespace, &()),
            list_versions(pods, namespace, &()),
            list_versions(pvcs_store, namespace, &()),
            list_versions(jobs, namespace, &()),
        ];
        Some(all.into_iter().flatten().collect())
    }
}

fn list_versions<K>(
    store: &PackedStore<K>,
    namespace: &str,
    dynamic_type: &K::DynamicType,
) -> Vec<ObjectVersion>
where
    K: Resource + DeserializeOwned + 'static,
    K::DynamicType: Eq + Hash + Clone + Debug,
{
    let objects = store.state();
    let objects = objects.iter().map(|packed| packed.unpack());
    let here = objects.filter(|object: &K| object.meta().namespace.as_deref() == Some(namespace));
    let version = |object: K| ObjectVersion {
        kind: K::kind(dynamic_type).into_owned(),
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
    fn probe_records_the_last_reconciled_version() {
        let probe = ReconcileProbe::enabled();
        let last = || probe.reconciled_version("Etcd", "shoot", "main");
        assert_eq!(last(), None);
        probe.record_reconciled("Etcd", &config_map("7"));
        probe.clone().record_reconciled("Etcd", &config_map("8"));
        assert_eq!(last().as_deref(), Some("8"));
        assert_eq!(
            probe.cached_versions("shoot"),
            None,
            "no cache is filled yet"
        );
    }

    #[test]
    fn disabled_probe_records_nothing() {
        let probe = ReconcileProbe::default();
        probe.record_reconciled("Etcd", &config_map("7"));
        let last = probe.reconciled_version("Etcd", "shoot", "main");
        assert_eq!(last, None);
    }
}

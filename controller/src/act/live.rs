//! Looks up cached objects by kind and name.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ActError;
use crate::caches::Stores;
use crate::caches::packed::{PackedStore, get};

/// The cached object as JSON; `None` when it does not exist or its kind is not cached.
pub(super) fn find_object(
    stores: &Stores,
    resource: &ApiResource,
    object: &DynamicObject,
) -> Result<Option<Value>, ActError> {
    let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
    let key = (name.as_str(), namespace.as_str());
    match resource.kind.as_str() {
        "ServiceAccount" => find_typed(&stores.service_accounts, key),
        "Role" => find_typed(&stores.roles, key),
        "RoleBinding" => find_typed(&stores.role_bindings, key),
        "Lease" => find_typed(&stores.leases, key),
        "Service" => find_typed(&stores.services, key),
        "ConfigMap" => find_typed(&stores.config_maps, key),
        "StatefulSet" => find_typed(&stores.stateful_sets, key),
        "PodDisruptionBudget" => find_pdb(stores, key),
        _ => Ok(None),
    }
}

/// The metadata of the cached object; `None` when it does not exist or its kind is not cached.
pub(super) fn find_metadata(
    stores: &Stores,
    kind: &str,
    name: &str,
    namespace: &str,
) -> Option<ObjectMeta> {
    match kind {
        "ServiceAccount" => typed_metadata(&stores.service_accounts, name, namespace),
        "Role" => typed_metadata(&stores.roles, name, namespace),
        "RoleBinding" => typed_metadata(&stores.role_bindings, name, namespace),
        "Lease" => typed_metadata(&stores.leases, name, namespace),
        "Service" => typed_metadata(&stores.services, name, namespace),
        "ConfigMap" => typed_metadata(&stores.config_maps, name, namespace),
        "StatefulSet" => typed_metadata(&stores.stateful_sets, name, namespace),
        "Job" => typed_metadata(&stores.jobs, name, namespace),
        "PodDisruptionBudget" => {
            let key = ObjectRef::new_with(name, stores.pdb_resource.clone()).within(namespace);
            stores.pdbs.get(&key).map(|budget| budget.unpack().metadata)
        }
        _ => None,
    }
}

fn typed_metadata<K>(store: &PackedStore<K>, name: &str, namespace: &str) -> Option<ObjectMeta>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
{
    get(store, name, namespace).map(|object| object.meta().clone())
}

fn find_typed<K>(
    store: &PackedStore<K>,
    (name, namespace): (&str, &str),
) -> Result<Option<Value>, ActError>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + 'static,
{
    let found = get(store, name, namespace);
    found
        .map(|object| to_json(&object, &K::kind(&()), name))
        .transpose()
}

fn find_pdb(stores: &Stores, (name, namespace): (&str, &str)) -> Result<Option<Value>, ActError> {
    let key = ObjectRef::new_with(name, stores.pdb_resource.clone()).within(namespace);
    let Some(found) = stores.pdbs.get(&key) else {
        return Ok(None);
    };
    let resource = &stores.pdb_resource;
    let mut value = to_json(&found.unpack(), &resource.kind, name)?;
    // Items of a list carry no apiVersion and kind; the comparison with the rendered object needs them.
    value["apiVersion"] = resource.api_version.clone().into();
    value["kind"] = resource.kind.clone().into();
    Ok(Some(value))
}

fn to_json(object: &impl Serialize, kind: &str, name: &str) -> Result<Value, ActError> {
    serde_json::to_value(object).map_err(|source| ActError::Encode {
        kind: kind.to_owned(),
        name: name.to_owned(),
        source,
    })
}

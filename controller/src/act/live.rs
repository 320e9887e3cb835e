//! The object a store holds, whatever its kind.

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

/// The object as it is, by kind and name.
pub(super) fn find(
    stores: &Stores,
    resource: &ApiResource,
    object: &DynamicObject,
) -> Result<Option<Value>, ActError> {
    let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
    let at = (name.as_str(), namespace.as_str());
    match resource.kind.as_str() {
        "ServiceAccount" => typed(&stores.service_accounts, at),
        "Role" => typed(&stores.roles, at),
        "RoleBinding" => typed(&stores.role_bindings, at),
        "Lease" => typed(&stores.leases, at),
        "Service" => typed(&stores.services, at),
        "ConfigMap" => typed(&stores.config_maps, at),
        "StatefulSet" => typed(&stores.stateful_sets, at),
        "PodDisruptionBudget" => budget(stores, at),
        _ => Ok(None),
    }
}

/// Identity of the object, by kind and name.
pub(super) fn meta(stores: &Stores, kind: &str, name: &str, namespace: &str) -> Option<ObjectMeta> {
    match kind {
        "ServiceAccount" => identity(&stores.service_accounts, name, namespace),
        "Role" => identity(&stores.roles, name, namespace),
        "RoleBinding" => identity(&stores.role_bindings, name, namespace),
        "Lease" => identity(&stores.leases, name, namespace),
        "Service" => identity(&stores.services, name, namespace),
        "ConfigMap" => identity(&stores.config_maps, name, namespace),
        "StatefulSet" => identity(&stores.stateful_sets, name, namespace),
        "Job" => identity(&stores.jobs, name, namespace),
        "PodDisruptionBudget" => {
            let key = ObjectRef::new_with(name, stores.budget_resource.clone()).within(namespace);
            stores
                .budgets
                .get(&key)
                .map(|budget| budget.unpack().metadata)
        }
        _ => None,
    }
}

fn identity<K>(store: &PackedStore<K>, name: &str, namespace: &str) -> Option<ObjectMeta>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
{
    get(store, name, namespace).map(|object| object.meta().clone())
}

fn typed<K>(
    store: &PackedStore<K>,
    (name, namespace): (&str, &str),
) -> Result<Option<Value>, ActError>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + 'static,
{
    let found = get(store, name, namespace);
    found
        .map(|object| encode(&object, &K::kind(&()), name))
        .transpose()
}

fn budget(stores: &Stores, (name, namespace): (&str, &str)) -> Result<Option<Value>, ActError> {
    let key = ObjectRef::new_with(name, stores.budget_resource.clone()).within(namespace);
    let Some(found) = stores.budgets.get(&key) else {
        return Ok(None);
    };
    let resource = &stores.budget_resource;
    let mut value = encode(&found.unpack(), &resource.kind, name)?;
    // What was listed does not repeat what it is a list of.
    value["apiVersion"] = resource.api_version.clone().into();
    value["kind"] = resource.kind.clone().into();
    Ok(Some(value))
}

fn encode(object: &impl Serialize, kind: &str, name: &str) -> Result<Value, ActError> {
    serde_json::to_value(object).map_err(|source| ActError::Encode {
        kind: kind.to_owned(),
        name: name.to_owned(),
        source,
    })
}

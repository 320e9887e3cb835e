//! Object metadata: name, labels, owner.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube_core::Resource;
use mainstay_crds::Etcd;

use crate::labels::{self, Component};

/// Metadata of an object of `etcd`.
pub(crate) fn build_metadata(etcd: &Etcd, name: &str, component: Component) -> ObjectMeta {
    let owner = etcd.metadata.name.as_deref().unwrap_or_default();
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: etcd.metadata.namespace.clone(),
        labels: Some(labels::for_object(owner, name, component)),
        owner_references: build_owner_references(etcd),
        ..ObjectMeta::default()
    }
}

/// Owner reference to `owner`; `None` if `owner` was never stored and has no UID.
pub(crate) fn build_owner_references<K: Resource<DynamicType = ()>>(
    owner: &K,
) -> Option<Vec<OwnerReference>> {
    owner.controller_owner_ref(&()).map(|reference| {
        vec![OwnerReference {
            // Foreground deletion of the owner waits until this object is deleted.
            block_owner_deletion: Some(true),
            ..reference
        }]
    })
}

//! The body of a status update.

use kube_core::object::HasStatus;
use kube_core::{Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

/// Returns the body of a server-side apply to the status subresource of `resource`: identity and status, no spec
/// and no other metadata. All other fields of the stored resource stay unchanged, even unknown ones.
///
/// ```
/// use mainstay_crds::{Etcd, EtcdSpec, EtcdStatus, status};
///
/// let mut etcd = Etcd::new("main", EtcdSpec::default());
/// etcd.metadata.namespace = Some("shoot".into());
/// let body = status::apply(&etcd, &EtcdStatus { ready: Some(true), ..EtcdStatus::default() });
/// assert!(body.get("spec").is_none());
/// assert_eq!(body["metadata"], serde_json::json!({ "name": "main", "namespace": "shoot" }));
/// ```
pub fn apply<R>(resource: &R, status: &R::Status) -> Value
where
    R: Resource<DynamicType = ()> + HasStatus,
    R::Status: Serialize,
{
    let mut metadata = json!({ "name": resource.name_any() });
    if let Some(namespace) = resource.namespace() {
        metadata["namespace"] = namespace.into();
    }
    json!({
        "apiVersion": R::api_version(&()),
        "kind": R::kind(&()),
        "metadata": metadata,
        "status": status,
    })
}

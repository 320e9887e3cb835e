//! An Etcd as JSON that is parsed when it is reconciled.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use mainstay_crds::Etcd;
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::Value;

/// An Etcd that is parsed late: one that cannot be parsed fails its own reconcile, and not the watch of all others.
#[derive(Clone)]
pub(crate) struct LazyEtcd {
    /// Only name, namespace, uid and resourceVersion.
    meta: ObjectMeta,
    json: Box<[u8]>,
}

impl fmt::Debug for LazyEtcd {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&String::from_utf8_lossy(&self.json))
    }
}

impl LazyEtcd {
    pub(crate) fn parse(&self) -> Result<Etcd, serde_json::Error> {
        serde_json::from_slice(&self.json)
    }
}

impl<'de> Deserialize<'de> for LazyEtcd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Any JSON is accepted here: an error would stop the watch of all Etcds.
        let mut value = Value::deserialize(deserializer)?;
        if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.remove("managedFields");
        }
        let whole = ObjectMeta::deserialize(&value["metadata"]).map_err(D::Error::custom)?;
        let meta = ObjectMeta {
            name: whole.name,
            namespace: whole.namespace,
            uid: whole.uid,
            resource_version: whole.resource_version,
            ..ObjectMeta::default()
        };
        let text = serde_json::to_vec(&value).map_err(D::Error::custom)?;
        Ok(Self {
            meta,
            json: text.into_boxed_slice(),
        })
    }
}

impl Resource for LazyEtcd {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(dynamic_type: &()) -> Cow<'_, str> {
        Etcd::kind(dynamic_type)
    }

    fn group(dynamic_type: &()) -> Cow<'_, str> {
        Etcd::group(dynamic_type)
    }

    fn version(dynamic_type: &()) -> Cow<'_, str> {
        Etcd::version(dynamic_type)
    }

    fn plural(dynamic_type: &()) -> Cow<'_, str> {
        Etcd::plural(dynamic_type)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use serde_json::json;

    use super::*;

    fn deserialize_etcd(spec: &Value) -> LazyEtcd {
        let etcd = json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd", "spec": spec,
            "metadata": {
                "name": "main", "labels": {"team": "blue"}, "managedFields": [{"manager": "x"}],
            },
        });
        serde_json::from_value(etcd).unwrap()
    }

    #[test]
    fn cached_etcd_is_parsed_without_managed_fields() {
        let spec = json!({"replicas": 1, "labels": {}, "etcd": {}, "backup": {}});
        let etcd = deserialize_etcd(&spec).parse().unwrap();
        assert_eq!(etcd.spec.replicas, 1);
        assert_eq!(etcd.labels()["team"], "blue");
        assert_eq!(etcd.metadata.managed_fields, None);
    }

    #[test]
    fn unparsable_etcd_still_has_a_name() {
        let odd = deserialize_etcd(&json!({"replicas": "many"}));
        assert_eq!(odd.name_any(), "main");
        let error = odd.parse().unwrap_err().to_string();
        assert!(error.contains("many"), "{error}");
    }
}

//! Cached objects as JSON, to save memory.
//!
//! A deserialized StatefulSet takes tens of kilobytes, mostly for unset fields; its JSON takes a few. Objects are read
//! rarely, one cluster at a time, so they are deserialized on each read.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Labels that can be searched without unpacking.
const INDEXED_LABELS: [&str; 2] = [JOB_UID_LABEL, JOB_NAME_LABEL];
/// Label of Kubernetes on the pods of a Job.
pub(crate) const JOB_UID_LABEL: &str = "controller-uid";
/// The same by name, which also finds pods whose Job was deleted.
pub(crate) const JOB_NAME_LABEL: &str = "job-name";

pub(crate) struct Packed<K> {
    /// Only name, namespace and indexed labels.
    meta: ObjectMeta,
    json: Box<[u8]>,
    kind: PhantomData<fn() -> K>,
}

pub(crate) type PackedStore<K> = Store<Packed<K>>;

impl<K: Resource + Serialize> Packed<K> {
    pub(super) fn new(object: &K) -> Self {
        let whole = object.meta();
        let labels = whole.labels.iter().flatten();
        let indexed = labels.filter(|(key, _)| INDEXED_LABELS.contains(&key.as_str()));
        let indexed = indexed.map(|(key, value)| (key.clone(), value.clone()));
        let meta = ObjectMeta {
            name: whole.name.clone(),
            namespace: whole.namespace.clone(),
            labels: Some(indexed.collect())
                .filter(|all: &std::collections::BTreeMap<_, _>| !all.is_empty()),
            ..ObjectMeta::default()
        };
        let text = serde_json::to_vec(object)
            .expect("an object that was deserialized from JSON serializes");
        Self {
            meta,
            json: text.into_boxed_slice(),
            kind: PhantomData,
        }
    }

    pub(super) fn pack_event(event: &Event<K>) -> Event<Self> {
        match event {
            Event::Apply(object) => Event::Apply(Self::new(object)),
            Event::Delete(object) => Event::Delete(Self::new(object)),
            Event::Init => Event::Init,
            Event::InitApply(object) => Event::InitApply(Self::new(object)),
            Event::InitDone => Event::InitDone,
        }
    }
}

impl<K: DeserializeOwned> Packed<K> {
    pub(crate) fn unpack(&self) -> K {
        serde_json::from_slice(&self.json).expect("packed JSON deserializes")
    }
}

pub(crate) fn get<K>(store: &PackedStore<K>, name: &str, namespace: &str) -> Option<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
{
    let found = store.get(&ObjectRef::new(name).within(namespace));
    found.map(|packed| packed.unpack())
}

/// The first object whose metadata (name, namespace, indexed labels) matches.
pub(crate) fn find<K>(store: &PackedStore<K>, is: impl Fn(&ObjectMeta) -> bool) -> Option<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
{
    let found: Option<Arc<Packed<K>>> = store.find(|packed| is(&packed.meta));
    found.map(|packed| packed.unpack())
}

/// All objects whose metadata (name, namespace, indexed labels) matches.
pub(crate) fn find_all<K>(store: &PackedStore<K>, is: impl Fn(&ObjectMeta) -> bool) -> Vec<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
{
    let all = store.state();
    let matching = all.iter().filter(|packed| is(&packed.meta));
    matching.map(|packed| packed.unpack()).collect()
}

impl<K> Clone for Packed<K> {
    fn clone(&self) -> Self {
        Self {
            meta: self.meta.clone(),
            json: self.json.clone(),
            kind: PhantomData,
        }
    }
}

impl<K> fmt::Debug for Packed<K> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&String::from_utf8_lossy(&self.json))
    }
}

impl<K: Resource> Resource for Packed<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic_type: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic_type)
    }

    fn group(dynamic_type: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dynamic_type)
    }

    fn version(dynamic_type: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dynamic_type)
    }

    fn plural(dynamic_type: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic_type)
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
    use k8s_openapi::api::core::v1::Pod;
    use kube::ResourceExt;

    use super::*;

    #[test]
    fn packed_object_unpacks_unchanged() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("main-0".to_owned());
        pod.metadata.resource_version = Some("7".to_owned());
        for (key, value) in [(JOB_UID_LABEL, "uid"), ("other", "label")] {
            pod.labels_mut().insert(key.to_owned(), value.to_owned());
        }
        let packed = Packed::new(&pod);
        assert_eq!(packed.unpack(), pod);
        assert_eq!(packed.name_any(), "main-0");
        assert_eq!(
            packed.labels().len(),
            1,
            "only indexed labels are kept outside of the JSON"
        );
    }
}

//! Objects as they are kept: small.
//!
//! A StatefulSet in memory takes tens of kilobytes, most of it room for fields nobody set; written as JSON it is a few. Objects
//! are looked at rarely, one cluster at a time, so they are kept written and read again when somebody looks.

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

/// Labels by which objects are looked for; others have to be unpacked.
const INDEXED_LABELS: [&str; 2] = [JOB_UID_LABEL, JOB_NAME_LABEL];
/// How Kubernetes names the Job of a pod.
pub(crate) const JOB_UID_LABEL: &str = "controller-uid";
/// The same by name, which a pod keeps when its Job is gone.
pub(crate) const JOB_NAME_LABEL: &str = "job-name";

/// An object, packed.
pub struct Packed<K> {
    /// Name, namespace, and labels by which it is looked for.
    meta: ObjectMeta,
    json: Box<[u8]>,
    kind: PhantomData<fn() -> K>,
}

/// Packed objects of one kind.
pub type PackedStore<K> = Store<Packed<K>>;

impl<K: Resource + Serialize> Packed<K> {
    /// Packs an object.
    pub(super) fn new(object: &K) -> Self {
        let whole = object.meta();
        let labels = whole.labels.iter().flatten();
        let sought = labels.filter(|(key, _)| INDEXED_LABELS.contains(&key.as_str()));
        let sought = sought.map(|(key, value)| (key.clone(), value.clone()));
        let meta = ObjectMeta {
            name: whole.name.clone(),
            namespace: whole.namespace.clone(),
            labels: Some(sought.collect())
                .filter(|all: &std::collections::BTreeMap<_, _>| !all.is_empty()),
            ..ObjectMeta::default()
        };
        let text = serde_json::to_vec(object).expect("an object that came as JSON");
        Self {
            meta,
            json: text.into_boxed_slice(),
            kind: PhantomData,
        }
    }

    /// What happened to an object, with the object packed.
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
    /// The object.
    pub(crate) fn unpack(&self) -> K {
        serde_json::from_slice(&self.json).expect("an object that was packed")
    }
}

/// One object of a store.
pub(crate) fn get<K>(store: &PackedStore<K>, name: &str, namespace: &str) -> Option<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
{
    let found = store.get(&ObjectRef::new(name).within(namespace));
    found.map(|packed| packed.unpack())
}

/// The first object that is sought, by what is kept beside it.
pub(crate) fn find<K>(store: &PackedStore<K>, is: impl Fn(&ObjectMeta) -> bool) -> Option<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
{
    let found: Option<Arc<Packed<K>>> = store.find(|packed| is(&packed.meta));
    found.map(|packed| packed.unpack())
}

/// All objects that are sought, by what is kept beside them.
pub(crate) fn find_all<K>(store: &PackedStore<K>, is: impl Fn(&ObjectMeta) -> bool) -> Vec<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
{
    let all = store.state();
    let sought = all.iter().filter(|packed| is(&packed.meta));
    sought.map(|packed| packed.unpack()).collect()
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

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(of)
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
    fn an_object_comes_out_as_it_went_in() {
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
            "of labels only what is sought is beside it"
        );
    }
}

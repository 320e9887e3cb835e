//! Every write to the API server: fencing by leadership, the field manager, preconditions, status codes, counters.
//!
//! ```text
//! act, publish, tasks ─► Writer ─ leader? ─► request ─► counted ─► Ok
//!                                   └ Fenced            └ Rejection: gone, conflict, refused
//! ```
//!
//! Invariants: no request is sent by a process that may not be the leader. A deletion carries the uid of the observed
//! object, unless only its name is known. A rejection is an error with its meaning, and only the caller knows whether it is one.

mod error;
mod fence;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
    PropagationPolicy,
};
use kube::runtime::events::{Event, Recorder};
use kube::{Client, Resource, ResourceExt};
use mainstay_telemetry::ErrorChain;
use serde::Serialize;
use serde_json::{Value, json};
use tracing::warn;

use crate::metrics::ControllerMetrics;
use crate::model::annotations::FIELD_MANAGER;

pub(crate) use error::{Rejection, WriteError, WriteResultExt, WriteVerb};
pub(crate) use fence::{Leadership, LeadershipLost};

/// The object that a write addresses.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) resource: ApiResource,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Target {
    pub(crate) fn new<K: Resource<DynamicType = ()>>(namespace: &str, name: &str) -> Self {
        Self {
            resource: api_resource::<K>(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// An object that was read before.
    pub(crate) fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        Self::with_resource(api_resource::<K>(), object.meta())
    }

    pub(crate) fn with_resource(resource: ApiResource, meta: &ObjectMeta) -> Self {
        Self {
            resource,
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }
}

pub(crate) fn api_resource<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

/// What happens to the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dependents {
    /// The default of the kind.
    Default,
    /// They are deleted after it.
    Background,
    /// They are deleted before it.
    Foreground,
    /// They stay.
    Orphan,
}

/// Whether an object should have a finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finalizer {
    Present,
    Absent,
}

/// Writes to the API server while this process leads.
#[derive(Clone)]
pub(crate) struct Writer {
    client: Client,
    leadership: Leadership,
    metrics: ControllerMetrics,
    recorder: Recorder,
}

impl Writer {
    pub(crate) fn new(
        client: Client,
        leadership: Leadership,
        metrics: ControllerMetrics,
        recorder: Recorder,
    ) -> Self {
        Self {
            client,
            leadership,
            metrics,
            recorder,
        }
    }

    /// Whether this process may write now, to the API server or to etcd.
    pub(crate) fn check_leadership(&self) -> Result<(), WriteError> {
        let checked = self.leadership.check();
        checked.map_err(|source| WriteError::Fenced { source })
    }

    fn api(&self, target: &Target) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &target.namespace, &target.resource)
    }

    /// Counts a write, or maps its error.
    fn record<T>(
        &self,
        verb: WriteVerb,
        target: &Target,
        written: kube::Result<T>,
    ) -> Result<T, WriteError> {
        let written = written.map_err(|source| WriteError::Request {
            verb,
            kind: target.resource.kind.clone(),
            name: target.name.clone(),
            source: Box::new(source),
        })?;
        self.metrics.record_write(&target.resource.kind);
        Ok(written)
    }

    /// Server-side apply. It answers 409 for a field that another manager owns; the fields applied here are ours, so it is forced.
    pub(crate) async fn apply(
        &self,
        target: &Target,
        body: &Value,
    ) -> Result<DynamicObject, WriteError> {
        self.check_leadership()?;
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let api = self.api(target);
        let applied = api.patch(&target.name, &params, &Patch::Apply(body)).await;
        self.record(WriteVerb::Apply, target, applied)
    }

    /// Server-side apply of the status.
    pub(crate) async fn apply_status(
        &self,
        target: &Target,
        body: &Value,
    ) -> Result<DynamicObject, WriteError> {
        self.check_leadership()?;
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let api = self.api(target);
        let patch = Patch::Apply(body);
        let applied = api.patch_status(&target.name, &params, &patch).await;
        self.record(WriteVerb::PatchStatus, target, applied)
    }

    /// Merges fields into the object. A `metadata.resourceVersion` in the patch makes a concurrent change a conflict.
    pub(crate) async fn merge(&self, target: &Target, patch: &Value) -> Result<(), WriteError> {
        self.check_leadership()?;
        let (api, patch) = (self.api(target), Patch::Merge(patch));
        let merged = api.patch(&target.name, &managed(), &patch).await;
        self.record(WriteVerb::Patch, target, merged).map(drop)
    }

    pub(crate) async fn merge_status(
        &self,
        target: &Target,
        patch: &Value,
    ) -> Result<(), WriteError> {
        self.check_leadership()?;
        let (api, patch) = (self.api(target), Patch::Merge(patch));
        let merged = api.patch_status(&target.name, &managed(), &patch).await;
        self.record(WriteVerb::PatchStatus, target, merged)
            .map(drop)
    }

    /// Makes the managed fields ours. The resourceVersion in the patch keeps a concurrent change.
    pub(crate) async fn take_over(&self, target: &Target, patch: &Value) -> Result<(), WriteError> {
        self.check_leadership()?;
        let (api, patch) = (self.api(target), Patch::Merge(patch));
        let merged = api.patch(&target.name, &managed(), &patch).await;
        self.record(WriteVerb::TakeOver, target, merged).map(drop)
    }

    /// Removes annotations that still have these values, if the JSON patch test `condition` holds. Otherwise nothing
    /// happens: the next reconcile handles the new value.
    pub(crate) async fn remove_annotations<'a>(
        &self,
        target: &Target,
        condition: Option<Value>,
        annotations: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), WriteError> {
        self.check_leadership()?;
        let each = annotations.flat_map(|(key, value)| {
            let path = format!("/metadata/annotations/{}", key.replace('/', "~1"));
            [
                json!({ "op": "test", "path": path, "value": value }),
                json!({ "op": "remove", "path": path }),
            ]
        });
        let patch = serde_json::from_value(condition.into_iter().chain(each).collect());
        let patched = match patch {
            Ok(patch) => {
                let patch = Patch::<()>::Json(patch);
                let api = self.api(target);
                api.patch(&target.name, &managed(), &patch).await
            }
            Err(error) => Err(kube::Error::SerdeError(error)),
        };
        let removed = self.record(WriteVerb::RemoveAnnotations, target, patched);
        // The API server refuses a JSON patch whose test fails.
        let changed = [Rejection::Gone, Rejection::Conflict, Rejection::Invalid];
        removed.unless(&changed).map(drop)
    }

    /// Adds or removes a finalizer; an object that is gone needs neither.
    pub(crate) async fn set_finalizer(
        &self,
        target: &Target,
        meta: &ObjectMeta,
        (name, wanted): (&str, Finalizer),
    ) -> Result<(), WriteError> {
        let mut finalizers = meta.finalizers.clone().unwrap_or_default();
        let is_present = finalizers.iter().any(|finalizer| finalizer == name);
        if is_present == (wanted == Finalizer::Present) {
            return Ok(());
        }
        match wanted {
            Finalizer::Present => finalizers.push(name.to_owned()),
            Finalizer::Absent => finalizers.retain(|finalizer| finalizer != name),
        }
        self.check_leadership()?;
        // A merge patch replaces the whole list; the resourceVersion protects finalizers that others add meanwhile.
        let patch = json!({ "metadata": {
            "resourceVersion": meta.resource_version,
            "finalizers": finalizers,
        }});
        // Metadata only: the answer for a Secret would carry its content.
        let api = self.api(target);
        let patch = Patch::Merge(&patch);
        let patched = api.patch_metadata(&target.name, &managed(), &patch).await;
        let written = self.record(WriteVerb::PatchFinalizers, target, patched);
        written.unless(&[Rejection::Gone]).map(drop)
    }

    /// Creates an object. One that exists is not an error: an earlier reconcile created it.
    pub(crate) async fn create(
        &self,
        target: &Target,
        object: &impl Serialize,
    ) -> Result<(), WriteError> {
        self.check_leadership()?;
        let object = serde_json::to_value(object).and_then(serde_json::from_value);
        let created = match object {
            Ok(object) => {
                let api = self.api(target);
                api.create(&PostParams::default(), &object).await
            }
            Err(error) => Err(kube::Error::SerdeError(error)),
        };
        let created = self.record(WriteVerb::Create, target, created);
        created.unless(&[Rejection::Exists]).map(drop)
    }

    /// Deletes the object with this uid; with `None`, whichever has the name. One that is gone or was replaced is not an error.
    pub(crate) async fn delete(
        &self,
        target: &Target,
        uid: Option<&str>,
        dependents: Dependents,
    ) -> Result<(), WriteError> {
        self.check_leadership()?;
        let params = DeleteParams {
            propagation_policy: match dependents {
                Dependents::Default => None,
                Dependents::Background => Some(PropagationPolicy::Background),
                Dependents::Foreground => Some(PropagationPolicy::Foreground),
                Dependents::Orphan => Some(PropagationPolicy::Orphan),
            },
            preconditions: uid.map(|uid| Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let deleted = self.api(target).delete(&target.name, &params).await;
        let deleted = self.record(WriteVerb::Delete, target, deleted);
        // A conflict means that the uid differs: another object has the name now.
        let done = [Rejection::Gone, Rejection::Conflict];
        deleted.unless(&done).map(drop)
    }

    /// Publishes an Event about an object. A failure is logged only: the status already has the information.
    pub(crate) async fn publish_event<K: Resource<DynamicType = ()>>(
        &self,
        about: &K,
        event: &Event,
    ) {
        match self.recorder.publish(event, &about.object_ref(&())).await {
            Ok(()) => self.metrics.record_write("Event"),
            Err(error) => {
                warn!(error = %ErrorChain(&error), object = about.name_any(), "failed to publish event");
            }
        }
    }
}

fn managed() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// Merges fields into the Lease that leadership rests on. It is not fenced: candidates write it as well.
pub(crate) async fn merge_election_lease(
    leases: &Api<Lease>,
    name: &str,
    patch: &Value,
) -> Result<(), kube::Error> {
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    leases.patch(name, &params, &patch).await.map(drop)
}

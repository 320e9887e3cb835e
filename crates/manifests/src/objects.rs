//! Objects as server-side apply takes them: untyped, each with its API resource.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube_core::{ApiResource, DynamicObject, Resource, TypeMeta};
use serde::Serialize;

use crate::error::RenderError;

/// An object to apply, with its API resource.
#[derive(Clone, Debug)]
pub struct ManifestObject {
    /// Group, version and kind of the object.
    pub resource: ApiResource,
    /// The object; it contains only the fields to set.
    pub object: DynamicObject,
}

impl ManifestObject {
    /// Converts a typed object.
    pub fn from_typed<K>(typed: &K) -> Result<Self, RenderError>
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let encode = |source| RenderError::Encode {
            kind: resource_kind::<K>(),
            name: typed.meta().name.clone().unwrap_or_default(),
            source,
        };
        let value = serde_json::to_value(typed).map_err(encode)?;
        Ok(Self {
            resource: ApiResource::erase::<K>(&()),
            object: serde_json::from_value(value).map_err(encode)?,
        })
    }

    /// A `PodDisruptionBudget` for an API server without `policy/v1` (before 1.21). `policy/v1beta1` has no
    /// `unhealthyPodEvictionPolicy`.
    pub fn from_budget_v1beta1(budget: &PodDisruptionBudget) -> Result<Self, RenderError> {
        let mut budget = budget.clone();
        if let Some(spec) = &mut budget.spec {
            spec.unhealthy_pod_eviction_policy = None;
        }
        let Self {
            mut resource,
            mut object,
        } = Self::from_typed(&budget)?;
        "v1beta1".clone_into(&mut resource.version);
        "policy/v1beta1".clone_into(&mut resource.api_version);
        object.types = Some(TypeMeta {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
        });
        Ok(Self { resource, object })
    }

    /// Name of the object.
    pub fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }
}

fn resource_kind<K: Resource<DynamicType = ()>>() -> &'static str {
    // Every type of k8s-openapi returns a borrowed kind.
    match K::kind(&()) {
        std::borrow::Cow::Borrowed(kind) => kind,
        std::borrow::Cow::Owned(_) => "object",
    }
}

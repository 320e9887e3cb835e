//! Applies and deletes single objects.
//!
//! **Invariants**: an object that already matches is not written; a deletion carries the uid of the observed object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use mainstay_manifests::ManifestObject;
use serde_json::{Value, json};
use tracing::debug;

use super::subset::find_difference;
use super::takeover::take_over_fields;
use super::{ActError, live};
use crate::context::Context;
use crate::model::annotations::{APPLIED_FINGERPRINT, FIELD_MANAGER};
use crate::model::{DriftPolicy, EtcdKey};

/// Applies an object of a cluster if it differs from the live one. Returns whether it was written.
pub(super) async fn apply_object(
    ctx: &Context,
    cluster: &EtcdKey,
    object: ManifestObject,
    drift: DriftPolicy,
) -> Result<bool, ActError> {
    let ManifestObject {
        resource,
        mut object,
    } = object;
    let fingerprint = compute_fingerprint(&object, &resource)?;
    object
        .annotations_mut()
        .insert(APPLIED_FINGERPRINT.to_owned(), fingerprint.clone());
    let desired = to_json(&object, &resource)?;
    let live = live::find_object(&ctx.stores, &resource, &object)?;
    if let Some(live) = &live {
        let applied_fingerprint = live["metadata"]["annotations"][APPLIED_FINGERPRINT].as_str();
        if applied_fingerprint == Some(&fingerprint) {
            let version = live["metadata"]["resourceVersion"].as_str();
            let settled = format!("{fingerprint}@{}", version.unwrap_or_default());
            let key = applied_key(&resource, &object);
            let path = find_difference(&desired, live).filter(|_| drift == DriftPolicy::Revert);
            // A difference in the version we wrote ourselves is the API server's normalisation: writing again would never end.
            let Some(path) = path.filter(|_| !ctx.local.is_applied(cluster, &key, &settled)) else {
                return Ok(false);
            };
            debug!(
                kind = resource.kind,
                name = object.name_any(),
                path,
                "reverting drift"
            );
        }
        // Without our annotation the object was created by etcd-druid, and its fields have another owner.
        if applied_fingerprint.is_none() {
            take_over_ownership(ctx, &resource, &object).await?;
        }
    }
    ctx.leadership
        .check()
        .map_err(|source| ActError::Fenced { source })?;
    // Server-side apply answers 409 for a field that another manager owns; the fields rendered here are ours.
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let api = dynamic_api(ctx, &resource, &object.metadata);
    let _write_guard = ctx.write_scheduler.begin_object_write();
    let applied = api
        .patch(&object.name_any(), &params, &Patch::Apply(&desired))
        .await;
    let applied = applied.map_err(|source| ActError::Apply {
        kind: resource.kind.clone(),
        name: object.name_any(),
        source: Box::new(source),
    })?;
    ctx.metrics.record_write(&resource.kind);
    let version = applied.resource_version().unwrap_or_default();
    ctx.local.record_applied(
        cluster,
        applied_key(&resource, &object),
        format!("{fingerprint}@{version}"),
    );
    Ok(true)
}

fn applied_key(resource: &ApiResource, object: &DynamicObject) -> String {
    format!("{}/{}", resource.kind, object.name_any())
}

fn to_json(object: &DynamicObject, resource: &ApiResource) -> Result<Value, ActError> {
    serde_json::to_value(object).map_err(|source| ActError::Encode {
        kind: resource.kind.clone(),
        name: object.name_any(),
        source,
    })
}

fn compute_fingerprint(object: &DynamicObject, resource: &ApiResource) -> Result<String, ActError> {
    let mut value = to_json(object, resource)?;
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("resourceVersion"); // a precondition of the write, not content
    }
    Ok(crate::fingerprint::compute(value.to_string().as_bytes()))
}

/// Transfers field ownership from etcd-druid, so that the following apply removes the fields it does not set.
async fn take_over_ownership(
    ctx: &Context,
    resource: &ApiResource,
    object: &DynamicObject,
) -> Result<(), ActError> {
    let failed = |source| ActError::TakeOver {
        kind: resource.kind.clone(),
        name: object.name_any(),
        source: Box::new(source),
    };
    let api = dynamic_api(ctx, resource, &object.metadata);
    let Some(live) = api.get_opt(&object.name_any()).await.map_err(failed)? else {
        return Ok(());
    };
    let Some(record) = live
        .metadata
        .managed_fields
        .as_deref()
        .and_then(take_over_fields)
    else {
        return Ok(());
    };
    ctx.leadership
        .check()
        .map_err(|source| ActError::Fenced { source })?;
    let patch = json!({ "metadata": {
        "resourceVersion": live.metadata.resource_version,
        "managedFields": record,
    }});
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    api.patch(&object.name_any(), &params, &Patch::Merge(&patch))
        .await
        .map_err(failed)?;
    ctx.metrics.record_write(&resource.kind);
    Ok(())
}

pub(super) fn dynamic_api(
    ctx: &Context,
    resource: &ApiResource,
    meta: &ObjectMeta,
) -> Api<DynamicObject> {
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    Api::namespaced_with(ctx.client.clone(), namespace, resource)
}

/// Deletes the object with this uid. An object that is already gone, or was replaced, is not an error.
pub(super) async fn delete_object(
    ctx: &Context,
    resource: &ApiResource,
    meta: &ObjectMeta,
    params: DeleteParams,
) -> Result<(), ActError> {
    ctx.leadership
        .check()
        .map_err(|source| ActError::Fenced { source })?;
    let name = meta.name.clone().unwrap_or_default();
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: meta.uid.clone(),
            resource_version: None,
        }),
        ..params
    };
    match dynamic_api(ctx, resource, meta)
        .delete(&name, &params)
        .await
    {
        Ok(_) => {
            ctx.metrics.record_write(&resource.kind);
            Ok(())
        }
        // 404: already deleted. 409: the uid differs, so another object has the name now.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(source) => Err(ActError::Delete {
            kind: resource.kind.clone(),
            name,
            source: Box::new(source),
        }),
    }
}

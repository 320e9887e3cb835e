//! Applies single objects. **Invariant**: an object that already matches is not written.

use kube::api::{ApiResource, DynamicObject};
use kube::{Api, ResourceExt};
use mainstay_manifests::ManifestObject;
use serde_json::{Value, json};
use tracing::debug;

use super::subset::find_difference;
use super::takeover::take_over_fields;
use super::{ActError, live};
use crate::context::Context;
use crate::model::annotations::APPLIED_FINGERPRINT;
use crate::model::{DriftPolicy, EtcdKey};
use crate::writer::Target;

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
    let target = Target::with_resource(resource.clone(), &object.metadata);
    let _write_guard = ctx.write_scheduler.begin_object_write();
    let applied = ctx.writer.apply(&target, &desired).await?;
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
    let failed = |source| ActError::Read {
        kind: resource.kind.clone(),
        name: object.name_any(),
        source: Box::new(source),
    };
    let namespace = object.namespace().unwrap_or_default();
    let api = Api::<DynamicObject>::namespaced_with(ctx.client.clone(), &namespace, resource);
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
    let patch = json!({ "metadata": {
        "resourceVersion": live.metadata.resource_version,
        "managedFields": record,
    }});
    let target = Target::with_resource(resource.clone(), &object.metadata);
    Ok(ctx.writer.take_over(&target, &patch).await?)
}

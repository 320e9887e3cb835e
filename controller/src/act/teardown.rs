//! Takes a cluster down when its resource is deleted. Volumes and backups stay.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{ApiResource, DeleteParams};
use mainstay_crds::Etcd;
use mainstay_manifests::Names;

use super::objects::resource;
use super::{ActError, apply, live};
use crate::context::Context;
use crate::validate::members;

/// How many members are looked for beyond those of the spec.
const BEYOND: u32 = 16;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teardown {
    /// So many objects are still there.
    Going(usize),
    /// Nothing is left.
    Done,
}

/// Deletes everything that is still there.
pub async fn tear_down(ctx: &Context, etcd: &Etcd) -> Result<Teardown, ActError> {
    let namespace = etcd.metadata.namespace.as_deref().unwrap_or_default();
    let mut left = 0;
    for (resource, name) in everything(ctx, etcd) {
        let Some(meta) = live::meta(&ctx.stores, &resource.kind, &name, namespace) else {
            continue;
        };
        let mut owners = meta.owner_references.iter().flatten();
        if !owners.any(|owner| Some(&owner.uid) == etcd.metadata.uid.as_ref()) {
            continue;
        }
        left += 1;
        if meta.deletion_timestamp.is_none() {
            apply::delete(ctx, &resource, &meta, DeleteParams::background()).await?;
        }
    }
    Ok(if left == 0 {
        Teardown::Done
    } else {
        Teardown::Going(left)
    })
}

fn everything(ctx: &Context, etcd: &Etcd) -> Vec<(ApiResource, String)> {
    let names = Names::of(etcd);
    let members = members(etcd).saturating_add(BEYOND);
    let mut all = vec![
        (resource::<StatefulSet>(), names.stateful_set()),
        (resource::<Job>(), names.compaction_job()),
        (resource::<Job>(), names.drill_job()),
        (resource::<Job>(), names.verify_job()),
        (
            ctx.stores.budget_resource.clone(),
            names.pod_disruption_budget(),
        ),
        (resource::<Service>(), names.client_service()),
        (resource::<Service>(), names.peer_service()),
        (resource::<ConfigMap>(), names.config_map()),
        (resource::<ConfigMap>(), names.coordination()),
        (resource::<Lease>(), names.full_snapshot_lease()),
        (resource::<Lease>(), names.delta_snapshot_lease()),
        (resource::<RoleBinding>(), names.role()),
        (resource::<Role>(), names.role()),
        (resource::<ServiceAccount>(), names.service_account()),
    ];
    all.extend((0..members).map(|n| (resource::<Lease>(), names.member(n))));
    all.extend((0..members).map(|n| (resource::<Job>(), names.restore_job(n))));
    all
}

//! Deletes the objects of a cluster when its Etcd is deleted. PVCs and backups stay.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::ApiResource;
use mainstay_crds::Etcd;
use mainstay_manifests::Names;

use super::{ActError, live};
use crate::context::Context;
use crate::model::count_members;
use crate::writer::{Dependents, Target, api_resource};

/// Ordinals beyond the spec to check, for members of a larger cluster that was being scaled in.
const EXTRA_MEMBERS: u32 = 16;

/// Progress of a teardown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Teardown {
    /// Number of objects that still exist.
    InProgress(usize),
    Done,
}

/// Deletes all objects of the Etcd that still exist.
pub(crate) async fn tear_down(ctx: &Context, etcd: &Etcd) -> Result<Teardown, ActError> {
    let namespace = etcd.metadata.namespace.as_deref().unwrap_or_default();
    let mut left = 0;
    for (resource, name) in list_owned_objects(ctx, etcd) {
        let Some(meta) = live::find_metadata(&ctx.stores, &resource.kind, &name, namespace) else {
            continue;
        };
        // An object with the same name may belong to another owner.
        let mut owners = meta.owner_references.iter().flatten();
        if !owners.any(|owner| Some(&owner.uid) == etcd.metadata.uid.as_ref()) {
            continue;
        }
        left += 1;
        if meta.deletion_timestamp.is_none() {
            let target = Target::with_resource(resource, &meta);
            let uid = meta.uid.as_deref();
            ctx.writer
                .delete(&target, uid, Dependents::Background)
                .await?;
        }
    }
    Ok(if left == 0 {
        Teardown::Done
    } else {
        Teardown::InProgress(left)
    })
}

fn list_owned_objects(ctx: &Context, etcd: &Etcd) -> Vec<(ApiResource, String)> {
    let names = Names::new(etcd);
    let members = count_members(etcd).saturating_add(EXTRA_MEMBERS);
    let mut all = vec![
        (api_resource::<StatefulSet>(), names.stateful_set()),
        (api_resource::<Job>(), names.compaction_job()),
        (api_resource::<Job>(), names.drill_job()),
        (api_resource::<Job>(), names.verify_job()),
        (
            ctx.stores.pdb_resource.clone(),
            names.pod_disruption_budget(),
        ),
        (api_resource::<Service>(), names.client_service()),
        (api_resource::<Service>(), names.peer_service()),
        (api_resource::<ConfigMap>(), names.config_map()),
        (api_resource::<ConfigMap>(), names.coordination_config_map()),
        (api_resource::<Lease>(), names.full_snapshot_lease()),
        (api_resource::<Lease>(), names.delta_snapshot_lease()),
        (api_resource::<RoleBinding>(), names.role()),
        (api_resource::<Role>(), names.role()),
        (api_resource::<ServiceAccount>(), names.service_account()),
    ];
    all.extend((0..members).map(|n| (api_resource::<Lease>(), names.member(n))));
    all.extend((0..members).map(|n| (api_resource::<Job>(), names.restore_job(n))));
    all
}

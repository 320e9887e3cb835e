//! Renders all objects of a cluster, applies those that differ and deletes those that are no longer desired.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Resource;
use kube::api::ApiResource;
use mainstay_crds::tls::PeerTlsConfig;
use mainstay_manifests::{
    EtcdClusterState, ManifestObject, Manifests, Names, PeerTlsPhase, RenderError,
    RenderInput as Rendered, RuntimeComponents, render,
};

use super::{ActError, ActOutcome, Work, apply, live};
use crate::context::Context;
use crate::model::annotations::{CA_FINGERPRINT, MEMBER_COUNT, PEER_TLS_STAGE};
use crate::model::{BootstrapPhase, EffectiveSpec, PeerTlsStage, Runtime};
use crate::observe::CaFingerprint;
use crate::quantity::to_quantity;
use crate::writer::{Dependents, Target, api_resource};

/// Ordinals beyond the member count to check for Leases of removed members.
const EXTRA_LEASES: u32 = 8;

pub(super) async fn apply_all(
    ctx: &Context,
    work: Work<'_>,
    shape: &EffectiveSpec,
) -> Result<ActOutcome, ActError> {
    // The objects of etcd-druid stay unchanged while the upgrade to the desired etcd image is refused.
    if shape.held_fields.all_objects {
        return Ok(ActOutcome::default());
    }
    let failed = |source| ActError::Render { source };
    let shaped = to_render_shape(work, shape);
    let mut manifests = render(work.etcd, &ctx.settings, &shaped).map_err(failed)?;
    prepare_stateful_set(&mut manifests.stateful_set, work, shape);
    let objects = to_api_objects(ctx, &manifests).map_err(failed)?;
    let desired: BTreeSet<(String, String)> = objects
        .iter()
        .map(|object| (object.resource.kind.clone(), object.name().to_owned()))
        .collect();
    let key = work.desired.key();
    let status = work.etcd.status.as_ref();
    let observed_generation = status.and_then(|status| status.observed_generation);
    let drift = work.desired.drift_policy(observed_generation);
    let mut outcome = ActOutcome::default();
    for object in objects {
        let is_set = object.resource.kind == StatefulSet::kind(&());
        outcome.has_changed_stateful_set |=
            apply::apply_object(ctx, &key, object, drift).await? && is_set;
    }
    prune(ctx, work, shape, &desired).await?;
    Ok(outcome)
}

/// Converts the effective spec to the input of the renderer.
fn to_render_shape(work: Work<'_>, shape: &EffectiveSpec) -> Rendered {
    Rendered {
        replicas: shape.replicas,
        initial_members: (0..shape.cluster_size).collect(),
        cluster_state: match shape.phase {
            BootstrapPhase::Bootstrapping => EtcdClusterState::New,
            BootstrapPhase::Bootstrapped => EtcdClusterState::Existing,
        },
        peer_tls: resolve_peer_tls(work, shape.peer_tls_stage),
        runtime_components: match shape.runtime {
            Runtime::On => RuntimeComponents::Enabled,
            Runtime::Off => RuntimeComponents::Disabled,
        },
        etcd_image: shape.held_fields.etcd_image.clone(),
        pvc_size: shape.held_fields.storage_bytes.map(to_quantity),
        local_store_root: work.objects.local_store_root.clone(),
        ..Rendered::from_etcd(work.etcd)
    }
}

/// The peer TLS configuration of members at a stage.
pub(super) fn resolve_peer_tls(work: Work<'_>, stage: PeerTlsStage) -> PeerTlsPhase {
    let from_spec = work.etcd.spec.etcd.peer_url_tls.as_ref();
    // While TLS is switched off, the spec has no certificates any more, but members still need the old ones.
    let certificates = || from_spec.or(work.objects.peer_tls.as_ref()).cloned();
    let with =
        |stage: fn(PeerTlsConfig) -> PeerTlsPhase| certificates().map_or(PeerTlsPhase::Off, stage);
    match stage {
        PeerTlsStage::Off => PeerTlsPhase::Off,
        PeerTlsStage::Prepared => with(PeerTlsPhase::Prepared),
        PeerTlsStage::On => with(PeerTlsPhase::On),
    }
}

/// Adds to the rendered StatefulSet: annotations for the next reconcile, the resourceVersion it is based on, and the
/// immutable fields of the live one.
fn prepare_stateful_set(set: &mut StatefulSet, work: Work<'_>, shape: &EffectiveSpec) {
    let mut records = vec![(PEER_TLS_STAGE, shape.peer_tls_stage.as_str().to_owned())];
    // A cluster wakes up with its recorded size, so the size of one that never ran is not recorded.
    if shape.phase == BootstrapPhase::Bootstrapped {
        records.push((MEMBER_COUNT, shape.cluster_size.to_string()));
    }
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.extend(
        records
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value)),
    );
    let live = work.objects.stateful_set.as_deref();
    if let Some(ca) = resolve_ca_fingerprint(&work.objects.ca_fingerprint, live)
        && let Some(spec) = &mut set.spec
    {
        let pod = spec.template.metadata.get_or_insert_default();
        let annotations = pod.annotations.get_or_insert_default();
        annotations.insert(CA_FINGERPRINT.to_owned(), ca);
    }
    let Some(live) = live else {
        return;
    };
    // The apply fails with 409 if the StatefulSet changed after it was observed.
    set.metadata
        .resource_version
        .clone_from(&live.metadata.resource_version);
    // These fields are immutable: with other values the API server rejects the whole update.
    if let (Some(spec), Some(live)) = (&mut set.spec, &live.spec) {
        spec.selector.clone_from(&live.selector);
        spec.service_name.clone_from(&live.service_name);
        spec.pod_management_policy
            .clone_from(&live.pod_management_policy);
    }
}

/// The CA fingerprint in the pod template, so that pods are replaced when a CA changes.
fn resolve_ca_fingerprint(observed: &CaFingerprint, live: Option<&StatefulSet>) -> Option<String> {
    match observed {
        CaFingerprint::None => None,
        CaFingerprint::Known(fingerprint) => Some(fingerprint.clone()),
        // Keep the live value: an API error must not restart all members.
        CaFingerprint::Unreadable => {
            let pod = live?.spec.as_ref()?.template.metadata.as_ref()?;
            pod.annotations.as_ref()?.get(CA_FINGERPRINT).cloned()
        }
    }
}

/// All objects, in API versions that the API server serves.
fn to_api_objects(
    ctx: &Context,
    manifests: &Manifests,
) -> Result<Vec<ManifestObject>, RenderError> {
    let mut objects = manifests.to_objects()?;
    if ctx.stores.pdb_resource.version == "v1" {
        return Ok(objects);
    }
    for object in &mut objects {
        if let Some(budget) = &manifests.pod_disruption_budget
            && object.resource.kind == "PodDisruptionBudget"
        {
            *object = ManifestObject::from_budget_v1beta1(budget)?;
        }
    }
    Ok(objects)
}

/// Deletes objects of this Etcd that are no longer desired.
async fn prune(
    ctx: &Context,
    work: Work<'_>,
    shape: &EffectiveSpec,
    desired: &BTreeSet<(String, String)>,
) -> Result<(), ActError> {
    for (resource, name) in list_prune_candidates(ctx, work, shape) {
        if desired.contains(&(resource.kind.clone(), name.clone())) {
            continue;
        }
        let found =
            live::find_metadata(&ctx.stores, &resource.kind, &name, &work.desired.namespace);
        // An object with the same name may belong to another owner.
        let is_ours = |owner: &str| Some(owner) == work.etcd.metadata.uid.as_deref();
        let owned = found.filter(|meta| {
            let owners = meta.owner_references.iter().flatten();
            owners.into_iter().any(|owner| is_ours(&owner.uid)) && meta.deletion_timestamp.is_none()
        });
        if let Some(meta) = owned {
            let target = Target::with_resource(resource, &meta);
            let uid = meta.uid.as_deref();
            ctx.writer
                .delete(&target, uid, Dependents::Background)
                .await?;
        }
    }
    Ok(())
}

/// Objects that may exist without being desired.
fn list_prune_candidates(
    ctx: &Context,
    work: Work<'_>,
    shape: &EffectiveSpec,
) -> Vec<(ApiResource, String)> {
    let names = Names::new(work.etcd);
    let lease = || api_resource::<Lease>();
    let mut all = vec![
        (lease(), names.full_snapshot_lease()),
        (lease(), names.delta_snapshot_lease()),
    ];
    let beyond = work.desired.replicas.max(shape.replicas);
    let is_off = shape.runtime == Runtime::Off;
    // A hibernated cluster keeps the member Leases: they record how many members it wakes up with.
    if work.desired.replicas > 0 || is_off {
        let from = if is_off { 0 } else { beyond };
        all.extend((from..beyond.saturating_add(EXTRA_LEASES)).map(|n| (lease(), names.member(n))));
    }
    if is_off {
        all.extend([
            (api_resource::<ServiceAccount>(), names.service_account()),
            (api_resource::<Role>(), names.role()),
            (api_resource::<RoleBinding>(), names.role()),
            (
                ctx.stores.pdb_resource.clone(),
                names.pod_disruption_budget(),
            ),
            (api_resource::<Service>(), names.client_service()),
            (api_resource::<Service>(), names.peer_service()),
        ]);
    }
    all
}

//! All objects of a cluster, as the plan shapes them: applied where they differ, deleted where they are not wanted.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Resource;
use kube::api::{ApiResource, DeleteParams};
use mainstay_crds::tls::PeerTlsConfig;
use mainstay_manifests::{
    EtcdClusterState, Manifests, Names, ManifestObject, PeerTlsPhase, RenderError, RuntimeComponents,
    RenderInput as Rendered, render,
};

use super::marks::{CA_FINGERPRINT, MEMBER_COUNT, PEER_TLS_STAGE};
use super::{ActError, ActOutcome, Work, apply, live};
use crate::context::Context;
use crate::decide::{BootstrapPhase, Runtime, EffectiveSpec};
use crate::observe::{CaFingerprint, PeerTlsStage};
use crate::quantity::to_quantity;

/// How far beyond the members, Leases of removed ones are looked for.
const EXTRA_LEASES: u32 = 8;

pub(super) async fn apply_all(ctx: &Context, work: Work<'_>, shape: &EffectiveSpec) -> Result<ActOutcome, ActError> {
    if shape.held_fields.all_objects {
        return Ok(ActOutcome::default());
    }
    let failed = |source| ActError::Render { source };
    let shaped = to_render_shape(work, shape);
    let mut manifests = render(work.etcd, &ctx.settings, &shaped).map_err(failed)?;
    prepare_stateful_set(&mut manifests.stateful_set, work, shape);
    let objects = to_api_objects(ctx, &manifests).map_err(failed)?;
    let wanted: BTreeSet<(String, String)> = objects
        .iter()
        .map(|object| (object.resource.kind.clone(), object.name().to_owned()))
        .collect();
    let key = work.desired.key();
    let observed = work.etcd.status.as_ref();
    let observed = observed.and_then(|status| status.observed_generation);
    let drift = work.desired.drift_policy(observed);
    let mut acted = ActOutcome::default();
    for object in objects {
        let is_set = object.resource.kind == StatefulSet::kind(&());
        acted.has_changed_stateful_set |= apply::apply_object(ctx, &key, object, drift).await? && is_set;
    }
    prune(ctx, work, shape, &wanted).await?;
    Ok(acted)
}

/// The shape as the renderer takes it.
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

/// The certificates members have at a stage.
pub(super) fn resolve_peer_tls(work: Work<'_>, stage: PeerTlsStage) -> PeerTlsPhase {
    let own = work.etcd.spec.etcd.peer_url_tls.as_ref();
    let certificates = || own.or(work.objects.peer_tls.as_ref()).cloned();
    let with = |stage: fn(PeerTlsConfig) -> PeerTlsPhase| certificates().map_or(PeerTlsPhase::Off, stage);
    match stage {
        PeerTlsStage::Off => PeerTlsPhase::Off,
        PeerTlsStage::Prepared => with(PeerTlsPhase::Prepared),
        PeerTlsStage::On => with(PeerTlsPhase::On),
    }
}

/// What the StatefulSet carries besides what is rendered: notes for the next pass, what it is based on, and what cannot
/// be changed about one that exists.
fn prepare_stateful_set(set: &mut StatefulSet, work: Work<'_>, shape: &EffectiveSpec) {
    let mut notes = vec![(PEER_TLS_STAGE, shape.peer_tls_stage.as_str().to_owned())];
    if shape.phase == BootstrapPhase::Bootstrapped {
        notes.push((MEMBER_COUNT, shape.cluster_size.to_string()));
    }
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.extend(
        notes
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value)),
    );
    let live = work.objects.stateful_set.as_deref();
    if let Some(authorities) = resolve_ca_fingerprint(&work.objects.ca_fingerprint, live)
        && let Some(spec) = &mut set.spec
    {
        let pod = spec.template.metadata.get_or_insert_default();
        let annotations = pod.annotations.get_or_insert_default();
        annotations.insert(CA_FINGERPRINT.to_owned(), authorities);
    }
    let Some(live) = live else {
        return;
    };
    set.metadata
        .resource_version
        .clone_from(&live.metadata.resource_version);
    if let (Some(spec), Some(live)) = (&mut set.spec, &live.spec) {
        spec.selector.clone_from(&live.selector);
        spec.service_name.clone_from(&live.service_name);
        spec.pod_management_policy
            .clone_from(&live.pod_management_policy);
    }
}

/// The fingerprint pods carry, so that they are replaced when it changes. What cannot be read now is as it was.
fn resolve_ca_fingerprint(observed: &CaFingerprint, live: Option<&StatefulSet>) -> Option<String> {
    match observed {
        CaFingerprint::None => None,
        CaFingerprint::Known(fingerprint) => Some(fingerprint.clone()),
        CaFingerprint::Unreadable => {
            let pod = live?.spec.as_ref()?.template.metadata.as_ref()?;
            pod.annotations.as_ref()?.get(CA_FINGERPRINT).cloned()
        }
    }
}

/// Every object under the version the API server knows.
fn to_api_objects(ctx: &Context, manifests: &Manifests) -> Result<Vec<ManifestObject>, RenderError> {
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

/// Deletes what there is and should not be.
async fn prune(
    ctx: &Context,
    work: Work<'_>,
    shape: &EffectiveSpec,
    wanted: &BTreeSet<(String, String)>,
) -> Result<(), ActError> {
    for (resource, name) in list_prune_candidates(ctx, work, shape) {
        if wanted.contains(&(resource.kind.clone(), name.clone())) {
            continue;
        }
        let found = live::find_metadata(&ctx.stores, &resource.kind, &name, &work.desired.namespace);
        let is_ours = |owner: &str| Some(owner) == work.etcd.metadata.uid.as_deref();
        let owned = found.filter(|meta| {
            let owners = meta.owner_references.iter().flatten();
            owners.into_iter().any(|owner| is_ours(&owner.uid)) && meta.deletion_timestamp.is_none()
        });
        if let Some(meta) = owned {
            apply::delete_object(ctx, &resource, &meta, DeleteParams::background()).await?;
        }
    }
    Ok(())
}

/// What might be there and not be wanted. A cluster that sleeps keeps the Leases of its members: they tell how many there were.
fn list_prune_candidates(ctx: &Context, work: Work<'_>, shape: &EffectiveSpec) -> Vec<(ApiResource, String)> {
    let names = Names::new(work.etcd);
    let lease = || api_resource::<Lease>();
    let mut all = vec![
        (lease(), names.full_snapshot_lease()),
        (lease(), names.delta_snapshot_lease()),
    ];
    let beyond = work.desired.replicas.max(shape.replicas);
    let is_off = shape.runtime == Runtime::Off;
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

pub(super) fn api_resource<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

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
    ClusterState, Manifests, Names, Object, PeerTls, RenderError, RuntimeComponents,
    Shape as Rendered, render,
};

use super::marks::{AUTHORITIES, NOTED_SIZE, PEER_STAGE};
use super::{ActError, Acted, Work, apply, live};
use crate::context::Context;
use crate::decide::{Phase, Runtime, Shape};
use crate::observe::{Authorities, PeerStage};
use crate::quantity::quantity;

/// How far beyond the members, Leases of removed ones are looked for.
const BEYOND: u32 = 8;

pub(super) async fn apply(ctx: &Context, work: Work<'_>, shape: &Shape) -> Result<Acted, ActError> {
    if shape.holds.everything {
        return Ok(Acted::default());
    }
    let failed = |source| ActError::Render { source };
    let shaped = shaped(work, shape);
    let mut manifests = render(work.etcd, &ctx.settings, &shaped).map_err(failed)?;
    dress(&mut manifests.stateful_set, work, shape);
    let objects = spell(ctx, &manifests).map_err(failed)?;
    let wanted: BTreeSet<(String, String)> = objects
        .iter()
        .map(|object| (object.resource.kind.clone(), object.name().to_owned()))
        .collect();
    let key = work.wanted.key();
    let observed = work.etcd.status.as_ref();
    let observed = observed.and_then(|status| status.observed_generation);
    let drift = work.wanted.drift(observed);
    let mut acted = Acted::default();
    for object in objects {
        let is_set = object.resource.kind == StatefulSet::kind(&());
        acted.has_changed_set |= apply::apply(ctx, &key, object, drift).await? && is_set;
    }
    prune(ctx, work, shape, &wanted).await?;
    Ok(acted)
}

/// The shape as the renderer takes it.
fn shaped(work: Work<'_>, shape: &Shape) -> Rendered {
    Rendered {
        replicas: shape.replicas,
        initial_members: (0..shape.size).collect(),
        cluster_state: match shape.phase {
            Phase::Founding => ClusterState::New,
            Phase::Formed => ClusterState::Existing,
        },
        peer_tls: peer_tls(work, shape.peer_stage),
        runtime_components: match shape.runtime {
            Runtime::On => RuntimeComponents::Enabled,
            Runtime::Off => RuntimeComponents::Disabled,
        },
        etcd_image: shape.holds.etcd_image.clone(),
        claim_size: shape.holds.storage_bytes.map(quantity),
        local_store_root: work.objects.local_store_root.clone(),
        ..Rendered::of(work.etcd)
    }
}

/// The certificates members have at a stage.
pub(super) fn peer_tls(work: Work<'_>, stage: PeerStage) -> PeerTls {
    let own = work.etcd.spec.etcd.peer_url_tls.as_ref();
    let certificates = || own.or(work.objects.peer_tls.as_ref()).cloned();
    let with = |stage: fn(PeerTlsConfig) -> PeerTls| certificates().map_or(PeerTls::Off, stage);
    match stage {
        PeerStage::Off => PeerTls::Off,
        PeerStage::Prepared => with(PeerTls::Prepared),
        PeerStage::On => with(PeerTls::On),
    }
}

/// What the StatefulSet carries besides what is rendered: notes for the next pass, what it is based on, and what cannot
/// be changed about one that exists.
fn dress(set: &mut StatefulSet, work: Work<'_>, shape: &Shape) {
    let mut notes = vec![(PEER_STAGE, shape.peer_stage.word().to_owned())];
    if shape.phase == Phase::Formed {
        notes.push((NOTED_SIZE, shape.size.to_string()));
    }
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.extend(
        notes
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value)),
    );
    let live = work.objects.stateful_set.as_deref();
    if let Some(authorities) = authorities(&work.objects.authorities, live)
        && let Some(spec) = &mut set.spec
    {
        let pod = spec.template.metadata.get_or_insert_default();
        let annotations = pod.annotations.get_or_insert_default();
        annotations.insert(AUTHORITIES.to_owned(), authorities);
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
fn authorities(seen: &Authorities, live: Option<&StatefulSet>) -> Option<String> {
    match seen {
        Authorities::None => None,
        Authorities::Fingerprint(fingerprint) => Some(fingerprint.clone()),
        Authorities::Unreadable => {
            let pod = live?.spec.as_ref()?.template.metadata.as_ref()?;
            pod.annotations.as_ref()?.get(AUTHORITIES).cloned()
        }
    }
}

/// Every object under the version the API server knows.
fn spell(ctx: &Context, manifests: &Manifests) -> Result<Vec<Object>, RenderError> {
    let mut objects = manifests.objects()?;
    if ctx.stores.budget_resource.version == "v1" {
        return Ok(objects);
    }
    for object in &mut objects {
        if let Some(budget) = &manifests.pod_disruption_budget
            && object.resource.kind == "PodDisruptionBudget"
        {
            *object = Object::of_v1beta1(budget)?;
        }
    }
    Ok(objects)
}

/// Deletes what there is and should not be.
async fn prune(
    ctx: &Context,
    work: Work<'_>,
    shape: &Shape,
    wanted: &BTreeSet<(String, String)>,
) -> Result<(), ActError> {
    for (resource, name) in candidates(ctx, work, shape) {
        if wanted.contains(&(resource.kind.clone(), name.clone())) {
            continue;
        }
        let found = live::meta(&ctx.stores, &resource.kind, &name, &work.wanted.namespace);
        let is_ours = |owner: &str| Some(owner) == work.etcd.metadata.uid.as_deref();
        let owned = found.filter(|meta| {
            let owners = meta.owner_references.iter().flatten();
            owners.into_iter().any(|owner| is_ours(&owner.uid)) && meta.deletion_timestamp.is_none()
        });
        if let Some(meta) = owned {
            apply::delete(ctx, &resource, &meta, DeleteParams::background()).await?;
        }
    }
    Ok(())
}

/// What might be there and not be wanted. A cluster that sleeps keeps the Leases of its members: they tell how many there were.
fn candidates(ctx: &Context, work: Work<'_>, shape: &Shape) -> Vec<(ApiResource, String)> {
    let names = Names::of(work.etcd);
    let lease = || resource::<Lease>();
    let mut all = vec![
        (lease(), names.full_snapshot_lease()),
        (lease(), names.delta_snapshot_lease()),
    ];
    let beyond = work.wanted.replicas.max(shape.replicas);
    let is_off = shape.runtime == Runtime::Off;
    if work.wanted.replicas > 0 || is_off {
        let from = if is_off { 0 } else { beyond };
        all.extend((from..beyond.saturating_add(BEYOND)).map(|n| (lease(), names.member(n))));
    }
    if is_off {
        all.extend([
            (resource::<ServiceAccount>(), names.service_account()),
            (resource::<Role>(), names.role()),
            (resource::<RoleBinding>(), names.role()),
            (
                ctx.stores.budget_resource.clone(),
                names.pod_disruption_budget(),
            ),
            (resource::<Service>(), names.client_service()),
            (resource::<Service>(), names.peer_service()),
        ]);
    }
    all
}

pub(super) fn resource<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

//! Each step, done once.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PropagationPolicy};
use mainstay_manifests::Names;
use serde_json::json;
use tracing::info;

use super::marks::FIELD_MANAGER;
use super::objects::resource;
use super::{ActError, Work, apply, members, snapshots};
use crate::context::Context;
use crate::decide::{Removal, Restart, Step, Useless};
use crate::observe::Ordinal;
use crate::quantity::quantity;
use crate::status::describe_step;

/// Whether a step comes before the objects are applied.
pub(super) fn is_first(step: &Step) -> bool {
    matches!(step, Step::StopRolling)
}

/// Whether a step mends what is there, whatever the spec asks for: it is taken also when the spec asks for an object that is
/// refused.
pub(super) fn heals(step: &Step) -> bool {
    match step {
        Step::Promote { .. } | Step::AddLearner { .. } => true,
        Step::RemoveMember { because, .. } => *because != Removal::ScaleIn,
        Step::DiscardClaim { because, .. } => *because != Useless::LeftBehind,
        Step::DeletePod { because, .. } => {
            !matches!(because, Restart::Outdated | Restart::OutdatedAndUnwell)
        }
        _ => false,
    }
}

/// Says what is about to be done.
pub(super) fn announce(ctx: &Context, work: Work<'_>, step: &Step) {
    if step.is_deed() {
        info!(step = step.word(), "{}", describe_step(step, work.wanted));
        ctx.metrics.stepped(step.word());
    }
}

pub(super) async fn take(ctx: &Context, work: Work<'_>, step: &Step) -> Result<(), ActError> {
    announce(ctx, work, step);
    match step {
        Step::StopRolling => stop_rolling(ctx, work).await,
        Step::Snapshot { .. } => {
            snapshots::request(ctx, work);
            Ok(())
        }
        // Done by applying the shape, by the recovery itself, or by nobody.
        Step::Resize { .. } | Step::Wait { .. } | Step::Recover(_) => Ok(()),
        Step::DeletePod { ordinal, uid, .. } => delete_pod(ctx, work, *ordinal, uid).await,
        Step::DiscardClaim {
            ordinal,
            uid,
            pod_uid,
            ..
        } => {
            discard(ctx, work, *ordinal, uid).await?;
            match pod_uid {
                Some(pod) => delete_pod(ctx, work, *ordinal, pod).await,
                None => Ok(()),
            }
        }
        Step::AddLearner { .. }
        | Step::Promote { .. }
        | Step::RemoveMember { .. }
        | Step::MoveLeader { .. }
        | Step::UpdatePeerUrls { .. } => members::change(ctx, work, step).await,
        Step::ExpandClaims { ordinals, bytes } => expand(ctx, work, ordinals, *bytes).await,
        Step::RecreateSet { uid } => {
            let meta = meta(work, Names::of(work.etcd).stateful_set(), uid);
            let params = DeleteParams {
                propagation_policy: Some(PropagationPolicy::Orphan),
                ..DeleteParams::default()
            };
            apply::delete(ctx, &resource::<StatefulSet>(), &meta, params).await
        }
    }
}

fn meta(work: Work<'_>, name: String, uid: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(work.wanted.namespace.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectMeta::default()
    }
}

async fn delete_pod(
    ctx: &Context,
    work: Work<'_>,
    ordinal: Ordinal,
    uid: &str,
) -> Result<(), ActError> {
    let meta = meta(work, work.wanted.pod(ordinal), uid);
    apply::delete(ctx, &resource::<Pod>(), &meta, DeleteParams::default()).await?;
    ctx.memory.deleted(&work.wanted.key(), uid);
    Ok(())
}

async fn discard(
    ctx: &Context,
    work: Work<'_>,
    ordinal: Ordinal,
    uid: &str,
) -> Result<(), ActError> {
    let meta = meta(work, Names::of(work.etcd).volume_claim(ordinal.0), uid);
    apply::delete(
        ctx,
        &resource::<PersistentVolumeClaim>(),
        &meta,
        DeleteParams::default(),
    )
    .await?;
    ctx.memory.deleted(&work.wanted.key(), uid);
    Ok(())
}

async fn stop_rolling(ctx: &Context, work: Work<'_>) -> Result<(), ActError> {
    let set = work.objects.observation.set.as_ref();
    let version = set.map(|set| set.resource_version.clone());
    let patch = json!({
        "metadata": { "resourceVersion": version },
        "spec": { "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } },
    });
    let name = Names::of(work.etcd).stateful_set();
    let sets = Api::<StatefulSet>::namespaced(ctx.client.clone(), &work.wanted.namespace);
    ctx.leadership
        .check()
        .map_err(|source| ActError::Fenced { source })?;
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    sets.patch(&name, &params, &Patch::Merge(&patch))
        .await
        .map_err(|source| ActError::Patch {
            kind: "StatefulSet".to_owned(),
            name,
            source: Box::new(source),
        })?;
    ctx.metrics.wrote("StatefulSet");
    Ok(())
}

/// Asks for more space. A storage class that cannot give it says so once; that is remembered for a
/// while, not repeated at once.
async fn expand(
    ctx: &Context,
    work: Work<'_>,
    ordinals: &[Ordinal],
    bytes: u64,
) -> Result<(), ActError> {
    let claims =
        Api::<PersistentVolumeClaim>::namespaced(ctx.client.clone(), &work.wanted.namespace);
    let patch = json!({ "spec": { "resources": { "requests": { "storage": quantity(bytes) } } } });
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    for ordinal in ordinals {
        let name = Names::of(work.etcd).volume_claim(ordinal.0);
        ctx.leadership
            .check()
            .map_err(|source| ActError::Fenced { source })?;
        match claims.patch(&name, &params, &Patch::Merge(&patch)).await {
            Ok(_) => ctx.metrics.wrote("PersistentVolumeClaim"),
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
                ctx.memory.refuse_expansion(
                    &work.wanted.key(),
                    bytes,
                    status.message.clone(),
                    Timestamp::now(),
                );
                return Ok(());
            }
            Err(source) => {
                return Err(ActError::Patch {
                    kind: "PersistentVolumeClaim".to_owned(),
                    name,
                    source: Box::new(source),
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mainstay_ids::MemberId;

    use super::*;
    use crate::observe::Ordinal;

    #[test]
    fn what_mends_does_not_wait_for_a_spec_that_can_be_followed() {
        let ordinal = Ordinal(1);
        let (uid, member) = ("uid".to_owned(), MemberId(7));
        let removal = |because| Step::RemoveMember {
            member,
            ordinal,
            because,
        };
        let restart = |because| Step::DeletePod {
            ordinal,
            uid: uid.clone(),
            because,
        };
        let discard = |because| Step::DiscardClaim {
            ordinal,
            uid: uid.clone(),
            pod_uid: None,
            because,
        };
        for step in [
            Step::AddLearner { ordinal },
            Step::Promote { member, ordinal },
            removal(Removal::Lost),
            restart(Restart::VolumeGone),
            discard(Useless::Corrupt),
        ] {
            assert!(heals(&step), "{step:?}");
        }
        for step in [
            Step::Resize { from: 3, to: 4 },
            removal(Removal::ScaleIn),
            restart(Restart::Outdated),
            restart(Restart::OutdatedAndUnwell),
            discard(Useless::LeftBehind),
        ] {
            assert!(!heals(&step), "{step:?}");
        }
    }
}

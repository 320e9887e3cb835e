//! Executes single steps of a plan.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PropagationPolicy};
use mainstay_manifests::Names;
use serde_json::json;
use tracing::info;

use super::objects::api_resource;
use super::{ActError, Work, apply, members, snapshots};
use crate::context::Context;
use crate::messages::describe_step;
use crate::model::annotations::FIELD_MANAGER;
use crate::model::{
    MemberRemovalReason, Ordinal, PodDeletionReason, PvcDeletionReason, ReconcileStep,
};
use crate::quantity::to_quantity;

/// Whether a step must be executed before the objects are applied.
pub(super) fn is_before_apply(step: &ReconcileStep) -> bool {
    matches!(step, ReconcileStep::DisableRollingUpdate)
}

/// Whether a step repairs an existing member. Repairs run even when the API server rejects an object of the spec.
pub(super) fn is_repair(step: &ReconcileStep) -> bool {
    match step {
        ReconcileStep::Promote { .. } | ReconcileStep::AddLearner { .. } => true,
        ReconcileStep::RemoveMember { reason, .. } => *reason != MemberRemovalReason::ScaleIn,
        ReconcileStep::DeletePvc { reason, .. } => *reason != PvcDeletionReason::LeftByScaleIn,
        ReconcileStep::DeletePod { reason, .. } => !matches!(
            reason,
            PodDeletionReason::Outdated | PodDeletionReason::OutdatedAndUnhealthy
        ),
        _ => false,
    }
}

/// Logs and counts a step that is about to be executed.
pub(super) fn log_step(ctx: &Context, work: Work<'_>, step: &ReconcileStep) {
    if step.is_action() {
        info!(step = step.label(), "{}", describe_step(step, work.desired));
        ctx.metrics.record_step(step.label());
    }
}

pub(super) async fn execute_step(
    ctx: &Context,
    work: Work<'_>,
    step: &ReconcileStep,
) -> Result<(), ActError> {
    log_step(ctx, work, step);
    match step {
        ReconcileStep::DisableRollingUpdate => stop_rolling(ctx, work).await,
        ReconcileStep::Snapshot { .. } => {
            snapshots::request_snapshot(ctx, work);
            Ok(())
        }
        // Scale is part of the applied StatefulSet, Recover is executed by the recovery module, Wait does nothing.
        ReconcileStep::Scale { .. } | ReconcileStep::Wait { .. } | ReconcileStep::Recover(_) => {
            Ok(())
        }
        ReconcileStep::DeletePod { ordinal, uid, .. } => delete_pod(ctx, work, *ordinal, uid).await,
        ReconcileStep::DeletePvc {
            ordinal,
            uid,
            pod_uid,
            ..
        } => {
            // PVC protection keeps the PVC until its pod is gone, so the new pod cannot reuse the old volume.
            delete_pvc(ctx, work, *ordinal, uid).await?;
            match pod_uid {
                Some(pod) => delete_pod(ctx, work, *ordinal, pod).await,
                None => Ok(()),
            }
        }
        ReconcileStep::AddLearner { .. }
        | ReconcileStep::Promote { .. }
        | ReconcileStep::RemoveMember { .. }
        | ReconcileStep::MoveLeader { .. }
        | ReconcileStep::UpdatePeerUrls { .. } => members::change_membership(ctx, work, step).await,
        ReconcileStep::ExpandPvcs { ordinals, bytes } => {
            expand_pvcs(ctx, work, ordinals, *bytes).await
        }
        ReconcileStep::RecreateStatefulSet { uid } => {
            let meta = build_meta(work, Names::new(work.etcd).stateful_set(), uid);
            // Orphan keeps the pods running; the next reconcile creates a StatefulSet that adopts them.
            let params = DeleteParams {
                propagation_policy: Some(PropagationPolicy::Orphan),
                ..DeleteParams::default()
            };
            apply::delete_object(ctx, &api_resource::<StatefulSet>(), &meta, params).await
        }
    }
}

fn build_meta(work: Work<'_>, name: String, uid: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(work.desired.namespace.clone()),
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
    let meta = build_meta(work, work.desired.pod_name(ordinal), uid);
    apply::delete_object(ctx, &api_resource::<Pod>(), &meta, DeleteParams::default()).await?;
    ctx.local.record_deleted(&work.desired.key(), uid);
    Ok(())
}

async fn delete_pvc(
    ctx: &Context,
    work: Work<'_>,
    ordinal: Ordinal,
    uid: &str,
) -> Result<(), ActError> {
    let meta = build_meta(work, Names::new(work.etcd).pvc(ordinal.0), uid);
    apply::delete_object(
        ctx,
        &api_resource::<PersistentVolumeClaim>(),
        &meta,
        DeleteParams::default(),
    )
    .await?;
    // The cache may still hold the PVC: without this record the next reconcile would decide on it again.
    ctx.local.record_deleted(&work.desired.key(), uid);
    Ok(())
}

async fn stop_rolling(ctx: &Context, work: Work<'_>) -> Result<(), ActError> {
    let set = work.objects.observation.stateful_set.as_ref();
    let version = set.map(|set| set.resource_version.clone());
    let patch = json!({
        "metadata": { "resourceVersion": version },
        "spec": { "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } },
    });
    let name = Names::new(work.etcd).stateful_set();
    let sets = Api::<StatefulSet>::namespaced(ctx.client.clone(), &work.desired.namespace);
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
    ctx.metrics.record_write("StatefulSet");
    Ok(())
}

/// Raises the storage request of the PVCs.
async fn expand_pvcs(
    ctx: &Context,
    work: Work<'_>,
    ordinals: &[Ordinal],
    bytes: u64,
) -> Result<(), ActError> {
    let pvcs =
        Api::<PersistentVolumeClaim>::namespaced(ctx.client.clone(), &work.desired.namespace);
    let patch =
        json!({ "spec": { "resources": { "requests": { "storage": to_quantity(bytes) } } } });
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    for ordinal in ordinals {
        let name = Names::new(work.etcd).pvc(ordinal.0);
        ctx.leadership
            .check()
            .map_err(|source| ActError::Fenced { source })?;
        match pvcs.patch(&name, &params, &Patch::Merge(&patch)).await {
            Ok(_) => ctx.metrics.record_write("PersistentVolumeClaim"),
            // The storage class does not allow expansion: record the refusal, so that it is not requested on every reconcile.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
                ctx.local.record_expansion_refused(
                    &work.desired.key(),
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

    #[test]
    fn repair_steps_do_not_wait_for_an_applicable_spec() {
        let ordinal = Ordinal(1);
        let (uid, member) = ("uid".to_owned(), MemberId(7));
        let removal = |reason_kind| ReconcileStep::RemoveMember {
            member,
            ordinal,
            reason: reason_kind,
        };
        let restart = |reason_kind| ReconcileStep::DeletePod {
            ordinal,
            uid: uid.clone(),
            reason: reason_kind,
        };
        let discard = |reason_kind| ReconcileStep::DeletePvc {
            ordinal,
            uid: uid.clone(),
            pod_uid: None,
            reason: reason_kind,
        };
        for step in [
            ReconcileStep::AddLearner { ordinal },
            ReconcileStep::Promote { member, ordinal },
            removal(MemberRemovalReason::DataLost),
            restart(PodDeletionReason::VolumeLost),
            discard(PvcDeletionReason::Corrupt),
        ] {
            assert!(is_repair(&step), "{step:?}");
        }
        for step in [
            ReconcileStep::Scale { from: 3, to: 4 },
            removal(MemberRemovalReason::ScaleIn),
            restart(PodDeletionReason::Outdated),
            restart(PodDeletionReason::OutdatedAndUnhealthy),
            discard(PvcDeletionReason::LeftByScaleIn),
        ] {
            assert!(!is_repair(&step), "{step:?}");
        }
    }
}

//! Executes single steps of a plan.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use mainstay_manifests::Names;
use serde_json::json;
use tracing::info;

use super::{ActError, Work, members, snapshots};
use crate::context::Context;
use crate::messages::describe_step;
use crate::model::{
    MemberRemovalReason, Ordinal, PodDeletionReason, PvcDeletionReason, ReconcileStep,
};
use crate::quantity::to_quantity;
use crate::writer::{Dependents, Rejection, Target};

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
            let target = stateful_set(work);
            // The pods keep running; the next reconcile creates a StatefulSet that adopts them.
            ctx.writer
                .delete(&target, Some(uid), Dependents::Orphan)
                .await?;
            Ok(())
        }
    }
}

fn stateful_set(work: Work<'_>) -> Target {
    let name = Names::new(work.etcd).stateful_set();
    Target::new::<StatefulSet>(&work.desired.namespace, &name)
}

async fn delete_pod(
    ctx: &Context,
    work: Work<'_>,
    ordinal: Ordinal,
    uid: &str,
) -> Result<(), ActError> {
    let pod = Target::new::<Pod>(&work.desired.namespace, &work.desired.pod_name(ordinal));
    delete_observed(ctx, work, &pod, uid).await
}

async fn delete_pvc(
    ctx: &Context,
    work: Work<'_>,
    ordinal: Ordinal,
    uid: &str,
) -> Result<(), ActError> {
    let name = Names::new(work.etcd).pvc(ordinal.0);
    let pvc = Target::new::<PersistentVolumeClaim>(&work.desired.namespace, &name);
    delete_observed(ctx, work, &pvc, uid).await
}

async fn delete_observed(
    ctx: &Context,
    work: Work<'_>,
    target: &Target,
    uid: &str,
) -> Result<(), ActError> {
    let deleted = ctx.writer.delete(target, Some(uid), Dependents::Default);
    deleted.await?;
    // The cache may still hold the object: without this record the next reconcile would decide on it again.
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
    Ok(ctx.writer.merge(&stateful_set(work), &patch).await?)
}

/// Raises the storage request of the PVCs.
async fn expand_pvcs(
    ctx: &Context,
    work: Work<'_>,
    ordinals: &[Ordinal],
    bytes: u64,
) -> Result<(), ActError> {
    let patch =
        json!({ "spec": { "resources": { "requests": { "storage": to_quantity(bytes) } } } });
    for ordinal in ordinals {
        let name = Names::new(work.etcd).pvc(ordinal.0);
        let pvc = Target::new::<PersistentVolumeClaim>(&work.desired.namespace, &name);
        let Err(error) = ctx.writer.merge(&pvc, &patch).await else {
            continue;
        };
        let is_refused = matches!(
            error.rejection(),
            Some(Rejection::Forbidden | Rejection::Invalid)
        );
        if !is_refused {
            return Err(error.into());
        }
        // The storage class does not allow expansion: record the refusal, so that it is not requested on every reconcile.
        let message = error.server_message().unwrap_or_default().to_owned();
        let (key, now) = (work.desired.key(), Timestamp::now());
        ctx.local
            .record_expansion_refused(&key, bytes, message, now);
        return Ok(());
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

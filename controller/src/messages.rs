//! Sentences of status, Events and logs for steps, blockers and refusals.

use jiff::Timestamp;
use mainstay_coordination::incident::{Incident, RecoveryCause, RecoverySource, RecoveryStage};
use mainstay_crds::etcd::APPROVE_RECOVERY;

use crate::model::annotations::{DISABLE_COMPONENT_PROTECTION, WITHOUT_SNAPSHOT};
use crate::model::{
    Blocker, DesiredState, DisruptiveChange, MAX_MEMBERS, MemberRemovalReason, Ordinal,
    PodDeletionReason, PvcDeletionReason, ReconcileStep, RecoveryBlocker, RecoveryJobKind,
    RecoveryStep, SpecRefusal, UpgradeRule,
};
use crate::quantity::to_quantity;

pub(crate) fn describe_step(step: &ReconcileStep, desired: &DesiredState) -> String {
    let pod = |ordinal: &Ordinal| desired.pod_name(*ordinal);
    match step {
        ReconcileStep::DisableRollingUpdate => {
            "Switching the StatefulSet to update strategy OnDelete".to_owned()
        }
        ReconcileStep::Snapshot { before } => format!(
            "{} pending: taking a full snapshot",
            describe_change(*before)
        ),
        ReconcileStep::Scale { from, to } => {
            format!("Scaling the StatefulSet from {from} to {to} pods")
        }
        ReconcileStep::DeletePod {
            ordinal, reason, ..
        } => format!(
            "Restarting pod {} ({})",
            pod(ordinal),
            describe_pod_deletion(*reason)
        ),
        ReconcileStep::DeletePvc {
            ordinal, reason, ..
        } => {
            format!(
                "Deleting the PVC of {} ({})",
                pod(ordinal),
                describe_pvc_deletion(*reason)
            )
        }
        ReconcileStep::AddLearner { ordinal } => format!("Adding {} as a learner", pod(ordinal)),
        ReconcileStep::Promote { ordinal, .. } => {
            format!("Promoting learner {} to a voting member", pod(ordinal))
        }
        ReconcileStep::RemoveMember {
            ordinal, reason, ..
        } => {
            format!(
                "Removing member {} from the cluster ({})",
                pod(ordinal),
                describe_member_removal(*reason)
            )
        }
        ReconcileStep::MoveLeader { from, to } => {
            format!("Transferring leadership from {from} to {to}")
        }
        ReconcileStep::UpdatePeerUrls { ordinal, .. } => {
            format!("Updating the peer URLs of {}", pod(ordinal))
        }
        ReconcileStep::ExpandPvcs { ordinals, bytes } => {
            format!(
                "Expanding {} volumes to {}",
                ordinals.len(),
                to_quantity(*bytes).0
            )
        }
        ReconcileStep::RecreateStatefulSet { .. } => {
            "Recreating StatefulSet, keeping its pods".to_owned()
        }
        ReconcileStep::Recover(step) => describe_recovery_step(step, desired),
        ReconcileStep::Wait { blocker } => describe_blocker(blocker, desired),
    }
}

pub(crate) fn describe_blocker(blocker: &Blocker, desired: &DesiredState) -> String {
    let pod = |ordinal: &Ordinal| desired.pod_name(*ordinal);
    match blocker {
        Blocker::StatefulSetUnobserved => "Waiting for the StatefulSet controller to observe the latest change".to_owned(),
        Blocker::PodMissing { ordinal } => format!("Waiting for pod {} to be recreated", pod(ordinal)),
        Blocker::UpdatedMemberUnhealthy { ordinal } => format!(
            "Waiting for updated member {} to become healthy",
            pod(ordinal)
        ),
        Blocker::MemberUnhealthy { ordinal } => {
            format!("Waiting for member {} to become healthy", pod(ordinal))
        }
        Blocker::ForeignMemberUnhealthy { member } => {
            format!("Waiting for member {member}, which has no pod here, to become healthy")
        }
        Blocker::LearnerLagging { ordinal } => format!("Waiting for learner {} to catch up", pod(ordinal)),
        // etcd allows one learner at a time, whoever added it.
        Blocker::ForeignLearner { member } => {
            format!("Waiting for learner {member}, which does not belong to this Etcd, to be promoted or removed")
        }
        Blocker::NoQuorum => "Waiting for a quorum of members to respond".to_owned(),
        Blocker::QuorumAtRisk {
            ordinal,
            healthy: healthy_count,
            voters,
        } => format!(
            "Blocked: removing {} would lose quorum, {healthy_count} of {voters} remaining members healthy",
            pod(ordinal)
        ),
        Blocker::SnapshotRunning { before } => {
            format!("{} pending: waiting for the full snapshot", describe_change(*before))
        }
        Blocker::SnapshotFailed { before, reason: cause, .. } => {
            format!(
                "{} blocked: snapshot failed: {cause} (annotate {WITHOUT_SNAPSHOT}={} to continue without a snapshot)",
                describe_change(*before),
                desired.generation
            )
        }
        Blocker::PvcTerminating { ordinal } => {
            format!("Waiting for the old PVC of {} to terminate", pod(ordinal))
        }
        Blocker::AdoptionRefused => "Adoption blocked: the requested etcd version cannot follow the running one; objects created by etcd-druid stay unchanged".to_owned(),
        Blocker::StatefulSetTerminating => "Waiting for the old StatefulSet to terminate".to_owned(),
        Blocker::Bootstrapping => "Waiting for the cluster to bootstrap".to_owned(),
        Blocker::RecoveryBlocked(hold) => describe_recovery_blocker(hold, desired),
    }
}

pub(crate) fn describe_refusal(refusal: &SpecRefusal) -> String {
    match refusal {
        SpecRefusal::InvalidReplicas { replicas } => format!("spec.replicas must be between 0 and {MAX_MEMBERS}, not {replicas}"),
        SpecRefusal::VolumeShrink { current_bytes: current, requested_bytes: requested } => format!(
            "spec.storageCapacity {} is smaller than the volumes of {}: volumes cannot shrink",
            to_quantity(*requested).0,
            to_quantity(*current).0
        ),
        SpecRefusal::VolumeExpansion { reason: cause } => format!("Volumes cannot be expanded: {cause}"),
        SpecRefusal::Upgrade { from, to, rule } => format!("Upgrade refused: etcd {to} cannot follow {from}: {}", describe_upgrade_rule(*rule)),
        SpecRefusal::ExternalMembers => "spec.externallyManagedMemberAddresses is not supported: externally managed members are not reconciled".to_owned(),
        SpecRefusal::ReconcileNotRequested { generation } => format!(
            "Spec change pending: annotate druid.gardener.cloud/operation=reconcile to apply generation {generation}"
        ),
        SpecRefusal::ManuallyStopped => format!("StatefulSet scaled to 0 manually: pods stay stopped while the annotation {DISABLE_COMPONENT_PROTECTION} is set"),
        SpecRefusal::Suspended => {
            "Reconciliation suspended by the annotation druid.gardener.cloud/suspend-etcd-spec-reconcile".to_owned()
        }
    }
}

fn describe_upgrade_rule(rule: UpgradeRule) -> &'static str {
    match rule {
        UpgradeRule::OneMinor => "upgrade one minor version at a time",
        UpgradeRule::MinPatchFirst => "an upgrade to 3.6 requires 3.5.26 or later",
        UpgradeRule::NoDowngrade => "downgrades to an older minor version are not supported",
        UpgradeRule::SameMajor => "changes of the major version are not supported",
    }
}

fn describe_change(change: DisruptiveChange) -> &'static str {
    match change {
        DisruptiveChange::Hibernation => "Hibernation",
        DisruptiveChange::Upgrade => "Upgrade",
        DisruptiveChange::Rollout => "Rollout",
    }
}

fn describe_pod_deletion(cause: PodDeletionReason) -> &'static str {
    match cause {
        PodDeletionReason::OutdatedAndUnhealthy => "outdated and unhealthy",
        PodDeletionReason::Outdated => "outdated",
        PodDeletionReason::VolumeLost => "volume lost",
        PodDeletionReason::MemberRemoved => "member removed from the cluster",
        // Only the init container of a new pod checks the data directory.
        PodDeletionReason::CrashLooping => "etcd is crash-looping, data must be checked again",
    }
}

fn describe_pvc_deletion(cause: PvcDeletionReason) -> &'static str {
    match cause {
        PvcDeletionReason::Corrupt => "data corrupt",
        PvcDeletionReason::Foreign => "data belongs to a removed member or another cluster",
        PvcDeletionReason::VolumeLost => "volume lost",
        PvcDeletionReason::LeftByScaleIn => "left by a scale-in",
    }
}

fn describe_member_removal(cause: MemberRemovalReason) -> &'static str {
    match cause {
        MemberRemovalReason::ScaleIn => "scale-in",
        MemberRemovalReason::DataLost => "data lost",
    }
}

pub(crate) fn describe_recovery_step(step: &RecoveryStep, desired: &DesiredState) -> String {
    let pod = |ordinal: Ordinal| desired.pod_name(ordinal);
    match step {
        RecoveryStep::OpenIncident(incident) => format!(
            "Starting recovery: {}",
            describe_incident(incident, desired)
        ),
        RecoveryStep::ReacquireLock => "Reacquiring the recovery lock".to_owned(),
        RecoveryStep::RaiseEpoch { above } => {
            format!(
                "Raising the epoch of the recovery lock above {above}, which is recorded on a volume"
            )
        }
        // The lock is renewed while the recovery waits, so the status names what it waits for.
        RecoveryStep::RenewLock(on) => describe_blocker(on, desired),
        RecoveryStep::Scale { from, to: 0 } => format!("Stopping {from} pods for the recovery"),
        RecoveryStep::Scale { to, .. } => format!("Starting {to} pods after the recovery"),
        RecoveryStep::CreateJob {
            ordinal,
            kind: job_kind,
            ..
        } => match job_kind {
            RecoveryJobKind::Restore => format!("Restoring the data of {}", pod(*ordinal)),
            RecoveryJobKind::RenameToPrevious => format!(
                "Moving the old data of {} to the previous data directory",
                pod(*ordinal)
            ),
        },
        RecoveryStep::DeleteJob { ordinal, .. } => {
            format!("Deleting the last Job on the volume of {}", pod(*ordinal))
        }
        RecoveryStep::RecordIncident { to, .. } => match to.stage {
            RecoveryStage::Restored => format!("Data restored: {}", to.message),
            RecoveryStage::Abandoned => format!("Recovery abandoned: {}", to.message),
            _ => format!("Recovery attempt {}: {}", to.attempt, to.message),
        },
        RecoveryStep::CloseIncident { to, .. } => format!("Recovery finished: {}", to.message),
        RecoveryStep::ReleaseLock => "Releasing the recovery lock".to_owned(),
    }
}

pub(crate) fn describe_recovery_blocker(
    blocker: &RecoveryBlocker,
    desired: &DesiredState,
) -> String {
    let pod = |ordinal: &Ordinal| desired.pod_name(*ordinal);
    match blocker {
        RecoveryBlocker::LossUnconfirmed => {
            "Confirming quorum loss: a quorum of members seems to have lost its data"
                .to_owned()
        }
        RecoveryBlocker::ApprovalRequired { id } => format!(
            "Waiting for approval: a quorum of members has lost its data; annotate {APPROVE_RECOVERY}={id} to start the recovery"
        ),
        RecoveryBlocker::ManualMode => {
            "Data lost: spec.mainstay.recovery.mode is Manual; create an EtcdOpsTask to start the recovery"
                .to_owned()
        }
        RecoveryBlocker::DataStateUnknown { ordinal } => format!(
            "Quorum lost: waiting for the data check of {}",
            pod(ordinal)
        ),
        RecoveryBlocker::VolumeUnchecked { ordinal } => format!(
            "Checking the volume of {} before the backup of a former cluster with this name is restored",
            pod(ordinal)
        ),
        RecoveryBlocker::SurvivorAtRisk { ordinal } => format!(
            "Quorum lost: {} has the newest copy, and its PVC is being deleted. Save its data, for example with \
             a snapshot of its etcd, then delete the pod to restore the backup",
            pod(ordinal)
        ),
        RecoveryBlocker::NothingToRestore => {
            "Data lost: no other copy and no backup exist".to_owned()
        }
        RecoveryBlocker::VolumeUnavailable { ordinal } => {
            format!("Recovering: waiting for the volume of {}", pod(ordinal))
        }
        RecoveryBlocker::LockHeld { holder } => format!("Recovering: waiting for {holder} to release the lock"),
        RecoveryBlocker::DocumentUnreadable { reason: cause } => format!(
            "Data lost: the coordination document cannot be read and has to be corrected by an operator: {cause}"
        ),
        RecoveryBlocker::PodsStopping => "Recovering: waiting for pods to stop".to_owned(),
        RecoveryBlocker::JobRunning { ordinal } => {
            format!(
                "Recovering: waiting for the Job on the volume of {}",
                pod(ordinal)
            )
        }
        RecoveryBlocker::JobFailed {
            ordinal,
            reason: cause,
            retry_at,
        } => format!(
            "Restore of {} failed, retrying at {}: {cause}",
            pod(ordinal),
            truncate_to_seconds(*retry_at)
        ),
        RecoveryBlocker::AwaitingConfirmation => {
            "Recovering: waiting for etcd to serve the restored data".to_owned()
        }
    }
}

/// Cause and source of a recovery, and which writes it loses.
pub(crate) fn describe_incident(incident: &Incident, desired: &DesiredState) -> String {
    let base = desired.pod_name(Ordinal(incident.base));
    let cause = match incident.cause {
        RecoveryCause::MemberLost => "the only member lost its data",
        RecoveryCause::QuorumLost => "a quorum of members lost its data",
        RecoveryCause::FormerBackup => "a former cluster with this name left a backup",
        RecoveryCause::Requested => "a restore was requested",
    };
    let from = match incident.source {
        RecoverySource::Backup => "the backup; writes after its last snapshot are lost",
        RecoverySource::BestCopy => {
            "its own data or the backup, whichever is newer; writes that only lost members held are lost"
        }
    };
    format!("{cause}; {base} is restored from {from}")
}

fn truncate_to_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

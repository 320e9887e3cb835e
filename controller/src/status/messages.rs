//! Sentences of status, Events and logs for steps, blockers and refusals.

use crate::decide::{
    Blocker, DisruptiveChange, MemberRemovalReason, PodDeletionReason, PvcDeletionReason,
    ReconcileStep, SpecRefusal, UpgradeRule,
};
use crate::observe::Ordinal;
use crate::quantity::to_quantity;
use crate::validate::{DISABLE_COMPONENT_PROTECTION, DesiredState, MAX_MEMBERS, WITHOUT_SNAPSHOT};

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
        ReconcileStep::Recover(step) => super::recovery::describe_recovery_step(step, desired),
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
        Blocker::RecoveryBlocked(hold) => super::recovery::describe_recovery_blocker(hold, desired),
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

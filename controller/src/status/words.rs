//! Decisions in words for people.

use crate::decide::{Blocker, DisruptiveChange, SpecRefusal, MemberRemovalReason, PodDeletionReason, ReconcileStep, UpgradeRule, PvcDeletionReason};
use crate::observe::Ordinal;
use crate::quantity::to_quantity;
use crate::validate::{MAX_MEMBERS, DISABLE_COMPONENT_PROTECTION, WITHOUT_SNAPSHOT, DesiredState};

/// What a step does, or what it waits for.
pub fn describe_step(step: &ReconcileStep, wanted: &DesiredState) -> String {
    let pod = |ordinal: &Ordinal| wanted.pod_name(*ordinal);
    match step {
        ReconcileStep::DisableRollingUpdate => "the StatefulSet is kept from replacing pods by itself".to_owned(),
        ReconcileStep::Snapshot { before } => format!("a full snapshot is taken before {}", describe_change(*before)),
        ReconcileStep::Scale { from, to } => format!("the number of pods goes from {from} to {to}"),
        ReconcileStep::DeletePod {
            ordinal, reason: because, ..
        } => format!("{} is restarted: {}", pod(ordinal), describe_pod_deletion(*because)),
        ReconcileStep::DeletePvc {
            ordinal, reason: because, ..
        } => {
            format!(
                "the volume claim of {} is given up: {}",
                pod(ordinal),
                describe_pvc_deletion(*because)
            )
        }
        ReconcileStep::AddLearner { ordinal } => format!("{} is added as a learner", pod(ordinal)),
        ReconcileStep::Promote { ordinal, .. } => format!("{} gets its vote", pod(ordinal)),
        ReconcileStep::RemoveMember {
            ordinal, reason: because, ..
        } => {
            format!(
                "{} is removed from the cluster: {}",
                pod(ordinal),
                describe_member_removal(*because)
            )
        }
        ReconcileStep::MoveLeader { from, to } => format!("leadership moves from {from} to {to}"),
        ReconcileStep::UpdatePeerUrls { ordinal, .. } => {
            format!("the cluster is told where {} listens", pod(ordinal))
        }
        ReconcileStep::ExpandPvcs { ordinals, bytes } => {
            format!(
                "{} volumes are expanded to {}",
                ordinals.len(),
                to_quantity(*bytes).0
            )
        }
        ReconcileStep::RecreateStatefulSet { .. } => "the StatefulSet is made again around its pods".to_owned(),
        ReconcileStep::Recover(step) => super::recovery::describe_recovery_step(step, wanted),
        ReconcileStep::Wait { blocker: on } => describe_blocker(on, wanted),
    }
}

/// What is waited for.
pub fn describe_blocker(on: &Blocker, wanted: &DesiredState) -> String {
    let pod = |ordinal: &Ordinal| wanted.pod_name(*ordinal);
    match on {
        Blocker::StatefulSetUnobserved => "waits for the controller of StatefulSets".to_owned(),
        Blocker::PodMissing { ordinal } => format!("waits for {} to come back", pod(ordinal)),
        Blocker::UpdatedMemberUnhealthy { ordinal } => format!(
            "waits for {}, which was updated and is not well",
            pod(ordinal)
        ),
        Blocker::MemberUnhealthy { ordinal } => {
            format!("waits for {}, which is not well", pod(ordinal))
        }
        Blocker::ForeignMemberUnhealthy { member } => {
            format!("waits for member {member}, which is not well")
        }
        Blocker::LearnerLagging { ordinal } => format!("waits for {} to catch up", pod(ordinal)),
        Blocker::ForeignLearner { member } => {
            format!("waits for learner {member}, which is none of this Etcd's")
        }
        Blocker::NoQuorum => "waits for a quorum of members to answer".to_owned(),
        Blocker::QuorumAtRisk {
            ordinal,
            healthy: well,
            voters,
        } => format!(
            "refuses to remove {}: {well} of the {voters} members left would be healthy, which is no quorum",
            pod(ordinal)
        ),
        Blocker::SnapshotRunning { before } => {
            format!("waits for the snapshot before {}", describe_change(*before))
        }
        Blocker::SnapshotFailed { before, reason: why, .. } => {
            format!(
                "there is no {} without a snapshot, which failed: {why} (the annotation {WITHOUT_SNAPSHOT}={} goes on without it)",
                describe_change(*before),
                wanted.generation
            )
        }
        Blocker::PvcTerminating { ordinal } => {
            format!("waits for the old volume claim of {} to go", pod(ordinal))
        }
        Blocker::AdoptionRefused => "leaves what etcd-druid made as it is: the etcd that is asked for cannot follow the one that runs".to_owned(),
        Blocker::StatefulSetTerminating => "waits for the old StatefulSet to go".to_owned(),
        Blocker::Bootstrapping => "waits for the cluster to come up for the first time".to_owned(),
        Blocker::RecoveryBlocked(hold) => super::recovery::describe_recovery_blocker(hold, wanted),
    }
}

/// What was asked for and is not given.
pub fn describe_refusal(refusal: &SpecRefusal) -> String {
    match refusal {
        SpecRefusal::InvalidReplicas { replicas } => format!("spec.replicas is {replicas}: a cluster has no members or some, and at most {MAX_MEMBERS}"),
        SpecRefusal::VolumeShrink { current_bytes: have, requested_bytes: want } => format!(
            "spec.storageCapacity is {}, and volumes of {} do not shrink",
            to_quantity(*want).0,
            to_quantity(*have).0
        ),
        SpecRefusal::VolumeExpansion { reason: why } => format!("the volumes cannot be expanded: {why}"),
        SpecRefusal::Upgrade { from, to, rule } => format!("etcd {to} cannot follow {from}: {}", describe_upgrade_rule(*rule)),
        SpecRefusal::ExternalMembers => "members at addresses of somebody else are left alone by this version".to_owned(),
        SpecRefusal::ReconcileNotRequested { generation } => format!(
            "generation {generation} of the spec waits for the annotation druid.gardener.cloud/operation=reconcile"
        ),
        SpecRefusal::ManuallyStopped => format!("the pods were stopped by hand, and stay so while there is the annotation {DISABLE_COMPONENT_PROTECTION}"),
        SpecRefusal::Suspended => {
            "reconciliation is suspended by the annotation druid.gardener.cloud/suspend-etcd-spec-reconcile".to_owned()
        }
    }
}

fn describe_upgrade_rule(rule: UpgradeRule) -> &'static str {
    match rule {
        UpgradeRule::OneMinor => "one minor version at a time",
        UpgradeRule::MinPatchFirst => "3.6 follows 3.5.26 or later",
        UpgradeRule::NoDowngrade => "an older minor version is not installed over a newer one",
        UpgradeRule::SameMajor => "another major version",
    }
}

fn describe_change(change: DisruptiveChange) -> &'static str {
    match change {
        DisruptiveChange::Hibernation => "hibernation",
        DisruptiveChange::Upgrade => "upgrade of etcd",
        DisruptiveChange::Rollout => "rollout",
    }
}

fn describe_pod_deletion(because: PodDeletionReason) -> &'static str {
    match because {
        PodDeletionReason::OutdatedAndUnhealthy => "it is out of date and takes no part",
        PodDeletionReason::Outdated => "it is out of date",
        PodDeletionReason::VolumeLost => "its volume is gone",
        PodDeletionReason::MemberRemoved => "its member was removed from the cluster",
        PodDeletionReason::CrashLooping => "etcd ends again and again, so its data is checked again",
    }
}

fn describe_pvc_deletion(because: PvcDeletionReason) -> &'static str {
    match because {
        PvcDeletionReason::Corrupt => "its data is proven to be damaged",
        PvcDeletionReason::Foreign => "its data is of a member that was removed",
        PvcDeletionReason::VolumeLost => "its volume is gone",
        PvcDeletionReason::LeftByScaleIn => "a removed member left it behind",
    }
}

fn describe_member_removal(because: MemberRemovalReason) -> &'static str {
    match because {
        MemberRemovalReason::ScaleIn => "fewer members are wanted",
        MemberRemovalReason::DataLost => "its data is lost",
    }
}

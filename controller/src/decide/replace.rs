//! Replaces a member whose data is lost while the cluster has quorum: removes the member, which rejoins empty as a learner.
//!
//! Invariants: the loss is proven by the verdict of the init check or by the absence of the volume; a member that does not
//! answer proves nothing. A PVC is deleted only after its member is removed. Data from before a recovery is deleted only when the
//! new cluster is healthy without it. A pod whose member was removed while it ran is restarted, so that the init check detects
//! the removal; etcd alone would crash forever.

use mainstay_coordination::incident::RecoveryStage;

use super::recovery::is_alive_since;
use crate::model::{
    Blocker, InitFinding, MemberRemovalReason, ObservedEtcdMember, ObservedPod, ObservedPvc,
    Ordinal, PodDeletionReason, PvcDeletionReason, ReconcileStep, World, quorum,
};

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    world.members()?;
    world
        .ordinals()
        .find_map(|ordinal| plan_for_member(world, ordinal))
}

fn plan_for_member(world: &World<'_>, ordinal: Ordinal) -> Option<ReconcileStep> {
    let pod = world.pod(ordinal).filter(|pod| !pod.is_deleting)?;
    if world.is_responsive(ordinal) {
        return None;
    }
    let pvc = world.observed.pvcs.get(&ordinal);
    let is_volume_gone =
        pvc.is_none_or(|pvc| pvc.is_lost || pvc.is_deleting) && is_volume_timeout_over(world, pod);
    let is_lost = pod.finding.is_some_and(InitFinding::is_data_loss) || is_volume_gone;
    // Scale-in removes higher ordinals, so repairing them is wasted work.
    let stays = !world.is_spec_accepted() || ordinal.0 < world.desired.replicas;
    let is_unusable = pod.finding.is_some_and(InitFinding::is_volume_unusable);
    match world.member(ordinal) {
        // Added and not started yet (etcd reports no name): only data of its predecessor can block it.
        Some(member) if member.name.is_empty() => (is_unusable && stays)
            .then(|| renew_pod_or_pvc(world, ordinal, pod, pvc, is_volume_gone))
            .flatten(),
        Some(member) if is_lost && has_other_voters(world, member) => {
            Some(remove_or_wait(world, ordinal, member))
        }
        None if stays => renew_pod_or_pvc(world, ordinal, pod, pvc, is_volume_gone),
        Some(_) | None => None,
    }
}

/// Whether other voters hold the data. For a single voter the only other copy is the backup, which the recovery restores.
fn has_other_voters(world: &World<'_>, member: &ObservedEtcdMember) -> bool {
    member.is_learner || world.voters().count() > 1
}

/// Whether the member ID in the Lease of the pod is no longer in the member list.
fn is_member_removed(world: &World<'_>, ordinal: Ordinal) -> bool {
    let lease = world.observed.leases.get(&ordinal);
    let holder = lease.and_then(|lease| lease.holder.as_ref());
    let list = world.members().map(|members| &members.list);
    holder
        .zip(list)
        .is_some_and(|(holder, list)| list.iter().all(|member| member.id != holder.member_id))
}

/// Recreates the pod or its PVC, whichever keeps the member from starting.
fn renew_pod_or_pvc(
    world: &World<'_>,
    ordinal: Ordinal,
    pod: &ObservedPod,
    pvc: Option<&ObservedPvc>,
    is_volume_gone: bool,
) -> Option<ReconcileStep> {
    let delete_pvc = |pvc: &ObservedPvc, reason| ReconcileStep::DeletePvc {
        ordinal,
        uid: pvc.uid.clone(),
        pod_uid: Some(pod.uid.clone()),
        reason,
    };
    let delete_pod = |reason| ReconcileStep::DeletePod {
        ordinal,
        uid: pod.uid.clone(),
        reason,
    };
    match pvc {
        Some(pvc) if pvc.is_lost && !pvc.is_deleting => {
            Some(delete_pvc(pvc, PvcDeletionReason::VolumeLost))
        }
        // The StatefulSet controller creates a PVC only together with a pod.
        _ if is_volume_gone => Some(delete_pod(PodDeletionReason::VolumeLost)),
        Some(pvc) if !pvc.is_deleting => match pod.finding? {
            InitFinding::Corrupt | InitFinding::Foreign if !is_data_expendable(world, ordinal) => {
                None
            }
            InitFinding::Corrupt => Some(delete_pvc(pvc, PvcDeletionReason::Corrupt)),
            InitFinding::Foreign => Some(delete_pvc(pvc, PvcDeletionReason::Foreign)),
            InitFinding::CanStart if is_member_removed(world, ordinal) => {
                Some(delete_pod(PodDeletionReason::MemberRemoved))
            }
            InitFinding::CanStart
            | InitFinding::WaitingToJoin
            | InitFinding::NeedsRestore
            | InitFinding::BackupExists
            | InitFinding::NothingToRestore
            | InitFinding::Refused => None,
        },
        _ => None,
    }
}

/// Whether the data of a member may be deleted. Data from before a recovery may be the best copy until all other members, or a
/// quorum of the cluster, are healthy.
fn is_data_expendable(world: &World<'_>, ordinal: Ordinal) -> bool {
    let finished = world.observed.recovery.finished_incident();
    let finished = finished
        .filter(|finished| finished.stage == RecoveryStage::Closed && ordinal.0 < finished.size);
    let lease = world.observed.leases.get(&ordinal);
    if finished.is_none_or(|finished| lease.is_some_and(|lease| is_alive_since(lease, finished))) {
        return true; // written after the recovery, so the other members have it
    }
    let all = world.ordinals().count();
    let others = world.ordinals().filter(|other| *other != ordinal);
    let healthy_members = others
        .filter(|other| world.is_member_healthy(*other))
        .count();
    healthy_members + 1 >= all || healthy_members >= quorum(all)
}

fn remove_or_wait(
    world: &World<'_>,
    ordinal: Ordinal,
    member: &ObservedEtcdMember,
) -> ReconcileStep {
    let (healthy_voters, voters) = world.count_voters_without(member);
    // A learner has no vote: removing it cannot break quorum.
    if !member.is_learner && (healthy_voters < quorum(voters) || !world.has_quorum()) {
        return ReconcileStep::Wait {
            blocker: Blocker::QuorumAtRisk {
                ordinal,
                healthy: healthy_voters,
                voters,
            },
        };
    }
    ReconcileStep::RemoveMember {
        member: member.id,
        ordinal,
        reason: MemberRemovalReason::DataLost,
    }
}

/// Whether the pod is old enough for a missing PVC to count as lost. The watch may deliver a new PVC after its pod.
fn is_volume_timeout_over(world: &World<'_>, pod: &ObservedPod) -> bool {
    let waited = pod
        .created_at
        .map(|created| world.now.duration_since(created));
    waited.is_some_and(|waited| waited.unsigned_abs() >= world.policy.volume_timeout)
}

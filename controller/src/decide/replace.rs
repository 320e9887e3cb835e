//! A member whose data is lost, in a cluster that has its quorum: it is taken out, and comes back empty as a learner.
//!
//! **Holds**: loss is proven, by the verdict of the member's own check or by the absence of its volume; silence proves
//! nothing. A volume is given up only after its member is out of the cluster. What was there before a recovery is given up
//! only when the new cluster is whole without it. A pod whose member was taken out while it
//! ran is started again, so that its check sees that; etcd alone would fail for ever.

use mainstay_coordination::incident::RecoveryStage;

use super::recovery::is_alive_since;
use super::{Blocker, MemberRemovalReason, PodDeletionReason, ReconcileStep, PvcDeletionReason, World, is_spec_accepted, quorum};
use crate::observe::{InitFinding, Ordinal, ObservedPvc, ObservedEtcdMember, ObservedPod};

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    world.members()?;
    world.ordinals().find_map(|ordinal| plan_for_member(world, ordinal))
}

fn plan_for_member(world: &World<'_>, ordinal: Ordinal) -> Option<ReconcileStep> {
    let pod = world.pod(ordinal).filter(|pod| !pod.is_deleting)?;
    if world.is_responsive(ordinal) {
        return None;
    }
    let claim = world.observed.pvcs.get(&ordinal);
    let is_volume_gone = claim.is_none_or(|claim| claim.is_lost || claim.is_deleting)
        && is_volume_timeout_over(world, pod);
    let is_lost = pod.finding.is_some_and(InitFinding::is_data_loss) || is_volume_gone;
    // What goes anyway is not mended: see scaling in.
    let stays = !is_spec_accepted(world) || ordinal.0 < world.desired.replicas;
    let is_useless = pod.finding.is_some_and(InitFinding::is_volume_unusable);
    match world.member(ordinal) {
        // Just added and not started yet: only what an earlier member left is in its way.
        Some(member) if member.name.is_empty() => (is_useless && stays)
            .then(|| renew_pod_or_pvc(world, ordinal, pod, claim, is_volume_gone))
            .flatten(),
        Some(member) if is_lost && has_other_voters(world, member) => {
            Some(remove_or_wait(world, ordinal, member))
        }
        None if stays => renew_pod_or_pvc(world, ordinal, pod, claim, is_volume_gone),
        Some(_) | None => None,
    }
}

/// Of the only voter's data the only other copy is the backup: see the recovery.
fn has_other_voters(world: &World<'_>, member: &ObservedEtcdMember) -> bool {
    member.is_learner || world.voters().count() > 1
}

/// Whether the member this pod last was is none any more.
fn is_member_removed(world: &World<'_>, ordinal: Ordinal) -> bool {
    let lease = world.observed.leases.get(&ordinal);
    let held = lease.and_then(|lease| lease.holder.as_ref());
    let list = world.members().map(|members| &members.list);
    held.zip(list)
        .is_some_and(|(held, list)| list.iter().all(|member| member.id != held.member_id))
}

/// The pod and its claim, as long as it needs new ones.
fn renew_pod_or_pvc(
    world: &World<'_>,
    ordinal: Ordinal,
    pod: &ObservedPod,
    claim: Option<&ObservedPvc>,
    is_volume_gone: bool,
) -> Option<ReconcileStep> {
    let discard = |claim: &ObservedPvc, because| ReconcileStep::DeletePvc {
        ordinal,
        uid: claim.uid.clone(),
        pod_uid: Some(pod.uid.clone()),
        reason: because,
    };
    let restart = |because| ReconcileStep::DeletePod {
        ordinal,
        uid: pod.uid.clone(),
        reason: because,
    };
    match claim {
        Some(claim) if claim.is_lost && !claim.is_deleting => {
            Some(discard(claim, PvcDeletionReason::VolumeLost))
        }
        _ if is_volume_gone => Some(restart(PodDeletionReason::VolumeLost)),
        Some(claim) if !claim.is_deleting => match pod.finding? {
            InitFinding::Corrupt | InitFinding::Foreign if !is_data_expendable(world, ordinal) => None,
            InitFinding::Corrupt => Some(discard(claim, PvcDeletionReason::Corrupt)),
            InitFinding::Foreign => Some(discard(claim, PvcDeletionReason::Foreign)),
            InitFinding::CanStart if is_member_removed(world, ordinal) => Some(restart(PodDeletionReason::MemberRemoved)),
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

/// Whether nobody may miss what a member left. What it left before a recovery may be the best there is, until the others are
/// well, or a quorum of them.
fn is_data_expendable(world: &World<'_>, ordinal: Ordinal) -> bool {
    let over = world.observed.recovery.finished_incident();
    let over = over.filter(|over| over.stage == RecoveryStage::Closed && ordinal.0 < over.size);
    let lease = world.observed.leases.get(&ordinal);
    if over.is_none_or(|over| lease.is_some_and(|lease| is_alive_since(lease, over))) {
        return true; // it has lived since
    }
    let all = world.ordinals().count();
    let others = world.ordinals().filter(|other| *other != ordinal);
    let well = others.filter(|other| world.is_member_healthy(*other)).count();
    well + 1 >= all || well >= quorum(all)
}

fn remove_or_wait(world: &World<'_>, ordinal: Ordinal, member: &ObservedEtcdMember) -> ReconcileStep {
    let (well, voters) = world.count_voters_without(member);
    if !member.is_learner && (well < quorum(voters) || !world.has_quorum()) {
        return ReconcileStep::Wait {
            blocker: Blocker::QuorumAtRisk {
                ordinal,
                healthy: well,
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

/// A claim that is not in sight may just not have been seen yet.
fn is_volume_timeout_over(world: &World<'_>, pod: &ObservedPod) -> bool {
    let waited = pod.created_at.map(|created| world.now.duration_since(created));
    waited.is_some_and(|waited| waited.unsigned_abs() >= world.policy.volume_timeout)
}

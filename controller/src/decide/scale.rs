//! Adds and removes members one at a time, always at the highest ordinal, and restores pods that a user scaled away.
//!
//! Scale out: when all members are healthy, the StatefulSet grows by one pod, which waits until it is added as a learner.
//! Scale in: leadership is transferred, the member is removed, then the StatefulSet shrinks by one pod. A removal that would
//! break quorum waits.

use super::effective_spec;
use crate::model::{
    Blocker, DriftPolicy, MemberRemovalReason, ObservedEtcdMember, Ordinal, PvcDeletionReason,
    ReconcileStep, World, quorum,
};

/// Restores all pods when a user scaled the StatefulSet below the number of members. The data is still on the volumes, so no
/// member is removed and nothing is restored from the backup.
pub(super) fn plan_pod_restoration(world: &World<'_>) -> Option<ReconcileStep> {
    let (from, observed) = (world.size(), world.last_known.observed_generation);
    // The annotation that disables component protection permits manual changes.
    let is_drift_kept = world.desired.drift_policy(observed) == DriftPolicy::Keep;
    if from == 0 || is_drift_kept || world.observed.recovery.open_incident().is_some() {
        return None;
    }
    let members = match world.members() {
        Some(members) => {
            let ordinals = members.list.iter().filter_map(|one| one.ordinal);
            effective_spec::count_up_to(ordinals.max().as_ref())
        }
        // Without a quorum the Leases are the only record of the members.
        None => effective_spec::count_registered_members(world),
    };
    let to = members.min(world.desired.replicas);
    if from >= to {
        return None;
    }
    Some(if world.is_spec_accepted() {
        ReconcileStep::Scale { from, to }
    } else {
        let ordinal = Ordinal(from);
        let blocker = Blocker::PodMissing { ordinal };
        ReconcileStep::Wait { blocker }
    })
}

pub(super) fn plan_scale_in(world: &World<'_>) -> Option<ReconcileStep> {
    let (size, desired) = (world.size(), world.desired.replicas);
    if desired == 0 || size == 0 {
        return None;
    }
    if let Some((ordinal, member)) = find_member_without_pod(world) {
        return Some(remove_or_wait(world, ordinal, member));
    }
    if size <= desired {
        return None;
    }
    let last = Ordinal(size - 1);
    if world.members().is_none() {
        return Some(ReconcileStep::Wait {
            blocker: Blocker::NoQuorum,
        });
    }
    Some(match world.member(last) {
        Some(member) => remove_or_wait(world, last, member),
        None => ReconcileStep::Scale {
            from: size,
            to: size - 1,
        },
    })
}

/// A member whose pod was deleted before the member was removed.
fn find_member_without_pod<'a>(world: &World<'a>) -> Option<(Ordinal, &'a ObservedEtcdMember)> {
    let mut list = world.members()?.list.iter();
    list.find_map(|member| {
        let ordinal = member.ordinal.filter(|ordinal| ordinal.0 >= world.size())?;
        Some((ordinal, member))
    })
}

fn remove_or_wait(
    world: &World<'_>,
    ordinal: Ordinal,
    member: &ObservedEtcdMember,
) -> ReconcileStep {
    // A learner has no vote: removing it cannot break quorum.
    if member.is_learner {
        return removal_step(ordinal, member);
    }
    let (healthy_voters, voters) = world.count_voters_without(member);
    if healthy_voters < quorum(voters) || !world.has_quorum() {
        return ReconcileStep::Wait {
            blocker: Blocker::QuorumAtRisk {
                ordinal,
                healthy: healthy_voters,
                voters,
            },
        };
    }
    // Removing the leader would leave the cluster without one until the next election.
    match world.pick_transferee(member).filter(|_| member.is_leader()) {
        Some(transferee) => ReconcileStep::MoveLeader {
            from: member.id,
            to: transferee.id,
        },
        None => removal_step(ordinal, member),
    }
}

fn removal_step(ordinal: Ordinal, member: &ObservedEtcdMember) -> ReconcileStep {
    ReconcileStep::RemoveMember {
        member: member.id,
        ordinal,
        reason: MemberRemovalReason::ScaleIn,
    }
}

pub(super) fn plan_scale_out(world: &World<'_>) -> Option<ReconcileStep> {
    let (from, desired) = (world.size(), world.desired.replicas);
    if from == 0 || from >= desired {
        return None;
    }
    if world.members().is_none() {
        let blocker = if world.is_bootstrapped() {
            Blocker::NoQuorum
        } else {
            Blocker::Bootstrapping
        };
        return Some(ReconcileStep::Wait { blocker });
    }
    if let Some(blocker) = world.first_unhealthy(None) {
        return Some(ReconcileStep::Wait { blocker });
    }
    let ordinal = Ordinal(from);
    Some(match world.observed.pvcs.get(&ordinal) {
        Some(pvc) if pvc.is_deleting => ReconcileStep::Wait {
            blocker: Blocker::PvcTerminating { ordinal },
        },
        // No member has this name, and a new member cannot start from old data.
        Some(pvc) if world.pod(ordinal).is_none() => ReconcileStep::DeletePvc {
            ordinal,
            uid: pvc.uid.clone(),
            pod_uid: None,
            reason: PvcDeletionReason::LeftByScaleIn,
        },
        // The pod of the previous scale-in is still terminating and mounts the PVC.
        Some(_) => ReconcileStep::Wait {
            blocker: Blocker::PodMissing { ordinal },
        },
        None => ReconcileStep::Scale { from, to: from + 1 },
    })
}

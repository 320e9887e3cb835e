//! More members, or fewer; one at a time, always the highest ordinal. And as many pods as there are members.
//!
//! **Outward**: from a whole cluster the StatefulSet grows by one pod, which waits until it is added as a learner.
//! **Inward**: leadership is moved away, the member is removed, then its pod goes. What would cost the quorum waits, with
//! the reason.

use super::{Blocker, MemberRemovalReason, ReconcileStep, PvcDeletionReason, World, is_spec_accepted, quorum, shape};
use crate::observe::{Ordinal, ObservedEtcdMember};
use crate::validate::DriftPolicy;

/// Somebody made the StatefulSet smaller than the cluster is: all pods come back, to what they hold. Nobody is given up, and
/// nothing is restored, because pods were taken away.
pub(super) fn plan_pod_restoration(world: &World<'_>) -> Option<ReconcileStep> {
    let (from, observed) = (world.size(), world.last_known.observed_generation);
    let is_left = world.desired.drift_policy(observed) == DriftPolicy::Keep;
    if from == 0 || is_left || world.observed.recovery.open_incident().is_some() {
        return None;
    }
    let members = match world.members() {
        Some(members) => {
            let ordinals = members.list.iter().filter_map(|one| one.ordinal);
            shape::count_up_to(ordinals.max().as_ref())
        }
        None => shape::count_registered_members(world),
    };
    let to = members.min(world.desired.replicas);
    if from >= to {
        return None;
    }
    Some(if is_spec_accepted(world) {
        ReconcileStep::Scale { from, to }
    } else {
        let ordinal = Ordinal(from);
        let on = Blocker::PodMissing { ordinal };
        ReconcileStep::Wait { blocker: on }
    })
}

pub(super) fn plan_scale_in(world: &World<'_>) -> Option<ReconcileStep> {
    let (size, wanted) = (world.size(), world.desired.replicas);
    if wanted == 0 || size == 0 {
        return None;
    }
    if let Some((ordinal, stray)) = find_member_without_pod(world) {
        return Some(remove_or_wait(world, ordinal, stray));
    }
    if size <= wanted {
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

/// A member whose pod went before it was removed.
fn find_member_without_pod<'a>(world: &World<'a>) -> Option<(Ordinal, &'a ObservedEtcdMember)> {
    let mut list = world.members()?.list.iter();
    list.find_map(|member| {
        let ordinal = member.ordinal.filter(|ordinal| ordinal.0 >= world.size())?;
        Some((ordinal, member))
    })
}

fn remove_or_wait(world: &World<'_>, ordinal: Ordinal, member: &ObservedEtcdMember) -> ReconcileStep {
    if member.is_learner {
        return removal_step(ordinal, member);
    }
    let (well, voters) = world.count_voters_without(member);
    if well < quorum(voters) || !world.has_quorum() {
        return ReconcileStep::Wait {
            blocker: Blocker::QuorumAtRisk {
                ordinal,
                healthy: well,
                voters,
            },
        };
    }
    match world.pick_transferee(member).filter(|_| member.is_leader()) {
        Some(heir) => ReconcileStep::MoveLeader {
            from: member.id,
            to: heir.id,
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
    let (from, wanted) = (world.size(), world.desired.replicas);
    if from == 0 || from >= wanted {
        return None;
    }
    if world.members().is_none() {
        let on = if world.is_bootstrapped() {
            Blocker::NoQuorum
        } else {
            Blocker::Bootstrapping
        };
        return Some(ReconcileStep::Wait { blocker: on });
    }
    if let Some(on) = world.first_unhealthy(None) {
        return Some(ReconcileStep::Wait { blocker: on });
    }
    let ordinal = Ordinal(from);
    Some(match world.observed.pvcs.get(&ordinal) {
        Some(claim) if claim.is_deleting => ReconcileStep::Wait {
            blocker: Blocker::PvcTerminating { ordinal },
        },
        // Nobody of that name is a member, so what it holds is of no use to anybody.
        Some(claim) if world.pod(ordinal).is_none() => ReconcileStep::DeletePvc {
            ordinal,
            uid: claim.uid.clone(),
            pod_uid: None,
            reason: PvcDeletionReason::LeftByScaleIn,
        },
        Some(_) => ReconcileStep::Wait {
            blocker: Blocker::PodMissing { ordinal },
        },
        None => ReconcileStep::Scale { from, to: from + 1 },
    })
}

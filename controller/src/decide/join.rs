//! A pod that waits to become a member: added without a vote, given one when it has caught up. One at a time.

use super::{Blocker, PodDeletionReason, ReconcileStep, World, is_spec_accepted};
use crate::observe::{InitFinding, Ordinal, ObservedEtcdMember, UpdateStrategy};

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    world.members()?;
    let limit = if is_spec_accepted(world) {
        world.desired.replicas
    } else {
        u32::MAX
    };
    if let Some(learner) = world.learner() {
        return promote_or_wait(world, learner, limit.min(world.size()));
    }
    let waits = |ordinal: &Ordinal| {
        ordinal.0 < limit
            && world.member(*ordinal).is_none()
            && world.pod(*ordinal).is_some_and(|pod| {
                !pod.is_deleting && !pod.finding.is_some_and(InitFinding::is_volume_unusable)
            })
    };
    let ordinal = world.ordinals().find(waits)?;
    Some(if world.has_quorum() {
        ReconcileStep::AddLearner { ordinal }
    } else {
        ReconcileStep::Wait {
            blocker: Blocker::NoQuorum,
        }
    })
}

/// The learner there is, if it stays.
fn promote_or_wait(world: &World<'_>, learner: &ObservedEtcdMember, limit: u32) -> Option<ReconcileStep> {
    let Some(ordinal) = learner.ordinal else {
        return Some(ReconcileStep::Wait {
            blocker: Blocker::ForeignLearner { member: learner.id },
        });
    };
    if ordinal.0 >= limit {
        return None; // it goes: see scaling in
    }
    let is_up = learner.is_healthy() && world.pod(ordinal).is_some_and(|pod| !pod.is_deleting);
    if is_up {
        let member = learner.id;
        return Some(ReconcileStep::Promote { member, ordinal });
    }
    replace_outdated_pod(world, ordinal).or(Some(ReconcileStep::Wait {
        blocker: Blocker::LearnerLagging { ordinal },
    }))
}

/// It has no vote, so its pod may go at any time; one that cannot start may be what the template has been corrected for.
fn replace_outdated_pod(world: &World<'_>, ordinal: Ordinal) -> Option<ReconcileStep> {
    let set = world.stateful_set().filter(|set| set.is_observed)?;
    let pod = world.pod(ordinal).filter(|pod| !pod.is_deleting)?;
    let is_outdated = set.update_revision.is_some() && pod.revision != set.update_revision;
    let goes = is_outdated && set.update_strategy == UpdateStrategy::OnDelete && !world.is_responsive(ordinal);
    goes.then(|| ReconcileStep::DeletePod {
        ordinal,
        uid: pod.uid.clone(),
        reason: PodDeletionReason::OutdatedAndUnhealthy,
    })
}

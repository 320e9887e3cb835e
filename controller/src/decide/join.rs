//! Adds a waiting pod to the cluster: as a learner first, promoted after it has caught up. One pod at a time, because etcd
//! allows one learner by default.

use crate::model::{
    Blocker, InitFinding, ObservedEtcdMember, Ordinal, PodDeletionReason, ReconcileStep,
    UpdateStrategy, World,
};

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    world.members()?;
    // A pending spec must not limit repair: every existing pod may rejoin.
    let limit = if world.is_spec_accepted() {
        world.desired.replicas
    } else {
        u32::MAX
    };
    if let Some(learner) = world.learner() {
        return promote_or_wait(world, learner, limit.min(world.size()));
    }
    let needs_member = |ordinal: &Ordinal| {
        ordinal.0 < limit
            && world.member(*ordinal).is_none()
            && world.pod(*ordinal).is_some_and(|pod| {
                !pod.is_deleting && !pod.finding.is_some_and(InitFinding::is_volume_unusable)
            })
    };
    let ordinal = world.ordinals().find(needs_member)?;
    Some(if world.has_quorum() {
        ReconcileStep::AddLearner { ordinal }
    } else {
        ReconcileStep::Wait {
            blocker: Blocker::NoQuorum,
        }
    })
}

/// Promotes the existing learner or waits for it; `None` when scale-in removes it.
fn promote_or_wait(
    world: &World<'_>,
    learner: &ObservedEtcdMember,
    limit: u32,
) -> Option<ReconcileStep> {
    let Some(ordinal) = learner.ordinal else {
        // The member belongs to another system; only its owner may promote or remove it.
        return Some(ReconcileStep::Wait {
            blocker: Blocker::ForeignLearner { member: learner.id },
        });
    };
    if ordinal.0 >= limit {
        return None; // scale-in removes it
    }
    // etcd itself refuses to promote a learner that lags, so a healthy learner may be tried.
    let is_up = learner.is_healthy() && world.pod(ordinal).is_some_and(|pod| !pod.is_deleting);
    if is_up {
        let member = learner.id;
        return Some(ReconcileStep::Promote { member, ordinal });
    }
    replace_outdated_pod(world, ordinal).or(Some(ReconcileStep::Wait {
        blocker: Blocker::LearnerLagging { ordinal },
    }))
}

/// Deletes an outdated pod of a learner that does not start: the new template may contain the fix. A learner has no vote, so
/// quorum is not affected.
fn replace_outdated_pod(world: &World<'_>, ordinal: Ordinal) -> Option<ReconcileStep> {
    let set = world.stateful_set().filter(|set| set.is_observed)?;
    let pod = world.pod(ordinal).filter(|pod| !pod.is_deleting)?;
    let is_outdated = set.update_revision.is_some() && pod.revision != set.update_revision;
    let is_replaceable = is_outdated
        && set.update_strategy == UpdateStrategy::OnDelete
        && !world.is_responsive(ordinal);
    is_replaceable.then(|| ReconcileStep::DeletePod {
        ordinal,
        uid: pod.uid.clone(),
        reason: PodDeletionReason::OutdatedAndUnhealthy,
    })
}

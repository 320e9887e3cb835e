//! A pod that waits to become a member: added without a vote, given one when it has caught up. One at a time.

use super::{Blocker, Restart, Step, World, is_accepted};
use crate::observe::{Finding, Ordinal, SeenMember, Strategy};

pub(super) fn consider(world: &World<'_>) -> Option<Step> {
    world.members()?;
    let limit = if is_accepted(world) {
        world.wanted.replicas
    } else {
        u32::MAX
    };
    if let Some(learner) = world.learner() {
        return raise(world, learner, limit.min(world.size()));
    }
    let waits = |ordinal: &Ordinal| {
        ordinal.0 < limit
            && world.member(*ordinal).is_none()
            && world.pod(*ordinal).is_some_and(|pod| {
                !pod.is_deleting && !pod.finding.is_some_and(Finding::is_useless)
            })
    };
    let ordinal = world.ordinals().find(waits)?;
    Some(if world.has_quorum() {
        Step::AddLearner { ordinal }
    } else {
        Step::Wait {
            on: Blocker::NoQuorum,
        }
    })
}

/// The learner there is, if it stays.
fn raise(world: &World<'_>, learner: &SeenMember, limit: u32) -> Option<Step> {
    let Some(ordinal) = learner.ordinal else {
        return Some(Step::Wait {
            on: Blocker::StrangeLearner { member: learner.id },
        });
    };
    if ordinal.0 >= limit {
        return None; // it goes: see scaling in
    }
    let is_up = learner.is_healthy() && world.pod(ordinal).is_some_and(|pod| !pod.is_deleting);
    if is_up {
        let member = learner.id;
        return Some(Step::Promote { member, ordinal });
    }
    outdated(world, ordinal).or(Some(Step::Wait {
        on: Blocker::LearnerBehind { ordinal },
    }))
}

/// It has no vote, so its pod may go at any time; one that cannot start may be what the template has been corrected for.
fn outdated(world: &World<'_>, ordinal: Ordinal) -> Option<Step> {
    let set = world.set().filter(|set| set.is_observed)?;
    let pod = world.pod(ordinal).filter(|pod| !pod.is_deleting)?;
    let is_outdated = set.update_revision.is_some() && pod.revision != set.update_revision;
    let goes = is_outdated && set.strategy == Strategy::OnDelete && !world.takes_part(ordinal);
    goes.then(|| Step::DeletePod {
        ordinal,
        uid: pod.uid.clone(),
        because: Restart::OutdatedAndUnwell,
    })
}

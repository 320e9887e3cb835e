//! Pods that are not what the template says, replaced one at a time: first those that take no part anyway, then
//! followers, the leader last and after it has handed over.
//!
//! Before the first of them, a full snapshot is asked for and waited for; the rollout does not depend on it.
//!
//! **Holds**: a pod that takes part goes only when every other member is well, and every pod that was replaced before it
//! came back well: a bad template stops at the first pod. Clusters of one and two cannot lose a member without
//! a pause; there it is as short as a restart.

use super::{Blocker, Change, Restart, Step, World, snapshot};
use crate::observe::{Ordinal, SeenMember, SeenPod, Strategy};

pub(super) fn consider(world: &World<'_>) -> Option<Step> {
    let set = world.set()?;
    if set.replicas == 0 {
        return None;
    }
    if set.strategy == Strategy::Rolling {
        return None; // it replaces pods itself, and two that do that take a quorum away
    }
    if !set.is_observed || set.update_revision.is_none() {
        return Some(wait(Blocker::SetUnobserved));
    }
    let is_outdated = |ordinal: &Ordinal| {
        world
            .pod(*ordinal)
            .is_some_and(|pod| !pod.is_deleting && pod.revision != set.update_revision)
    };
    let outdated: Vec<Ordinal> = world.ordinals().filter(is_outdated).collect();
    if outdated.is_empty() {
        return None;
    }
    if let Some(ordinal) = world.missing() {
        return Some(wait(Blocker::PodReturns { ordinal }));
    }
    if let Some(unwell) = outdated.iter().find(|ordinal| !world.takes_part(**ordinal)) {
        return delete(world, *unwell, Restart::OutdatedAndUnwell);
    }
    let is_bad = |ordinal: &Ordinal| !outdated.contains(ordinal) && !world.is_well(*ordinal);
    if let Some(ordinal) = world.ordinals().find(is_bad) {
        return Some(wait(Blocker::UpdatedUnwell { ordinal }));
    }
    if world.members().is_none() {
        return Some(wait(Blocker::NoQuorum));
    }
    if let Some(on) = world.first_unwell(None) {
        return Some(wait(on));
    }
    let is_first = outdated.len() == world.ordinals().count();
    is_first
        .then(|| snapshot::before_if_possible(world, Change::Rollout))
        .flatten()
        .or_else(|| next(world, &outdated))
}

/// All are well: a follower, the highest first; or the leader.
fn next(world: &World<'_>, outdated: &[Ordinal]) -> Option<Step> {
    let leads = |ordinal: &Ordinal| world.member(*ordinal).is_some_and(SeenMember::is_leader);
    if let Some(follower) = outdated.iter().rev().find(|ordinal| !leads(ordinal)) {
        return delete(world, *follower, Restart::Outdated);
    }
    let ordinal = *outdated.first()?;
    let leader = world.member(ordinal)?;
    match world.heir(leader) {
        Some(heir) => Some(Step::MoveLeader {
            from: leader.id,
            to: heir.id,
        }),
        None => delete(world, ordinal, Restart::Outdated),
    }
}

fn delete(world: &World<'_>, ordinal: Ordinal, because: Restart) -> Option<Step> {
    let SeenPod { uid, .. } = world.pod(ordinal)?;
    Some(Step::DeletePod {
        ordinal,
        uid: uid.clone(),
        because,
    })
}

fn wait(on: Blocker) -> Step {
    Step::Wait { on }
}

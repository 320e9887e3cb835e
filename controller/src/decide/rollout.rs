//! Pods that are not what the template says, replaced one at a time: first those that take no part anyway, then
//! followers, the leader last and after it has handed over.
//!
//! Before the first of them, a full snapshot is asked for and waited for; the rollout does not depend on it.
//!
//! **Holds**: a pod that takes part goes only when every other member is well, and every pod that was replaced before it
//! came back well: a bad template stops at the first pod. Clusters of one and two cannot lose a member without
//! a pause; there it is as short as a restart.

use super::{Blocker, DisruptiveChange, PodDeletionReason, ReconcileStep, World, snapshot};
use crate::observe::{Ordinal, ObservedEtcdMember, ObservedPod, UpdateStrategy};

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let set = world.stateful_set()?;
    if set.replicas == 0 {
        return None;
    }
    if set.update_strategy == UpdateStrategy::RollingUpdate {
        return None; // it replaces pods itself, and two that do that take a quorum away
    }
    if !set.is_observed || set.update_revision.is_none() {
        return Some(wait(Blocker::StatefulSetUnobserved));
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
    if let Some(ordinal) = world.first_missing_pod() {
        return Some(wait(Blocker::PodMissing { ordinal }));
    }
    if let Some(unwell) = outdated.iter().find(|ordinal| !world.is_responsive(**ordinal)) {
        return delete_pod(world, *unwell, PodDeletionReason::OutdatedAndUnhealthy);
    }
    let is_bad = |ordinal: &Ordinal| !outdated.contains(ordinal) && !world.is_member_healthy(*ordinal);
    if let Some(ordinal) = world.ordinals().find(is_bad) {
        return Some(wait(Blocker::UpdatedMemberUnhealthy { ordinal }));
    }
    if world.members().is_none() {
        return Some(wait(Blocker::NoQuorum));
    }
    if let Some(on) = world.first_unhealthy(None) {
        return Some(wait(on));
    }
    let is_first = outdated.len() == world.ordinals().count();
    is_first
        .then(|| snapshot::try_snapshot(world, DisruptiveChange::Rollout))
        .flatten()
        .or_else(|| replace_next_pod(world, &outdated))
}

/// All are well: a follower, the highest first; or the leader.
fn replace_next_pod(world: &World<'_>, outdated: &[Ordinal]) -> Option<ReconcileStep> {
    let leads = |ordinal: &Ordinal| world.member(*ordinal).is_some_and(ObservedEtcdMember::is_leader);
    if let Some(follower) = outdated.iter().rev().find(|ordinal| !leads(ordinal)) {
        return delete_pod(world, *follower, PodDeletionReason::Outdated);
    }
    let ordinal = *outdated.first()?;
    let leader = world.member(ordinal)?;
    match world.pick_transferee(leader) {
        Some(heir) => Some(ReconcileStep::MoveLeader {
            from: leader.id,
            to: heir.id,
        }),
        None => delete_pod(world, ordinal, PodDeletionReason::Outdated),
    }
}

fn delete_pod(world: &World<'_>, ordinal: Ordinal, because: PodDeletionReason) -> Option<ReconcileStep> {
    let ObservedPod { uid, .. } = world.pod(ordinal)?;
    Some(ReconcileStep::DeletePod {
        ordinal,
        uid: uid.clone(),
        reason: because,
    })
}

fn wait(on: Blocker) -> ReconcileStep {
    ReconcileStep::Wait { blocker: on }
}

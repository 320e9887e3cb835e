//! Replaces pods that do not match the template, one at a time: pods that do not serve first, then followers, the leader last
//! after leadership is transferred.
//!
//! Before the first pod, the rollout requests a full snapshot and waits for it, but continues when the snapshot fails.
//!
//! Invariants: a serving pod is deleted only when every other member is healthy and every pod replaced before is healthy again,
//! so a bad template stops at the first pod. Clusters of one or two members are unavailable during the restart of a member.

use super::snapshot;
use crate::model::{
    Blocker, DisruptiveChange, ObservedEtcdMember, ObservedPod, Ordinal, PodDeletionReason,
    ReconcileStep, UpdateStrategy, World,
};

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let set = world.stateful_set()?;
    if set.replicas == 0 {
        return None;
    }
    if set.update_strategy == UpdateStrategy::RollingUpdate {
        return None; // the StatefulSet controller replaces pods itself; two at work can break quorum
    }
    // Until the StatefulSet controller observed the template, the update revision belongs to the previous one.
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
    // Such a pod contributes nothing to quorum, and the new template may be the fix, so it needs no healthy cluster.
    if let Some(ordinal) = outdated
        .iter()
        .find(|ordinal| !world.is_responsive(**ordinal))
    {
        return delete_pod(world, *ordinal, PodDeletionReason::OutdatedAndUnhealthy);
    }
    let is_updated_and_unhealthy =
        |ordinal: &Ordinal| !outdated.contains(ordinal) && !world.is_member_healthy(*ordinal);
    // Stop a bad template at the first pod.
    if let Some(ordinal) = world.ordinals().find(is_updated_and_unhealthy) {
        return Some(wait(Blocker::UpdatedMemberUnhealthy { ordinal }));
    }
    if world.members().is_none() {
        return Some(wait(Blocker::NoQuorum));
    }
    if let Some(on) = world.first_unhealthy(None) {
        return Some(wait(on));
    }
    // One snapshot per rollout, not one per pod.
    let is_first = outdated.len() == world.ordinals().count();
    is_first
        .then(|| snapshot::try_snapshot(world, DisruptiveChange::Rollout))
        .flatten()
        .or_else(|| replace_next_pod(world, &outdated))
}

/// With all members healthy: followers from the highest ordinal down, then the leader.
fn replace_next_pod(world: &World<'_>, outdated: &[Ordinal]) -> Option<ReconcileStep> {
    let leads = |ordinal: &Ordinal| {
        world
            .member(*ordinal)
            .is_some_and(ObservedEtcdMember::is_leader)
    };
    if let Some(follower) = outdated.iter().rev().find(|ordinal| !leads(ordinal)) {
        return delete_pod(world, *follower, PodDeletionReason::Outdated);
    }
    let ordinal = *outdated.first()?;
    let leader = world.member(ordinal)?;
    match world.pick_transferee(leader) {
        Some(transferee) => Some(ReconcileStep::MoveLeader {
            from: leader.id,
            to: transferee.id,
        }),
        None => delete_pod(world, ordinal, PodDeletionReason::Outdated),
    }
}

fn delete_pod(
    world: &World<'_>,
    ordinal: Ordinal,
    reason: PodDeletionReason,
) -> Option<ReconcileStep> {
    let ObservedPod { uid, .. } = world.pod(ordinal)?;
    Some(ReconcileStep::DeletePod {
        ordinal,
        uid: uid.clone(),
        reason,
    })
}

fn wait(blocker: Blocker) -> ReconcileStep {
    ReconcileStep::Wait { blocker }
}

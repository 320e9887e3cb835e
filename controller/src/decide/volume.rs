//! Expands volumes: raises the request of each PVC, then recreates the StatefulSet without deleting its pods, because
//! `volumeClaimTemplates` is immutable. Pods keep running.

use mainstay_crds::etcd::VolumeGrowth;

use super::tls;
use crate::model::{ObservedPvc, ObservedStatefulSet, Ordinal, ReconcileStep, SpecRefusal, World};

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let set = world.stateful_set()?;
    let bytes = world.desired.storage_bytes;
    if set.storage_bytes.is_none_or(|current| current >= bytes) {
        return None;
    }
    let expands = world.desired.volume_growth == VolumeGrowth::Expand
        && world.observed.expansion_refusal.is_none();
    if expands {
        let (bound, unbound): (Vec<_>, Vec<_>) =
            undersized_pvcs(world, set, bytes).partition(|(_, pvc)| pvc.is_bound);
        let ordinals: Vec<Ordinal> = bound.into_iter().map(|(ordinal, _)| ordinal).collect();
        if !ordinals.is_empty() {
            return Some(ReconcileStep::ExpandPvcs { ordinals, bytes });
        }
        if !unbound.is_empty() {
            return None; // the API server expands bound PVCs only; the wait for their pods covers them
        }
    }
    if world.observed.expansion_refusal.is_some()
        && world.desired.volume_growth == VolumeGrowth::Expand
    {
        return None; // reported as a refusal; the template keeps the current size
    }
    // The progress of other changes is recorded only in the old StatefulSet, so they must finish first.
    is_rollout_complete(world, set).then(|| ReconcileStep::RecreateStatefulSet {
        uid: set.uid.clone(),
    })
}

/// PVCs of current members that request less than `bytes`. PVCs left over from a scale-in are skipped.
fn undersized_pvcs<'a>(
    world: &World<'a>,
    set: &ObservedStatefulSet,
    bytes: u64,
) -> impl Iterator<Item = (Ordinal, &'a ObservedPvc)> {
    // A hibernated StatefulSet has no replicas; its recorded size still names the members.
    let recorded = set.recorded_size.unwrap_or(u32::MAX);
    let size = if set.replicas > 0 {
        set.replicas
    } else {
        recorded
    };
    let pvcs = world
        .observed
        .pvcs
        .iter()
        .map(|(ordinal, pvc)| (*ordinal, pvc));
    pvcs.filter(move |(ordinal, pvc)| {
        let is_small = pvc.requested_bytes.is_some_and(|current| current < bytes);
        is_small && !pvc.is_deleting && ordinal.0 < size
    })
}

fn is_rollout_complete(world: &World<'_>, set: &ObservedStatefulSet) -> bool {
    let is_updated = |ordinal: Ordinal| {
        world
            .pod(ordinal)
            .is_some_and(|pod| !pod.is_deleting && pod.revision == set.update_revision)
    };
    set.peer_tls_stage == tls::desired_stage(world)
        && set.is_observed
        && world.ordinals().all(is_updated)
}

/// The current size in bytes while the template cannot change to the desired one; records the refusal.
pub(super) fn hold_storage_size(world: &World<'_>, refusals: &mut Vec<SpecRefusal>) -> Option<u64> {
    let current = world.stateful_set()?.storage_bytes?;
    let requested = world.desired.storage_bytes;
    if current == requested {
        return None;
    }
    if requested < current {
        refusals.push(SpecRefusal::VolumeShrink {
            current_bytes: current,
            requested_bytes: requested,
        });
    } else if let Some(refusal) = &world.observed.expansion_refusal {
        refusals.push(SpecRefusal::VolumeExpansion {
            reason: refusal.clone(),
        });
    }
    Some(current)
}

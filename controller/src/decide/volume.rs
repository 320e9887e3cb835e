//! Larger volumes: the claims are expanded where they are, then the StatefulSet is made again around its pods, because its
//! claim template cannot be changed. Pods, and so members, notice nothing.

use mainstay_crds::etcd::VolumeGrowth;

use super::{SpecRefusal, ReconcileStep, World, tls};
use crate::observe::{Ordinal, ObservedPvc, ObservedStatefulSet};

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let set = world.stateful_set()?;
    let bytes = world.desired.storage_bytes;
    if set.storage_bytes.is_none_or(|have| have >= bytes) {
        return None;
    }
    let expands =
        world.desired.volume_growth == VolumeGrowth::Expand && world.observed.expansion_refusal.is_none();
    if expands {
        let (bound, unbound): (Vec<_>, Vec<_>) =
            undersized_pvcs(world, set, bytes).partition(|(_, claim)| claim.is_bound);
        let ordinals: Vec<Ordinal> = bound.into_iter().map(|(ordinal, _)| ordinal).collect();
        if !ordinals.is_empty() {
            return Some(ReconcileStep::ExpandPvcs { ordinals, bytes });
        }
        if !unbound.is_empty() {
            return None; // there is nothing to expand yet, and their pods are waited for anyway
        }
    }
    if world.observed.expansion_refusal.is_some() && world.desired.volume_growth == VolumeGrowth::Expand {
        return None; // told as a refusal; the template stays as it is
    }
    // The old template is the only note of how far other changes are, so they are finished first.
    is_rollout_complete(world, set).then(|| ReconcileStep::RecreateStatefulSet {
        uid: set.uid.clone(),
    })
}

/// Claims of members that are smaller than wanted. What is left of members that are gone is not looked at.
fn undersized_pvcs<'a>(
    world: &World<'a>,
    set: &ObservedStatefulSet,
    bytes: u64,
) -> impl Iterator<Item = (Ordinal, &'a ObservedPvc)> {
    let noted = set.recorded_size.unwrap_or(u32::MAX);
    let size = if set.replicas > 0 {
        set.replicas
    } else {
        noted
    };
    let claims = world
        .observed
        .pvcs
        .iter()
        .map(|(ordinal, claim)| (*ordinal, claim));
    claims.filter(move |(ordinal, claim)| {
        let is_small = claim.requested_bytes.is_some_and(|have| have < bytes);
        is_small && !claim.is_deleting && ordinal.0 < size
    })
}

fn is_rollout_complete(world: &World<'_>, set: &ObservedStatefulSet) -> bool {
    let is_updated = |ordinal: Ordinal| {
        world
            .pod(ordinal)
            .is_some_and(|pod| !pod.is_deleting && pod.revision == set.update_revision)
    };
    set.peer_tls_stage == tls::desired_stage(world) && set.is_observed && world.ordinals().all(is_updated)
}

/// The size the template keeps while it is not the wanted one, and what is refused.
pub(super) fn hold_storage_size(world: &World<'_>, refusals: &mut Vec<SpecRefusal>) -> Option<u64> {
    let have = world.stateful_set()?.storage_bytes?;
    let want = world.desired.storage_bytes;
    if have == want {
        return None;
    }
    if want < have {
        refusals.push(SpecRefusal::VolumeShrink { current_bytes: have, requested_bytes: want });
    } else if let Some(why) = &world.observed.expansion_refusal {
        refusals.push(SpecRefusal::VolumeExpansion { reason: why.clone() });
    }
    Some(have)
}

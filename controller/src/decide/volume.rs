//! Larger volumes: the claims are expanded where they are, then the StatefulSet is made again around its pods, because its
//! claim template cannot be changed. Pods, and so members, notice nothing.

use mainstay_crds::etcd::VolumeGrowth;

use super::{Refusal, Step, World, tls};
use crate::observe::{Ordinal, SeenClaim, SeenSet};

pub(super) fn consider(world: &World<'_>) -> Option<Step> {
    let set = world.set()?;
    let bytes = world.wanted.storage_bytes;
    if set.storage_bytes.is_none_or(|have| have >= bytes) {
        return None;
    }
    let expands =
        world.wanted.growth == VolumeGrowth::Expand && world.seen.expansion_refused.is_none();
    if expands {
        let (bound, unbound): (Vec<_>, Vec<_>) =
            small(world, set, bytes).partition(|(_, claim)| claim.is_bound);
        let ordinals: Vec<Ordinal> = bound.into_iter().map(|(ordinal, _)| ordinal).collect();
        if !ordinals.is_empty() {
            return Some(Step::ExpandClaims { ordinals, bytes });
        }
        if !unbound.is_empty() {
            return None; // there is nothing to expand yet, and their pods are waited for anyway
        }
    }
    if world.seen.expansion_refused.is_some() && world.wanted.growth == VolumeGrowth::Expand {
        return None; // told as a refusal; the template stays as it is
    }
    // The old template is the only note of how far other changes are, so they are finished first.
    is_at_rest(world, set).then(|| Step::RecreateSet {
        uid: set.uid.clone(),
    })
}

/// Claims of members that are smaller than wanted. What is left of members that are gone is not looked at.
fn small<'a>(
    world: &World<'a>,
    set: &SeenSet,
    bytes: u64,
) -> impl Iterator<Item = (Ordinal, &'a SeenClaim)> {
    let noted = set.noted_size.unwrap_or(u32::MAX);
    let size = if set.replicas > 0 {
        set.replicas
    } else {
        noted
    };
    let claims = world
        .seen
        .claims
        .iter()
        .map(|(ordinal, claim)| (*ordinal, claim));
    claims.filter(move |(ordinal, claim)| {
        let is_small = claim.requested_bytes.is_some_and(|have| have < bytes);
        is_small && !claim.is_deleting && ordinal.0 < size
    })
}

fn is_at_rest(world: &World<'_>, set: &SeenSet) -> bool {
    let is_updated = |ordinal: Ordinal| {
        world
            .pod(ordinal)
            .is_some_and(|pod| !pod.is_deleting && pod.revision == set.update_revision)
    };
    set.peer_stage == tls::goal(world) && set.is_observed && world.ordinals().all(is_updated)
}

/// The size the template keeps while it is not the wanted one, and what is refused.
pub(super) fn hold(world: &World<'_>, refusals: &mut Vec<Refusal>) -> Option<u64> {
    let have = world.set()?.storage_bytes?;
    let want = world.wanted.storage_bytes;
    if have == want {
        return None;
    }
    if want < have {
        refusals.push(Refusal::SmallerVolume { have, want });
    } else if let Some(why) = &world.seen.expansion_refused {
        refusals.push(Refusal::VolumeExpansion { why: why.clone() });
    }
    Some(have)
}

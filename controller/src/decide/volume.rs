//! Larger volumes: the claims are expanded where they are, then the StatefulSet is made again around its pods, because its
//! claim template cannot be changed.

use steward_crds::etcd::VolumeGrowth;

use super::{Refusal, Step, World};
use crate::observe::{Ordinal, SeenClaim};

pub(super) fn consider(world: &World<'_>) -> Option<Step> {
    let set = world.set()?;
    let bytes = world.wanted.storage_bytes;
    if set.storage_bytes.is_none_or(|have| have >= bytes) {
        return None;
    }
    let is_small = |(ordinal, claim): (&Ordinal, &SeenClaim)| {
        let is_small = claim.requested_bytes.is_some_and(|have| have < bytes);
        (is_small && !claim.is_deleting).then_some(*ordinal)
    };
    let expands =
        world.wanted.growth == VolumeGrowth::Expand && world.seen.expansion_refused.is_none();
    let ordinals: Vec<Ordinal> = world.seen.claims.iter().filter_map(is_small).collect();
    if expands && !ordinals.is_empty() {
        return Some(Step::ExpandClaims { ordinals, bytes });
    }
    if world.seen.expansion_refused.is_some() && world.wanted.growth == VolumeGrowth::Expand {
        return None; // told as a refusal; the template stays as it is
    }
    Some(Step::RecreateSet {
        uid: set.uid.clone(),
    })
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

//! The cluster's idea of where a member is found, when its pod already listens elsewhere: after TLS between members was
//! switched, or an address was added. The sidecar of the member usually is faster.

use std::collections::BTreeSet;

use super::{Step, World};
use crate::observe::Ordinal;

pub(super) fn consider(world: &World<'_>) -> Option<Step> {
    let set = world.set()?;
    world.ordinals().find_map(|ordinal| {
        let pod = world.pod(ordinal)?;
        let is_updated = pod.revision.is_some() && pod.revision == set.update_revision;
        if !is_updated || !set.is_observed || !world.is_well(ordinal) || is_right(world, ordinal)? {
            return None;
        }
        let member = world.member(ordinal)?;
        Some(Step::UpdatePeerUrls {
            member: member.id,
            ordinal,
        })
    })
}

/// Whether the cluster looks for a member where its pod listens; `None` when nobody said.
pub(super) fn is_right(world: &World<'_>, ordinal: Ordinal) -> Option<bool> {
    let have: BTreeSet<&str> = world
        .member(ordinal)?
        .peer_urls
        .iter()
        .map(String::as_str)
        .collect();
    let want = world.wanted.peer_urls(ordinal, world.set()?.peer_stage);
    Some(have == want.iter().map(String::as_str).collect())
}

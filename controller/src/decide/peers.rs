//! The cluster's idea of where a member is found, when its pod already listens elsewhere: after TLS between members was
//! switched, or an address was added. The sidecar of the member usually is faster.

use std::collections::BTreeSet;

use super::{ReconcileStep, World};
use crate::observe::Ordinal;

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let set = world.stateful_set()?;
    world.ordinals().find_map(|ordinal| {
        let pod = world.pod(ordinal)?;
        let is_updated = pod.revision.is_some() && pod.revision == set.update_revision;
        if !is_updated || !set.is_observed || !world.is_member_healthy(ordinal) || has_expected_peer_urls(world, ordinal)? {
            return None;
        }
        let member = world.member(ordinal)?;
        Some(ReconcileStep::UpdatePeerUrls {
            member: member.id,
            ordinal,
        })
    })
}

/// Whether the cluster looks for a member where its pod listens; `None` when nobody said.
pub(super) fn has_expected_peer_urls(world: &World<'_>, ordinal: Ordinal) -> Option<bool> {
    let have: BTreeSet<&str> = world
        .member(ordinal)?
        .peer_urls
        .iter()
        .map(String::as_str)
        .collect();
    let want = world.desired.peer_urls(ordinal, world.stateful_set()?.peer_tls_stage);
    Some(have == want.iter().map(String::as_str).collect())
}

//! Updates the peer URLs in the member list when a pod listens on other ones, after peer TLS was switched or an additional URL
//! was added. Usually the sidecar of the member updates them first.

use crate::model::{Ordinal, ReconcileStep, World};
use std::collections::BTreeSet;

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let set = world.stateful_set()?;
    world.ordinals().find_map(|ordinal| {
        let pod = world.pod(ordinal)?;
        // An outdated pod still listens on the old URLs.
        let is_updated = pod.revision.is_some() && pod.revision == set.update_revision;
        if !is_updated
            || !set.is_observed
            || !world.is_member_healthy(ordinal)
            || has_expected_peer_urls(world, ordinal)?
        {
            return None;
        }
        let member = world.member(ordinal)?;
        Some(ReconcileStep::UpdatePeerUrls {
            member: member.id,
            ordinal,
        })
    })
}

/// Whether the member list has the URLs that the pod listens on; `None` when the member is unknown.
pub(super) fn has_expected_peer_urls(world: &World<'_>, ordinal: Ordinal) -> Option<bool> {
    let listed: BTreeSet<&str> = world
        .member(ordinal)?
        .peer_urls
        .iter()
        .map(String::as_str)
        .collect();
    let expected = world
        .desired
        .peer_urls(ordinal, world.stateful_set()?.peer_tls_stage);
    Some(listed == expected.iter().map(String::as_str).collect())
}

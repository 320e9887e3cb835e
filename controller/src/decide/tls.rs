//! Encryption between members, switched on a running cluster: first everybody gets certificates and still listens
//! plain, then everybody listens encrypted; and the same way back. Each stage is rolled out before the next begins, so every
//! member can dial every other at every moment.

use super::World;
use crate::observe::PeerStage;

/// Where the spec wants it in the end.
pub(super) fn goal(world: &World<'_>) -> PeerStage {
    if world.wanted.peers.tls {
        PeerStage::On
    } else {
        PeerStage::Off
    }
}

/// Where the template is now, or goes next.
pub(super) fn stage(world: &World<'_>) -> PeerStage {
    let goal = goal(world);
    let Some(set) = world.set() else {
        return goal;
    };
    let is_alone = set.replicas == 1 && world.voters().count() <= 1;
    if !world.is_formed() || is_alone {
        return goal;
    }
    match (set.peer_stage, goal) {
        (have, want) if have == want => have,
        // Certificates more than before harm nobody.
        (PeerStage::Off, _) => PeerStage::Prepared,
        // From here on members listen elsewhere, and only a cluster that runs can be told where. One that sleeps would
        // wake to members that look for each other where nobody listens.
        (PeerStage::On, _) if world.has_quorum() => PeerStage::Prepared,
        (PeerStage::Prepared, want) if is_rolled_out(world) => want,
        (have, _) => have,
    }
}

/// Whether every pod is what the template says, is well, and is found where it listens.
fn is_rolled_out(world: &World<'_>) -> bool {
    let Some(set) = world
        .set()
        .filter(|set| set.is_observed && set.replicas > 0)
    else {
        return false;
    };
    world.ordinals().all(|ordinal| {
        let revision = world.pod(ordinal).and_then(|pod| pod.revision.as_ref());
        let urls = world.member(ordinal).map(|member| &member.peer_urls);
        revision.is_some()
            && revision == set.update_revision.as_ref()
            && world.is_well(ordinal)
            && urls.is_some_and(|urls| urls.iter().all(|url| url.starts_with("http://")))
    })
}

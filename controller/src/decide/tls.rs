//! Encryption between members, switched on a running cluster: first everybody gets certificates and still listens
//! plain, then everybody listens encrypted; and the same way back. Each stage is rolled out before the next begins, so every
//! member can dial every other at every moment.

use super::{Blocker, Step, World, peers};
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
    let pods = match world.set() {
        Some(set) => set.replicas as usize,
        None => world.seen.pods.len(),
    };
    let is_alone = pods == 1 && world.voters().count() <= 1;
    if !world.is_formed() || is_alone {
        return goal;
    }
    match (present(world), goal) {
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

/// A stage that is not the last one is nothing to rest in.
pub(super) fn consider(world: &World<'_>) -> Option<Step> {
    let set = world.set().filter(|set| set.replicas > 0)?;
    if set.peer_stage == goal(world) {
        return None;
    }
    let on = if stage(world) == set.peer_stage {
        world.first_unwell(None).unwrap_or(Blocker::NoQuorum)
    } else {
        Blocker::SetUnobserved // the template is about to change
    };
    Some(Step::Wait { on })
}

/// Where the members are: by the note on the StatefulSet, or when that was lost by what they say themselves. Those that
/// listen plain may or may not have certificates, so they count as not having them.
fn present(world: &World<'_>) -> PeerStage {
    let says_tls = || {
        let mut leases = world.seen.leases.values();
        leases.any(|lease| lease.peer_tls == Some(true))
    };
    match world.set() {
        Some(set) => set.peer_stage,
        None if says_tls() => PeerStage::On,
        None => PeerStage::Off,
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
        revision.is_some()
            && revision == set.update_revision.as_ref()
            && world.is_well(ordinal)
            && peers::is_right(world, ordinal) == Some(true)
    })
}

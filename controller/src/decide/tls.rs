//! Encryption between members, switched on a running cluster: first everybody gets certificates and still listens
//! plain, then everybody listens encrypted; and the same way back. Each stage is rolled out before the next begins, so every
//! member can dial every other at every moment.

use super::{Blocker, ReconcileStep, World, peers};
use crate::observe::PeerTlsStage;

/// Where the spec wants it in the end.
pub(super) fn desired_stage(world: &World<'_>) -> PeerTlsStage {
    if world.desired.peers.tls {
        PeerTlsStage::On
    } else {
        PeerTlsStage::Off
    }
}

/// Where the template is now, or goes next.
pub(super) fn next_stage(world: &World<'_>) -> PeerTlsStage {
    let goal = desired_stage(world);
    let pods = match world.stateful_set() {
        Some(set) => set.replicas as usize,
        None => world.observed.pods.len(),
    };
    let is_alone = pods == 1 && world.voters().count() <= 1;
    if !world.is_bootstrapped() || is_alone {
        return goal;
    }
    match (current_stage(world), goal) {
        (have, want) if have == want => have,
        // Certificates more than before harm nobody.
        (PeerTlsStage::Off, _) => PeerTlsStage::Prepared,
        // From here on members listen elsewhere, and only a cluster that runs can be told where. One that sleeps would
        // wake to members that look for each other where nobody listens.
        (PeerTlsStage::On, _) if world.has_quorum() => PeerTlsStage::Prepared,
        (PeerTlsStage::Prepared, want) if is_rolled_out(world) => want,
        (have, _) => have,
    }
}

/// A stage that is not the last one is nothing to rest in.
pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let set = world.stateful_set().filter(|set| set.replicas > 0)?;
    if set.peer_tls_stage == desired_stage(world) {
        return None;
    }
    let on = if next_stage(world) == set.peer_tls_stage {
        world.first_unhealthy(None).unwrap_or(Blocker::NoQuorum)
    } else {
        Blocker::StatefulSetUnobserved // the template is about to change
    };
    Some(ReconcileStep::Wait { blocker: on })
}

/// Where the members are: by the note on the StatefulSet, or when that was lost by what they say themselves. Those that
/// listen plain may or may not have certificates, so they count as not having them.
fn current_stage(world: &World<'_>) -> PeerTlsStage {
    let says_tls = || {
        let mut leases = world.observed.leases.values();
        leases.any(|lease| lease.peer_tls == Some(true))
    };
    match world.stateful_set() {
        Some(set) => set.peer_tls_stage,
        None if says_tls() => PeerTlsStage::On,
        None => PeerTlsStage::Off,
    }
}

/// Whether every pod is what the template says, is well, and is found where it listens.
fn is_rolled_out(world: &World<'_>) -> bool {
    let Some(set) = world
        .stateful_set()
        .filter(|set| set.is_observed && set.replicas > 0)
    else {
        return false;
    };
    world.ordinals().all(|ordinal| {
        let revision = world.pod(ordinal).and_then(|pod| pod.revision.as_ref());
        revision.is_some()
            && revision == set.update_revision.as_ref()
            && world.is_member_healthy(ordinal)
            && peers::has_expected_peer_urls(world, ordinal) == Some(true)
    })
}

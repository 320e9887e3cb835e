//! Switches peer TLS on a running cluster in stages: first every member gets certificates and still listens without TLS, then
//! every member listens with TLS. Switching off runs the stages in reverse. Each stage is rolled out before the next one starts,
//! so members can always connect to each other.

use super::peers;
use crate::model::{Blocker, PeerTlsStage, ReconcileStep, World};

/// The final stage for the spec.
pub(super) fn desired_stage(world: &World<'_>) -> PeerTlsStage {
    if world.desired.peers.tls {
        PeerTlsStage::On
    } else {
        PeerTlsStage::Off
    }
}

/// The stage to render into the template: the current one, or the next one when it may start.
pub(super) fn next_stage(world: &World<'_>) -> PeerTlsStage {
    let target = desired_stage(world);
    let pods = match world.stateful_set() {
        Some(set) => set.replicas as usize,
        None => world.observed.pods.len(),
    };
    let is_single = pods == 1 && world.voters().count() <= 1;
    // Without other members there is no connection to break.
    if !world.is_bootstrapped() || is_single {
        return target;
    }
    match (current_stage(world), target) {
        (current, desired) if current == desired => current,
        // Additional certificates are harmless at any time.
        (PeerTlsStage::Off, _) => PeerTlsStage::Prepared,
        // This stage changes peer URLs, which only a cluster with quorum can record. A hibernated cluster would wake up
        // with members that dial URLs on which no member listens.
        (PeerTlsStage::On, _) if world.has_quorum() => PeerTlsStage::Prepared,
        (PeerTlsStage::Prepared, desired) if is_rolled_out(world) => desired,
        (current, _) => current,
    }
}

/// Waits until the final stage is reached; intermediate stages are not a converged state.
pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let set = world.stateful_set().filter(|set| set.replicas > 0)?;
    if set.peer_tls_stage == desired_stage(world) {
        return None;
    }
    let blocker = if next_stage(world) == set.peer_tls_stage {
        world.first_unhealthy(None).unwrap_or(Blocker::NoQuorum)
    } else {
        Blocker::StatefulSetUnobserved // applying the effective spec changes the template
    };
    Some(ReconcileStep::Wait { blocker })
}

/// The current stage: from the annotation of the StatefulSet, or from the member Leases when the StatefulSet is lost. A Lease
/// does not show certificates that are not in use, so members without TLS count as `Off`.
fn current_stage(world: &World<'_>) -> PeerTlsStage {
    let reports_tls = || {
        let mut leases = world.observed.leases.values();
        leases.any(|lease| lease.peer_tls == Some(true))
    };
    match world.stateful_set() {
        Some(set) => set.peer_tls_stage,
        None if reports_tls() => PeerTlsStage::On,
        None => PeerTlsStage::Off,
    }
}

/// Whether every pod is up to date and healthy, and the member list has its peer URLs.
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

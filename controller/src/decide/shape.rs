//! What the objects look like at this moment.

use super::{Holds, Phase, Refusal, Runtime, Shape, Step, World, recovery, tls, upgrade, volume};
use crate::observe::Ordinal;

/// The shape that goes with a step: a resize is done by applying it.
pub(super) fn of(world: &World<'_>, step: Option<&Step>, refusals: &mut Vec<Refusal>) -> Shape {
    let replicas = match (step, world.set()) {
        (
            Some(Step::Resize { to, .. } | Step::Recover(recovery::Recovery::Scale { to, .. })),
            _,
        ) => *to,
        (_, None) if recovery::keeps_down(world) => 0,
        (_, Some(set)) => set.replicas,
        (_, None) => size_to_begin(world),
    };
    let noted = world
        .set()
        .map_or(0, |set| set.noted_size.unwrap_or(set.replicas));
    let etcd_image = upgrade::hold(world, refusals);
    let is_foreign = world.set().is_some_and(|set| !set.is_ours);
    Shape {
        replicas,
        size: if replicas > 0 { replicas } else { noted },
        phase: phase(world),
        peer_stage: tls::stage(world),
        runtime: Runtime::On,
        holds: Holds {
            everything: is_foreign && etcd_image.is_some(),
            etcd_image,
            storage_bytes: volume::hold(world, refusals),
        },
    }
}

/// Configuration and a StatefulSet without pods.
pub(super) fn without_runtime(world: &World<'_>) -> Shape {
    Shape {
        replicas: 0,
        size: world.wanted.replicas,
        phase: phase(world),
        peer_stage: tls::goal(world),
        runtime: Runtime::Off,
        holds: Holds {
            everything: false,
            etcd_image: None,
            storage_bytes: world.set().and_then(|set| set.storage_bytes),
        },
    }
}

fn phase(world: &World<'_>) -> Phase {
    if world.is_formed() || world.wanted.joins_existing {
        Phase::Formed
    } else {
        Phase::Founding
    }
}

/// How many pods a StatefulSet begins with: as many as there are or were, when it was lost around them; as many as there
/// were members; as many as are wanted.
fn size_to_begin(world: &World<'_>) -> u32 {
    let pods = behind(world.seen.pods.keys().last());
    if pods > 0 {
        pods.max(size_held(world))
    } else {
        size_to_wake(world)
    }
}

/// How many members were ever heard of.
pub(super) fn size_held(world: &World<'_>) -> u32 {
    let leases = world.seen.leases.iter();
    let mut held = leases.filter(|(_, lease)| lease.held.is_some());
    behind(held.next_back().map(|(ordinal, _)| ordinal))
}

/// How many members a cluster wakes with: all it had, since fewer may have no quorum.
pub(super) fn size_to_wake(world: &World<'_>) -> u32 {
    let wanted = world.wanted.replicas;
    if wanted == 0 {
        return 0;
    }
    let noted = world
        .set()
        .and_then(|set| set.noted_size)
        .filter(|size| *size > 0);
    let held = Some(size_held(world)).filter(|size| *size > 0);
    let fresh = if world.wanted.joins_existing {
        1
    } else {
        wanted
    };
    noted.or(held).unwrap_or(fresh)
}

/// As many as there are up to the last one.
pub(super) fn behind(last: Option<&Ordinal>) -> u32 {
    last.map_or(0, |ordinal| ordinal.0 + 1)
}

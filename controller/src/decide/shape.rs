//! What the objects look like at this moment.

use super::{HeldFields, BootstrapPhase, SpecRefusal, Runtime, EffectiveSpec, ReconcileStep, World, recovery, tls, upgrade, volume};
use crate::observe::Ordinal;

/// The shape that goes with a step: a resize is done by applying it.
pub(super) fn compute(world: &World<'_>, step: Option<&ReconcileStep>, refusals: &mut Vec<SpecRefusal>) -> EffectiveSpec {
    let replicas = match (step, world.stateful_set()) {
        (
            Some(ReconcileStep::Scale { to, .. } | ReconcileStep::Recover(recovery::RecoveryStep::Scale { to, .. })),
            _,
        ) => *to,
        (_, None) if recovery::should_keep_pods_stopped(world) => 0,
        (_, Some(set)) => set.replicas,
        (_, None) => compute_initial_size(world),
    };
    let noted = world
        .stateful_set()
        .map_or(0, |set| set.recorded_size.unwrap_or(set.replicas));
    let etcd_image = upgrade::hold_image(world, refusals);
    let is_foreign = world.stateful_set().is_some_and(|set| !set.is_ours);
    EffectiveSpec {
        replicas,
        cluster_size: if replicas > 0 { replicas } else { noted },
        phase: bootstrap_phase(world),
        peer_tls_stage: tls::next_stage(world),
        runtime: Runtime::On,
        held_fields: HeldFields {
            all_objects: is_foreign && etcd_image.is_some(),
            etcd_image,
            storage_bytes: volume::hold_storage_size(world, refusals),
        },
    }
}

/// Configuration and a StatefulSet without pods.
pub(super) fn compute_without_runtime(world: &World<'_>) -> EffectiveSpec {
    EffectiveSpec {
        replicas: 0,
        cluster_size: world.desired.replicas,
        phase: bootstrap_phase(world),
        peer_tls_stage: tls::desired_stage(world),
        runtime: Runtime::Off,
        held_fields: HeldFields {
            all_objects: false,
            etcd_image: None,
            storage_bytes: world.stateful_set().and_then(|set| set.storage_bytes),
        },
    }
}

fn bootstrap_phase(world: &World<'_>) -> BootstrapPhase {
    if world.is_bootstrapped() || world.desired.joins_existing_cluster {
        BootstrapPhase::Bootstrapped
    } else {
        BootstrapPhase::Bootstrapping
    }
}

/// How many pods a StatefulSet begins with: as many as there are or were, when it was lost around them; as many as there
/// were members; as many as are wanted.
fn compute_initial_size(world: &World<'_>) -> u32 {
    let pods = count_up_to(world.observed.pods.keys().last());
    if pods > 0 {
        pods.max(count_registered_members(world))
    } else {
        compute_wakeup_size(world)
    }
}

/// How many members were ever heard of.
pub(super) fn count_registered_members(world: &World<'_>) -> u32 {
    let leases = world.observed.leases.iter();
    let mut held = leases.filter(|(_, lease)| lease.holder.is_some());
    count_up_to(held.next_back().map(|(ordinal, _)| ordinal))
}

/// How many members a cluster wakes with: all it had, since fewer may have no quorum.
pub(super) fn compute_wakeup_size(world: &World<'_>) -> u32 {
    let wanted = world.desired.replicas;
    if wanted == 0 {
        return 0;
    }
    let noted = world
        .stateful_set()
        .and_then(|set| set.recorded_size)
        .filter(|size| *size > 0);
    let held = Some(count_registered_members(world)).filter(|size| *size > 0);
    let fresh = if world.desired.joins_existing_cluster {
        1
    } else {
        wanted
    };
    noted.or(held).unwrap_or(fresh)
}

/// As many as there are up to the last one.
pub(super) fn count_up_to(last: Option<&Ordinal>) -> u32 {
    last.map_or(0, |ordinal| ordinal.0 + 1)
}

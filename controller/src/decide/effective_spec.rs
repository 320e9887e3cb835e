//! Computes the state of the managed objects to apply in this reconcile.

use super::{recovery, tls, upgrade, volume};
use crate::model::{
    BootstrapPhase, EffectiveSpec, HeldFields, Ordinal, ReconcileStep, RecoveryStep, Runtime,
    SpecRefusal, World,
};

/// The effective spec for a step. Scaling happens by applying it.
pub(super) fn compute(
    world: &World<'_>,
    step: Option<&ReconcileStep>,
    refusals: &mut Vec<SpecRefusal>,
) -> EffectiveSpec {
    let replicas = match (step, world.stateful_set()) {
        (
            Some(
                ReconcileStep::Scale { to, .. }
                | ReconcileStep::Recover(RecoveryStep::Scale { to, .. }),
            ),
            _,
        ) => *to,
        // A recreated StatefulSet must not start pods beside a restore Job.
        (_, None) if recovery::should_keep_pods_stopped(world) => 0,
        (_, Some(set)) => set.replicas,
        (_, None) => compute_initial_size(world),
    };
    // A hibernated StatefulSet keeps the size to wake up with.
    let recorded = world
        .stateful_set()
        .map_or(0, |set| set.recorded_size.unwrap_or(set.replicas));
    let etcd_image = upgrade::hold_image(world, refusals);
    let is_made_by_druid = world.stateful_set().is_some_and(|set| !set.is_ours);
    EffectiveSpec {
        replicas,
        cluster_size: if replicas > 0 { replicas } else { recorded },
        phase: bootstrap_phase(world),
        peer_tls_stage: tls::next_stage(world),
        runtime: Runtime::On,
        held_fields: HeldFields {
            all_objects: is_made_by_druid && etcd_image.is_some(),
            etcd_image,
            storage_bytes: volume::hold_storage_size(world, refusals),
        },
    }
}

/// The effective spec when another system runs etcd: configuration and a StatefulSet without pods.
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

/// Replicas of a new StatefulSet: enough to cover existing pods and registered members when the old one was lost, else the
/// wake-up size.
fn compute_initial_size(world: &World<'_>) -> u32 {
    let pods = count_up_to(world.observed.pods.keys().last());
    if pods > 0 {
        pods.max(count_registered_members(world))
    } else {
        compute_wakeup_size(world)
    }
}

/// The number of ordinals up to the last member that ever held its Lease.
pub(super) fn count_registered_members(world: &World<'_>) -> u32 {
    let leases = world.observed.leases.iter();
    let mut registered = leases.filter(|(_, lease)| lease.holder.is_some());
    count_up_to(registered.next_back().map(|(ordinal, _)| ordinal))
}

/// Replicas after hibernation: all members the cluster had, since fewer may lack quorum.
pub(super) fn compute_wakeup_size(world: &World<'_>) -> u32 {
    let desired = world.desired.replicas;
    if desired == 0 {
        return 0;
    }
    let recorded = world
        .stateful_set()
        .and_then(|set| set.recorded_size)
        .filter(|size| *size > 0);
    // etcd-druid records no size, but its Leases name the members.
    let registered = Some(count_registered_members(world)).filter(|size| *size > 0);
    // A cluster that joins another one adds its members one at a time.
    let fresh = if world.desired.joins_existing_cluster {
        1
    } else {
        desired
    };
    recorded.or(registered).unwrap_or(fresh)
}

/// The number of ordinals from 0 to `last`.
pub(super) fn count_up_to(last: Option<&Ordinal>) -> u32 {
    last.map_or(0, |ordinal| ordinal.0 + 1)
}

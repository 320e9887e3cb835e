//! Decides the next step: a pure function of desired state, observed state and time.
//!
//! ```text
//! crash ─► stranded ─► pod restoration ─► recovery ─► adopt ─► hibernate ─► replace ─► join ─► scale in ─► volume
//!   ─► upgrade ─► peer URLs ─► rollout ─► scale out ─► bootstrap ─► peer TLS ─► all pods ready?
//!              the first planner with a result wins: one step, or what blocks it
//! ```
//!
//! The result is a plan: objects that are always safe to apply, and at most one step.
//!
//! Invariants: no step breaks an existing quorum. A planner returns a step only when earlier steps are finished, because it
//! first requires the members it depends on to be healthy. When the cluster has converged, the plan has no step. Deciding does
//! no I/O, cannot fail and keeps no state, so after a crash the same observation gives the same plan.

mod adopt;
mod crash;
mod effective_spec;
mod hibernate;
mod join;
mod peers;
pub(crate) mod recovery;
mod replace;
mod rollout;
mod scale;
mod snapshot;
mod stranded_pods;
mod tls;
pub(crate) mod upgrade;
pub(crate) mod upkeep;
mod volume;

#[cfg(test)]
pub(crate) mod tests;

use std::time::Duration;

use crate::intervals;
use crate::model::{
    Blocker, DriftPolicy, Ordinal, ReconcilePlan, ReconcileStep, SpecRefusal, World,
};

/// Plans one concern: its step, or what blocks it; `None` when there is nothing to do.
type PlanStepFn = fn(&World<'_>) -> Option<ReconcileStep>;

/// Planners in order of priority.
///
/// 1. Steps that reveal the state of data and disrupt no serving member.
/// 2. Recovery of lost data.
/// 3. Repair before change: disrupting a member could remove the one that others need to rejoin.
/// 4. Changes, on the smallest cluster: scale in before the rollout, so that leaving members are not rolled; scale out after
///    it, so that new members start from the final template.
const STEP_PLANNERS: [(PlanStepFn, RunCondition); 17] = [
    (crash::plan_step, RunCondition::Always),
    (stranded_pods::plan_step, RunCondition::Always),
    (scale::plan_pod_restoration, RunCondition::Always),
    (recovery::plan_step, RunCondition::Always),
    (adopt::plan_step, RunCondition::SpecAccepted),
    (hibernate::plan_step, RunCondition::SpecAccepted),
    (replace::plan_step, RunCondition::Always),
    (join::plan_step, RunCondition::Always),
    (scale::plan_scale_in, RunCondition::SpecAccepted),
    (volume::plan_step, RunCondition::SpecAccepted),
    (upgrade::plan_step, RunCondition::SpecAccepted),
    (peers::plan_step, RunCondition::SpecAccepted),
    (rollout::plan_step, RunCondition::Always),
    (scale::plan_scale_out, RunCondition::SpecAccepted),
    (wait_for_bootstrap, RunCondition::Always),
    (tls::plan_step, RunCondition::SpecAccepted),
    (wait_for_ready_pods, RunCondition::Always),
];

/// Whether a planner runs while a spec change is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunCondition {
    /// The planner depends on the observed state only.
    Always,
    /// The planner applies the spec.
    SpecAccepted,
}

/// Returns the plan for the observed state.
pub(crate) fn decide(world: &World<'_>) -> ReconcilePlan {
    let mut refusals = Vec::new();
    if world.desired.has_external_members {
        return idle_plan(vec![SpecRefusal::ExternalMembers]);
    }
    if world.desired.requests.suspend {
        return idle_plan(vec![SpecRefusal::Suspended]);
    }
    if let Some(replicas) = world.desired.invalid_replicas {
        return idle_plan(vec![SpecRefusal::InvalidReplicas { replicas }]);
    }
    if world
        .observed
        .stateful_set
        .as_ref()
        .is_some_and(|set| set.is_deleting)
    {
        // Objects applied now would be lost with the old StatefulSet; a new one can be created only after it.
        return waiting_plan(Blocker::StatefulSetTerminating);
    }
    if is_manually_stopped(world) {
        return idle_plan(vec![SpecRefusal::ManuallyStopped]);
    }
    let is_accepted = world.is_spec_accepted();
    // etcd-druid's contract: a changed spec takes effect only on request, unless automatic reconcile is on.
    if !is_accepted {
        let generation = world.desired.generation;
        refusals.push(SpecRefusal::ReconcileNotRequested { generation });
    }
    if is_accepted && world.desired.requests.is_runtime_disabled {
        return ReconcilePlan {
            effective_spec: Some(effective_spec::compute_without_runtime(world)),
            step: None,
            refusals,
            requeue_after: intervals::RESYNC,
        };
    }
    let step = find_first_step(world, is_accepted);
    // A pending spec changes no object, but repairs still run.
    let shape = is_accepted.then(|| effective_spec::compute(world, step.as_ref(), &mut refusals));
    let next_reconcile = requeue_after(step.as_ref());
    ReconcilePlan {
        effective_spec: shape,
        step,
        refusals,
        requeue_after: next_reconcile,
    }
}

/// Whether a user scaled the StatefulSet to zero. A recovery does so as well, so an open incident excludes it.
fn is_manually_stopped(world: &World<'_>) -> bool {
    let observed = world.last_known.observed_generation;
    world.desired.drift_policy(observed) == DriftPolicy::Keep
        && world.desired.replicas > 0
        && world.stateful_set().is_some_and(|set| set.replicas == 0)
        && world.observed.recovery.open_incident().is_none()
}

fn find_first_step(world: &World<'_>, is_accepted: bool) -> Option<ReconcileStep> {
    if world.stateful_set().is_none() {
        // The other planners change existing objects; applying the effective spec creates the StatefulSet.
        return recovery::plan_step(world);
    }
    let may = |needs: RunCondition| is_accepted || needs == RunCondition::Always;
    STEP_PLANNERS
        .iter()
        .filter(|(_, needs)| may(*needs))
        .find_map(|(planner, _)| planner(world))
}

/// Waits until the first member registers.
fn wait_for_bootstrap(world: &World<'_>) -> Option<ReconcileStep> {
    let blocker = Blocker::Bootstrapping;
    (world.size() > 0 && !world.is_bootstrapped()).then_some(ReconcileStep::Wait { blocker })
}

/// The last check: the cluster has converged only when every pod is ready and none is terminating.
fn wait_for_ready_pods(world: &World<'_>) -> Option<ReconcileStep> {
    let is_stable = |ordinal: &Ordinal| {
        let pod = world.pod(*ordinal);
        pod.is_some_and(|pod| pod.is_ready && !pod.is_deleting)
    };
    let ordinal = world.ordinals().find(|ordinal| !is_stable(ordinal))?;
    let blocker = Blocker::MemberUnhealthy { ordinal };
    Some(ReconcileStep::Wait { blocker })
}

fn idle_plan(refusals: Vec<SpecRefusal>) -> ReconcilePlan {
    ReconcilePlan {
        effective_spec: None,
        step: None,
        refusals,
        requeue_after: intervals::RESYNC,
    }
}

fn waiting_plan(blocker: Blocker) -> ReconcilePlan {
    ReconcilePlan {
        effective_spec: None,
        step: Some(ReconcileStep::Wait { blocker }),
        refusals: Vec::new(),
        requeue_after: intervals::WAIT_POLL,
    }
}

fn requeue_after(step: Option<&ReconcileStep>) -> Duration {
    match step {
        None => intervals::RESYNC,
        Some(ReconcileStep::Wait { .. }) => intervals::WAIT_POLL,
        Some(_) => intervals::AFTER_STEP,
    }
}

/// Whether the decision needs the member list from etcd. A converged cluster is recognised from Kubernetes objects alone, so
/// that a thousand idle clusters open no connection.
pub(crate) fn should_query_members(world: &World<'_>) -> bool {
    let Some(set) = world.stateful_set() else {
        return world.observed.pods.values().any(|pod| pod.is_ready);
    };
    let is_out_of_step = |ordinal: Ordinal| {
        world.pod(ordinal).is_none_or(|pod| {
            !pod.is_ready || pod.is_deleting || pod.revision != set.update_revision
        })
    };
    let size_differs = set.replicas != world.desired.replicas;
    let image_differs = set.etcd_image.as_ref() != Some(&world.desired.etcd_image);
    let is_size_unrecorded = set.replicas > 0 && set.recorded_size.is_none();
    // Additional peer URLs of members are visible in etcd's member list only.
    let is_new = world.last_known.observed_generation != Some(world.desired.generation);
    let has_addresses = !world.desired.peers.additional_urls.is_empty();
    let tls_differs = set.peer_tls_stage != tls::desired_stage(world)
        || world.observed.leases.iter().any(|(ordinal, lease)| {
            ordinal.0 < set.replicas
                && lease
                    .peer_tls
                    .is_some_and(|tls| tls != world.desired.peers.tls)
        });
    set.replicas > 0
        && (size_differs
            || recovery::is_confirmation_pending(world)
            || image_differs
            || is_size_unrecorded
            || (is_new && has_addresses && world.is_spec_accepted())
            || tls_differs
            || !set.is_observed
            // Members of the joined cluster have no pods here, so only etcd shows them.
            || world.desired.joins_existing_cluster
            || world.ordinals().any(is_out_of_step))
}

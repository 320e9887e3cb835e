//! What to do next: a pure function of what is wanted, what is seen, and the time.
//!
//! ```text
//! World ─► crash ─► stranded ─► shrunk ─► recovery ─► adopt ─► hibernate ─► replace ─► join ─► scale in ─► volume ─► upgrade ─► peers ─► roll ─► scale out ─► founding ─► whole?
//!              first answer wins: one step, or what is waited for
//! ```
//!
//! **Comes in**: a [`World`]. **Goes out**: a [`Plan`]: objects that are always safe to apply, and at most one [`Step`].
//!
//! **Holds**: no step costs a quorum that was there. A step is chosen only when nothing that an earlier one began is
//! unfinished, because each concern begins by asking for a whole cluster. At rest the plan is empty. **Does not do**: fail,
//! wait, remember. After a crash the same world gives the same plan.

mod adopt;
mod crash;
mod hibernate;
mod join;
mod peers;
mod plan;
pub mod recovery;
mod replace;
mod rollout;
mod scale;
mod shape;
mod snapshot;
mod stranded;
mod tls;
pub mod upgrade;
pub mod upkeep;
mod volume;
mod world;

#[cfg(test)]
pub(crate) mod tests;

use std::time::Duration;

use crate::cadence;
use crate::observe::Ordinal;
use crate::validate::DriftPolicy;

pub use plan::{
    Blocker, DisruptiveChange, HeldFields, BootstrapPhase, ReconcilePlan, SpecRefusal, MemberRemovalReason, PodDeletionReason, Runtime, EffectiveSpec, ReconcileStep,
    UpgradeRule, PvcDeletionReason,
};
pub use world::{LastKnown, World, quorum};

/// The operator's numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct ReconcilePolicy {
    /// Whether a changed spec is acted on without being asked to.
    pub auto_reconcile: bool,
    /// How old a full snapshot may be that is taken before a change.
    pub max_snapshot_age: Duration,
    /// How long a pod may look for its volume before that counts as gone.
    pub volume_timeout: Duration,
    /// How long a quorum has to be lost before that counts as for good.
    pub quorum_loss_timeout: Duration,
    /// How backups are looked after.
    pub upkeep: upkeep::UpkeepPolicy,
}

impl Default for ReconcilePolicy {
    fn default() -> Self {
        Self {
            auto_reconcile: false,
            max_snapshot_age: Duration::from_mins(10),
            volume_timeout: Duration::from_mins(1),
            quorum_loss_timeout: Duration::from_secs(30),
            upkeep: upkeep::UpkeepPolicy::default(),
        }
    }
}

/// One concern: its step, or what it waits for; `None` when it has nothing to say.
type PlanStepFn = fn(&World<'_>) -> Option<ReconcileStep>;

/// In the order in which they are asked. What makes data known and costs nobody anything; data before everything else; then what heals, since a member that goes may be the
/// one the others need to come back; then what changes, from the smallest cluster that does it: members that go are not
/// rolled first, members that come start as they will stay.
const STEP_PLANNERS: [(PlanStepFn, RunCondition); 17] = [
    (crash::plan_step, RunCondition::Always),
    (stranded::plan_step, RunCondition::Always),
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

/// Whether a concern may act on a spec nobody asked to reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunCondition {
    /// It goes by what is there.
    Always,
    /// It goes by the spec.
    SpecAccepted,
}

/// What to do next.
pub fn decide(world: &World<'_>) -> ReconcilePlan {
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
    if world.observed.stateful_set.as_ref().is_some_and(|set| set.is_deleting) {
        return waiting_plan(Blocker::StatefulSetTerminating);
    }
    if is_manually_stopped(world) {
        return idle_plan(vec![SpecRefusal::ManuallyStopped]);
    }
    let is_accepted = is_spec_accepted(world);
    if !is_accepted {
        let generation = world.desired.generation;
        refusals.push(SpecRefusal::ReconcileNotRequested { generation });
    }
    if is_accepted && world.desired.requests.is_runtime_disabled {
        return ReconcilePlan {
            effective_spec: Some(shape::compute_without_runtime(world)),
            step: None,
            refusals,
            requeue_after: cadence::RESYNC,
        };
    }
    let step = find_first_step(world, is_accepted);
    let shape = is_accepted.then(|| shape::compute(world, step.as_ref(), &mut refusals));
    let wake_after = requeue_after(step.as_ref());
    ReconcilePlan {
        effective_spec: shape,
        step,
        refusals,
        requeue_after: wake_after,
    }
}

/// A recovery stops pods too; that is no change by hand.
fn is_manually_stopped(world: &World<'_>) -> bool {
    let observed = world.last_known.observed_generation;
    world.desired.drift_policy(observed) == DriftPolicy::Keep
        && world.desired.replicas > 0
        && world.stateful_set().is_some_and(|set| set.replicas == 0)
        && world.observed.recovery.open_incident().is_none()
}

fn find_first_step(world: &World<'_>, is_accepted: bool) -> Option<ReconcileStep> {
    if world.stateful_set().is_none() {
        // Nothing is there to be changed; applying the shape makes it.
        return recovery::plan_step(world);
    }
    let may = |needs: RunCondition| is_accepted || needs == RunCondition::Always;
    STEP_PLANNERS
        .iter()
        .filter(|(_, needs)| may(*needs))
        .find_map(|(planner, _)| planner(world))
}

/// Nobody has heard of a member yet.
fn wait_for_bootstrap(world: &World<'_>) -> Option<ReconcileStep> {
    let on = Blocker::Bootstrapping;
    (world.size() > 0 && !world.is_bootstrapped()).then_some(ReconcileStep::Wait { blocker: on })
}

/// Everything was done; it is over when every pod is there, ready, and stays.
fn wait_for_ready_pods(world: &World<'_>) -> Option<ReconcileStep> {
    let stays = |ordinal: &Ordinal| {
        let pod = world.pod(*ordinal);
        pod.is_some_and(|pod| pod.is_ready && !pod.is_deleting)
    };
    let ordinal = world.ordinals().find(|ordinal| !stays(ordinal))?;
    let on = Blocker::MemberUnhealthy { ordinal };
    Some(ReconcileStep::Wait { blocker: on })
}

/// A spec is acted on when that is the rule, when it was asked for, when it is new, and when it was acted on before.
pub fn is_spec_accepted(world: &World<'_>) -> bool {
    let observed = world.last_known.observed_generation;
    world.policy.auto_reconcile
        || world.desired.requests.reconcile
        || observed.is_none_or(|generation| generation == world.desired.generation)
}

fn idle_plan(refusals: Vec<SpecRefusal>) -> ReconcilePlan {
    ReconcilePlan {
        effective_spec: None,
        step: None,
        refusals,
        requeue_after: cadence::RESYNC,
    }
}

fn waiting_plan(on: Blocker) -> ReconcilePlan {
    ReconcilePlan {
        effective_spec: None,
        step: Some(ReconcileStep::Wait { blocker: on }),
        refusals: Vec::new(),
        requeue_after: cadence::WAIT_POLL,
    }
}

fn requeue_after(step: Option<&ReconcileStep>) -> Duration {
    match step {
        None => cadence::RESYNC,
        Some(ReconcileStep::Wait { .. }) => cadence::WAIT_POLL,
        Some(_) => cadence::AFTER_STEP,
    }
}

/// Whether etcd itself has to be asked before deciding: when anything is not at rest. Cheap things are looked at first,
/// so that a thousand quiet clusters cost no connection.
pub fn should_query_members(world: &World<'_>) -> bool {
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
    let is_unspoken = set.replicas > 0 && set.recorded_size.is_none();
    // What addresses members have besides their own is known to etcd alone.
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
            || is_unspoken
            || (is_new && has_addresses && is_spec_accepted(world))
            || tls_differs
            || !set.is_observed
            || world.desired.joins_existing_cluster
            || world.ordinals().any(is_out_of_step))
}

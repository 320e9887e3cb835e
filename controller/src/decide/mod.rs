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
use crate::validate::Drift;

pub use plan::{
    Blocker, Change, Holds, Phase, Plan, Refusal, Removal, Restart, Runtime, Shape, Step,
    UpgradeRule, Useless,
};
pub use world::{Known, World, quorum};

/// The operator's numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Whether a changed spec is acted on without being asked to.
    pub auto_reconcile: bool,
    /// How old a full snapshot may be that is taken before a change.
    pub fresh_snapshot: Duration,
    /// How long a pod may look for its volume before that counts as gone.
    pub volume_patience: Duration,
    /// How long a quorum has to be lost before that counts as for good.
    pub loss_patience: Duration,
    /// How backups are looked after.
    pub upkeep: upkeep::UpkeepPolicy,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            auto_reconcile: false,
            fresh_snapshot: Duration::from_mins(10),
            volume_patience: Duration::from_mins(1),
            loss_patience: Duration::from_secs(30),
            upkeep: upkeep::UpkeepPolicy::default(),
        }
    }
}

/// One concern: its step, or what it waits for; `None` when it has nothing to say.
type Consider = fn(&World<'_>) -> Option<Step>;

/// In the order in which they are asked. What makes data known and costs nobody anything; data before everything else; then what heals, since a member that goes may be the
/// one the others need to come back; then what changes, from the smallest cluster that does it: members that go are not
/// rolled first, members that come start as they will stay.
const CONCERNS: [(Consider, Needs); 17] = [
    (crash::consider, Needs::Nothing),
    (stranded::consider, Needs::Nothing),
    (scale::shrunk, Needs::Nothing),
    (recovery::consider, Needs::Nothing),
    (adopt::consider, Needs::Acceptance),
    (hibernate::consider, Needs::Acceptance),
    (replace::consider, Needs::Nothing),
    (join::consider, Needs::Nothing),
    (scale::inward, Needs::Acceptance),
    (volume::consider, Needs::Acceptance),
    (upgrade::consider, Needs::Acceptance),
    (peers::consider, Needs::Acceptance),
    (rollout::consider, Needs::Nothing),
    (scale::outward, Needs::Acceptance),
    (founding, Needs::Nothing),
    (tls::consider, Needs::Acceptance),
    (wholeness, Needs::Nothing),
];

/// Whether a concern may act on a spec nobody asked to reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// It goes by what is there.
    Nothing,
    /// It goes by the spec.
    Acceptance,
}

/// What to do next.
pub fn decide(world: &World<'_>) -> Plan {
    let mut refusals = Vec::new();
    if world.wanted.is_external {
        return idle(vec![Refusal::ExternalMembers]);
    }
    if world.wanted.requests.suspend {
        return idle(vec![Refusal::Suspended]);
    }
    if let Some(replicas) = world.wanted.impossible_replicas {
        return idle(vec![Refusal::ImpossibleReplicas { replicas }]);
    }
    if world.seen.set.as_ref().is_some_and(|set| set.is_deleting) {
        return waiting(Blocker::SetGoes);
    }
    if is_stopped_by_hand(world) {
        return idle(vec![Refusal::StoppedByHand]);
    }
    let is_accepted = is_accepted(world);
    if !is_accepted {
        let generation = world.wanted.generation;
        refusals.push(Refusal::NotRequested { generation });
    }
    if is_accepted && world.wanted.requests.no_runtime {
        return Plan {
            shape: Some(shape::without_runtime(world)),
            step: None,
            refusals,
            wake_after: cadence::AT_REST,
        };
    }
    let step = first_step(world, is_accepted);
    let shape = is_accepted.then(|| shape::of(world, step.as_ref(), &mut refusals));
    let wake_after = wake_after(step.as_ref());
    Plan {
        shape,
        step,
        refusals,
        wake_after,
    }
}

/// A recovery stops pods too; that is no change by hand.
fn is_stopped_by_hand(world: &World<'_>) -> bool {
    let observed = world.known.observed_generation;
    world.wanted.drift(observed) == Drift::Left
        && world.wanted.replicas > 0
        && world.set().is_some_and(|set| set.replicas == 0)
        && world.seen.recovery.open().is_none()
}

fn first_step(world: &World<'_>, is_accepted: bool) -> Option<Step> {
    if world.set().is_none() {
        // Nothing is there to be changed; applying the shape makes it.
        return recovery::consider(world);
    }
    let may = |needs: Needs| is_accepted || needs == Needs::Nothing;
    CONCERNS
        .iter()
        .filter(|(_, needs)| may(*needs))
        .find_map(|(consider, _)| consider(world))
}

/// Nobody has heard of a member yet.
fn founding(world: &World<'_>) -> Option<Step> {
    let on = Blocker::Founding;
    (world.size() > 0 && !world.is_formed()).then_some(Step::Wait { on })
}

/// Everything was done; it is over when every pod is there, ready, and stays.
fn wholeness(world: &World<'_>) -> Option<Step> {
    let stays = |ordinal: &Ordinal| {
        let pod = world.pod(*ordinal);
        pod.is_some_and(|pod| pod.is_ready && !pod.is_deleting)
    };
    let ordinal = world.ordinals().find(|ordinal| !stays(ordinal))?;
    let on = Blocker::MemberUnwell { ordinal };
    Some(Step::Wait { on })
}

/// A spec is acted on when that is the rule, when it was asked for, when it is new, and when it was acted on before.
pub fn is_accepted(world: &World<'_>) -> bool {
    let observed = world.known.observed_generation;
    world.policy.auto_reconcile
        || world.wanted.requests.reconcile
        || observed.is_none_or(|generation| generation == world.wanted.generation)
}

fn idle(refusals: Vec<Refusal>) -> Plan {
    Plan {
        shape: None,
        step: None,
        refusals,
        wake_after: cadence::AT_REST,
    }
}

fn waiting(on: Blocker) -> Plan {
    Plan {
        shape: None,
        step: Some(Step::Wait { on }),
        refusals: Vec::new(),
        wake_after: cadence::WAITING,
    }
}

fn wake_after(step: Option<&Step>) -> Duration {
    match step {
        None => cadence::AT_REST,
        Some(Step::Wait { .. }) => cadence::WAITING,
        Some(_) => cadence::AFTER_A_STEP,
    }
}

/// Whether etcd itself has to be asked before deciding: when anything is not at rest. Cheap things are looked at first,
/// so that a thousand quiet clusters cost no connection.
pub fn is_moving(world: &World<'_>) -> bool {
    let Some(set) = world.set() else {
        return world.seen.pods.values().any(|pod| pod.is_ready);
    };
    let is_out_of_step = |ordinal: Ordinal| {
        world.pod(ordinal).is_none_or(|pod| {
            !pod.is_ready || pod.is_deleting || pod.revision != set.update_revision
        })
    };
    let size_differs = set.replicas != world.wanted.replicas;
    let image_differs = set.etcd_image.as_ref() != Some(&world.wanted.etcd_image);
    let is_unspoken = set.replicas > 0 && set.noted_size.is_none();
    // What addresses members have besides their own is known to etcd alone.
    let is_new = world.known.observed_generation != Some(world.wanted.generation);
    let has_addresses = !world.wanted.peers.additional.is_empty();
    let tls_differs = set.peer_stage != tls::goal(world)
        || world.seen.leases.iter().any(|(ordinal, lease)| {
            ordinal.0 < set.replicas
                && lease
                    .peer_tls
                    .is_some_and(|tls| tls != world.wanted.peers.tls)
        });
    set.replicas > 0
        && (size_differs
            || recovery::wants_an_answer(world)
            || image_differs
            || is_unspoken
            || (is_new && has_addresses && is_accepted(world))
            || tls_differs
            || !set.is_observed
            || world.wanted.joins_existing
            || world.ordinals().any(is_out_of_step))
}

//! What is told about a cluster: conditions, members, the operation that goes on. Pure.
//!
//! ```text
//! seen + planned + what failed + what was told before ─► EtcdStatus ─┬─ differs? ─► one write
//!                                                                     └─ transitions ─► Events
//! ```
//!
//! **Holds**: the same world gives the same status, byte for byte, however often it is asked: times move only when what
//! they are about does. What other parts report is kept. **Does not do**: write.

mod backup;
mod clock;
mod conditions;
mod events;
mod members;
mod operation;
mod recovery;
mod upkeep;
mod words;

#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use mainstay_crds::etcd::{BootstrapStatus, JoinedMember, ObjectReference};
use mainstay_crds::{Condition, ConditionStatus, ConditionType, Etcd, EtcdStatus};
use mainstay_manifests::Names;
use mainstay_manifests::labels::member_selector_text;

use crate::decide::{Known, Plan, Policy, World, is_accepted};
use crate::observe::{Observation, PeerStage};
use crate::validate::Wanted;

pub(crate) use conditions::NOT_CHECKED;
pub use events::{Notice, NoticeKind, notices};
pub use recovery::{describe_hold, loss_since, plan as plan_of};
pub use upkeep::told as told_upkeep;
pub use words::{describe_blocker, describe_refusal, describe_step};

/// When silence of a member means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// After this long without a sign of life nobody knows how it is.
    pub unknown: Duration,
    /// After this long beyond that, it is not ready.
    pub not_ready: Duration,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            unknown: Duration::from_mins(1),
            not_ready: Duration::from_mins(5),
        }
    }
}

/// What stopped a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The step, as `ERR_SYNC_STATEFULSET`.
    pub code: String,
    /// What went wrong.
    pub description: String,
}

/// Everything a status is made from.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The resource, with what was told before.
    pub etcd: &'a Etcd,
    /// What it asks for.
    pub wanted: &'a Wanted,
    /// What there is.
    pub seen: &'a Observation,
    /// What is done.
    pub plan: &'a Plan,
    /// The operator's numbers.
    pub policy: &'a Policy,
    /// What was known before.
    pub known: &'a Known,
    /// What stopped the pass, if anything did.
    pub failure: Option<&'a Failure>,
    /// When silence means something.
    pub thresholds: Thresholds,
    /// Identifies this pass in the log.
    pub run_id: &'a str,
    /// Now.
    pub now: Timestamp,
}

impl<'a> Facts<'a> {
    /// The situation as decisions see it.
    pub fn world(&self) -> World<'a> {
        World {
            wanted: self.wanted,
            seen: self.seen,
            policy: self.policy,
            known: self.known,
            now: self.now,
        }
    }

    /// What was told before.
    pub fn before(&self) -> Option<&'a EtcdStatus> {
        self.etcd.status.as_ref()
    }

    /// What was told before of one condition.
    pub fn condition(&self, type_: &ConditionType) -> Option<&'a Condition> {
        let conditions = self.before()?.conditions.as_ref()?;
        conditions
            .iter()
            .find(|condition| condition.type_ == *type_)
    }
}

/// What is to be told.
pub fn compute(facts: &Facts<'_>) -> EtcdStatus {
    let before = facts.before().cloned().unwrap_or_default();
    if facts.wanted.requests.no_runtime {
        return frozen(facts, before);
    }
    let members = members::members(facts);
    let conditions = conditions::all(facts, &members);
    let set = facts.seen.set.as_ref();
    let is_done = facts.failure.is_none() && is_accepted(&facts.world());
    let (last_operation, last_errors) = operation::of(facts);
    EtcdStatus {
        observed_generation: if is_done && facts.plan.shape.is_some() {
            Some(facts.wanted.generation)
        } else {
            before.observed_generation
        },
        etcd: set.map(|_| ObjectReference {
            kind: "StatefulSet".to_owned(),
            name: facts.wanted.name.clone(),
            api_version: Some("apps/v1".to_owned()),
        }),
        last_errors,
        last_operation,
        current_replicas: set.map(|set| set.counts.current),
        replicas: set.map(|set| set.counts.current),
        ready_replicas: set.map(|set| set.counts.ready),
        ready: Some(is_ready(facts, &conditions)),
        members: Some(members),
        peer_url_tls_enabled: set.map(|set| set.peer_stage == PeerStage::On),
        selector: Some(member_selector_text(&Names::of(facts.etcd))),
        bootstrap_with_existing_cluster: joined(facts, &conditions)
            .or(before.bootstrap_with_existing_cluster),
        conditions: Some(conditions),
        label_selector: before.label_selector,
        mainstay: upkeep::mainstay(facts, recovery::mainstay(facts, before.mainstay)),
    }
}

/// Without pods there is nothing to tell but that the configuration is there.
fn frozen(facts: &Facts<'_>, before: EtcdStatus) -> EtcdStatus {
    let (last_operation, last_errors) = operation::of(facts);
    let observed = facts.failure.is_none().then_some(facts.wanted.generation);
    EtcdStatus {
        observed_generation: observed.or(before.observed_generation),
        last_operation,
        last_errors,
        ..before
    }
}

/// Whether every pod is ready and is what the spec asks for.
fn is_ready(facts: &Facts<'_>, conditions: &[Condition]) -> bool {
    let wanted = facts.wanted.replicas;
    let ready = facts
        .seen
        .pods
        .values()
        .filter(|pod| pod.is_ready && !pod.is_deleting);
    let is_updated = conditions.iter().any(|condition| {
        condition.type_ == ConditionType::AllMembersUpdated
            && condition.status == ConditionStatus::True
    });
    let is_asleep = wanted == 0 && facts.world().size() == 0;
    is_asleep || (is_updated && u32::try_from(ready.count()).is_ok_and(|ready| ready >= wanted))
}

/// The cluster that was joined, once that is done.
fn joined(facts: &Facts<'_>, conditions: &[Condition]) -> Option<BootstrapStatus> {
    let source = facts
        .etcd
        .spec
        .etcd
        .bootstrap_with_existing_cluster
        .as_ref()?;
    if facts
        .before()
        .is_some_and(|before| before.bootstrap_with_existing_cluster.is_some())
    {
        return None;
    }
    let is_joined = conditions.iter().any(|condition| {
        condition.type_ == ConditionType::BootstrappedWithExistingCluster
            && condition.status == ConditionStatus::True
    });
    is_joined.then(|| BootstrapStatus {
        joined_at: clock::time(facts.now),
        members: source
            .members
            .iter()
            .map(|member| JoinedMember {
                name: member.name.clone(),
                peer_urls: member.peer_urls.iter().map(ToString::to_string).collect(),
            })
            .collect(),
    })
}

/// When a condition may change although nothing happens: a Lease runs out, a snapshot grows old.
pub fn wake_after(facts: &Facts<'_>) -> Option<Duration> {
    members::next_change(facts)
        .into_iter()
        .chain(backup::next_change(facts))
        .chain(crate::decide::upkeep::next_change(&facts.world()))
        .min()
}

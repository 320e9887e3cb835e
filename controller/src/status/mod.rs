//! Computes the status of an Etcd: conditions, members, the current operation. Pure: writing is left to the caller.
//!
//! ```text
//! observed + plan + failure + previous status ─► EtcdStatus ─┬─ differs? ─► one write
//!                                                            └─ transitions ─► Events
//! ```
//!
//! Invariants: the same input gives the same status, byte for byte, so that a reconcile without changes writes nothing;
//! timestamps move only with the value they belong to. Fields and conditions of other writers are kept.

mod backup;
mod conditions;
mod events;
mod members;
mod operation;
mod recovery;
mod timestamps;
mod upkeep;

#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use mainstay_crds::etcd::{BootstrapStatus, JoinedMember, ObjectReference};
use mainstay_crds::{Condition, ConditionStatus, ConditionType, Etcd, EtcdStatus};
use mainstay_manifests::Names;
use mainstay_manifests::labels::format_member_selector;

use crate::model::{
    DesiredState, LastKnown, Observation, PeerTlsStage, ReconcilePlan, ReconcilePolicy, Thresholds,
    World,
};
pub(crate) use events::{StatusEvent, StatusEventKind, collect_events};
pub(crate) use recovery::read_data_lost_since;
pub(crate) use upkeep::read_reported_upkeep;

/// The error that ended a reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReconcileFailure {
    /// Code of `lastErrors`, for example `ERR_SYNC_STATEFULSET`.
    pub(crate) code: String,
    pub(crate) description: String,
}

/// Input of the status.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    /// Includes the previous status.
    pub(crate) etcd: &'a Etcd,
    pub(crate) desired: &'a DesiredState,
    pub(crate) observed: &'a Observation,
    pub(crate) plan: &'a ReconcilePlan,
    pub(crate) policy: &'a ReconcilePolicy,
    pub(crate) last_known: &'a LastKnown,
    /// `None` when the reconcile succeeded.
    pub(crate) failure: Option<&'a ReconcileFailure>,
    pub(crate) thresholds: Thresholds,
    /// Identifies this reconcile in the log.
    pub(crate) run_id: &'a str,
    pub(crate) now: Timestamp,
}

impl<'a> Facts<'a> {
    pub(crate) fn world(&self) -> World<'a> {
        World {
            desired: self.desired,
            observed: self.observed,
            policy: self.policy,
            last_known: self.last_known,
            now: self.now,
        }
    }

    pub(crate) fn previous_status(&self) -> Option<&'a EtcdStatus> {
        self.etcd.status.as_ref()
    }

    pub(crate) fn previous_condition(&self, type_: &ConditionType) -> Option<&'a Condition> {
        let conditions = self.previous_status()?.conditions.as_ref()?;
        conditions
            .iter()
            .find(|condition| condition.type_ == *type_)
    }
}

pub(crate) fn compute(facts: &Facts<'_>) -> EtcdStatus {
    let before = facts.previous_status().cloned().unwrap_or_default();
    if facts.desired.requests.is_runtime_disabled {
        return compute_without_runtime(facts, before);
    }
    let members = members::compute_members(facts);
    let conditions = conditions::compute_conditions(facts, &members);
    let set = facts.observed.stateful_set.as_ref();
    let is_done = facts.failure.is_none() && facts.world().is_spec_accepted();
    let (last_operation, last_errors) = operation::compute_operation(facts);
    EtcdStatus {
        // Gardener waits for observedGeneration, so it moves only after the whole spec was accepted and applied.
        observed_generation: if is_done && facts.plan.effective_spec.is_some() {
            Some(facts.desired.generation)
        } else {
            before.observed_generation
        },
        etcd: set.map(|_| ObjectReference {
            kind: "StatefulSet".to_owned(),
            name: facts.desired.name.clone(),
            api_version: Some("apps/v1".to_owned()),
        }),
        last_errors,
        last_operation,
        current_replicas: set.map(|set| set.counts.current),
        replicas: set.map(|set| set.counts.current),
        ready_replicas: set.map(|set| set.counts.ready),
        ready: Some(is_ready(facts, &conditions)),
        members: Some(members),
        peer_url_tls_enabled: set.map(|set| set.peer_tls_stage == PeerTlsStage::On),
        selector: Some(format_member_selector(&Names::new(facts.etcd))),
        bootstrap_with_existing_cluster: build_bootstrap_status(facts, &conditions)
            .or(before.bootstrap_with_existing_cluster),
        conditions: Some(conditions),
        label_selector: before.label_selector,
        mainstay: upkeep::set_drill_status(
            facts,
            recovery::set_recovery_status(facts, before.mainstay),
        ),
    }
}

/// With runtime components disabled there are no pods to report on; etcd-druid freezes the status as well.
fn compute_without_runtime(facts: &Facts<'_>, before: EtcdStatus) -> EtcdStatus {
    let (last_operation, last_errors) = operation::compute_operation(facts);
    let observed = facts.failure.is_none().then_some(facts.desired.generation);
    EtcdStatus {
        observed_generation: observed.or(before.observed_generation),
        last_operation,
        last_errors,
        ..before
    }
}

/// Whether every desired pod is ready and up to date. A hibernated cluster is ready.
fn is_ready(facts: &Facts<'_>, conditions: &[Condition]) -> bool {
    let desired = facts.desired.replicas;
    let ready = facts
        .observed
        .pods
        .values()
        .filter(|pod| pod.is_ready && !pod.is_deleting);
    let is_updated = conditions.iter().any(|condition| {
        condition.type_ == ConditionType::AllMembersUpdated
            && condition.status == ConditionStatus::True
    });
    let is_hibernated = desired == 0 && facts.world().size() == 0;
    is_hibernated
        || (is_updated && u32::try_from(ready.count()).is_ok_and(|ready| ready >= desired))
}

/// The cluster that was joined, recorded once when all members have joined.
fn build_bootstrap_status(facts: &Facts<'_>, conditions: &[Condition]) -> Option<BootstrapStatus> {
    let source = facts
        .etcd
        .spec
        .etcd
        .bootstrap_with_existing_cluster
        .as_ref()?;
    if facts
        .previous_status()
        .is_some_and(|before| before.bootstrap_with_existing_cluster.is_some())
    {
        return None;
    }
    let is_joined = conditions.iter().any(|condition| {
        condition.type_ == ConditionType::BootstrappedWithExistingCluster
            && condition.status == ConditionStatus::True
    });
    is_joined.then(|| BootstrapStatus {
        joined_at: timestamps::to_whole_seconds(facts.now),
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

/// Time until a condition may change without a watch event: a Lease expires, a snapshot becomes late.
pub(crate) fn requeue_after(facts: &Facts<'_>) -> Option<Duration> {
    members::time_until_change(facts)
        .into_iter()
        .chain(backup::time_until_change(facts))
        .chain(crate::decide::upkeep::time_until_change(&facts.world()))
        .min()
}

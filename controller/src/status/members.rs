//! `status.members`: the state of each member by its Lease, its pod, and etcd where it was queried.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mainstay_crds::etcd::{EtcdMemberStatus, MemberRole, MemberState};

use super::{Facts, timestamps};
use crate::intervals;
use crate::model::{EndpointStatus, ObservedMemberLease, Ordinal};

/// The reported database size changes only by more than a tenth; otherwise every reconcile would write the status.
const SIZE_TOLERANCE_DIVISOR: i64 = 10;

pub(super) fn compute_members(facts: &Facts<'_>) -> Vec<EtcdMemberStatus> {
    expected_ordinals(facts)
        .filter_map(|ordinal| compute_member(facts, ordinal))
        .collect()
}

/// Existing and desired members; none while hibernated.
fn expected_ordinals(facts: &Facts<'_>) -> impl Iterator<Item = Ordinal> + use<> {
    let (size, wanted) = (facts.world().size(), facts.desired.replicas);
    (0..size.max(wanted)).map(Ordinal)
}

fn compute_member(facts: &Facts<'_>, ordinal: Ordinal) -> Option<EtcdMemberStatus> {
    // As with etcd-druid, a member is listed once its sidecar has renewed its Lease.
    let lease = facts.observed.leases.get(&ordinal)?;
    let held = lease.holder.as_ref()?;
    let renewed = lease.renewed_at?;
    let (status, reason) = classify_lease_age(facts, ordinal, renewed);
    let name = facts.desired.member_name(ordinal);
    let before = facts.previous_status().and_then(|status| {
        let mut members = status.members.iter().flatten();
        members.find(|member| member.name == name)
    });
    let observed = facts.world().member(ordinal);
    // The response of etcd is newer than the Lease.
    let role = match observed {
        Some(member) if member.is_learner => MemberRole::Learner,
        Some(member) if member.status.is_some() => to_role(member.is_leader()),
        _ => to_role(held.is_leader),
    };
    let answer = observed.and_then(|member| member.status.as_ref());
    let same = before.filter(|before| before.status == status);
    Some(EtcdMemberStatus {
        id: Some(held.member_id.to_string()),
        role: Some(role),
        status,
        reason: reason.to_owned(),
        last_transition_time: same.map_or_else(
            || timestamps::to_whole_seconds(facts.now),
            |before| before.last_transition_time.clone(),
        ),
        // Not queried in this reconcile: keep the last reported values.
        version: map_answer(answer, |answer| answer.version.clone())
            .or(before.and_then(|b| b.version.clone())),
        db_size_bytes: smooth_db_size(
            answer.map(|a| a.db_bytes),
            before.and_then(|b| b.db_size_bytes),
        ),
        db_size_in_use_bytes: smooth_db_size(
            answer.map(|a| a.db_bytes_in_use),
            before.and_then(|b| b.db_size_in_use_bytes),
        ),
        name,
    })
}

fn map_answer<T>(
    answer: Option<&EndpointStatus>,
    value: impl Fn(&EndpointStatus) -> T,
) -> Option<T> {
    answer.map(value)
}

fn to_role(is_leader: bool) -> MemberRole {
    if is_leader {
        MemberRole::Leader
    } else {
        MemberRole::Member
    }
}

/// The previously reported size, until it is off by a tenth.
fn smooth_db_size(now: Option<i64>, before: Option<i64>) -> Option<i64> {
    let (Some(now), Some(before)) = (now, before) else {
        return now.or(before);
    };
    let is_near = (now - before).saturating_abs() <= before / SIZE_TOLERANCE_DIVISOR;
    Some(if is_near { before } else { now })
}

/// State and reason by the age of the last renewal, with etcd-druid's reasons.
fn classify_lease_age(
    facts: &Facts<'_>,
    ordinal: Ordinal,
    renewed: Timestamp,
) -> (MemberState, &'static str) {
    let [unknown, not_ready] = lease_age_limits(facts);
    let age = facts.now.duration_since(renewed);
    // Regardless of the pod, in etcd-druid's order.
    if age > not_ready {
        return (MemberState::NotReady, "UnknownGracePeriodExceeded");
    }
    if age > unknown {
        let pod = facts.world().pod(ordinal);
        return if pod.is_some_and(|pod| pod.has_ready_containers) {
            (MemberState::Unknown, "LeaseExpired")
        } else {
            (MemberState::NotReady, "ContainersNotReady")
        };
    }
    (MemberState::Ready, "LeaseSucceeded")
}

/// The ages above which a member is Unknown, and NotReady.
fn lease_age_limits(facts: &Facts<'_>) -> [SignedDuration; 2] {
    let signed = |span| SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    let unknown = signed(facts.thresholds.unknown);
    [
        unknown,
        unknown.saturating_add(signed(facts.thresholds.not_ready)),
    ]
}

/// Time until a Lease expires if it is not renewed.
pub(super) fn time_until_change(facts: &Facts<'_>) -> Option<Duration> {
    let limits = lease_age_limits(facts);
    let change = |lease: &ObservedMemberLease| {
        let age = facts.now.duration_since(lease.renewed_at?);
        let limit = limits.into_iter().find(|limit| age <= *limit)?;
        // One second past the limit. Renewals of Leases cause no watch event, so an expired Lease is polled.
        let wait = (limit - age).unsigned_abs() + Duration::from_secs(1);
        Some(if age > limits[0] {
            wait.min(intervals::UNHEALTHY_POLL)
        } else {
            wait
        })
    };
    let leases: Vec<&ObservedMemberLease> = expected_ordinals(facts)
        .filter_map(|ordinal| facts.observed.leases.get(&ordinal))
        .collect();
    let is_not_ready = |lease: &&ObservedMemberLease| {
        let age = lease
            .renewed_at
            .map(|renewed| facts.now.duration_since(renewed));
        age.is_some_and(|age| age > limits[1])
    };
    // Also after the last limit: only polling shows that a member is back.
    let soonest = leases.iter().copied().filter_map(change);
    let poll = leases
        .iter()
        .any(is_not_ready)
        .then_some(intervals::UNHEALTHY_POLL);
    soonest.chain(poll).min()
}

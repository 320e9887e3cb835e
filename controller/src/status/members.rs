//! How each member is doing, by its Lease, its pod, and etcd where it was asked.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mainstay_crds::etcd::{EtcdMemberStatus, MemberRole, MemberState};

use super::{Facts, clock};
use crate::cadence;
use crate::observe::{Answer, Ordinal, SeenLease};

/// A database grows and shrinks all the time; what is told of its size follows in steps of a tenth.
const SIZE_STEP: i64 = 10;

pub(super) fn members(facts: &Facts<'_>) -> Vec<EtcdMemberStatus> {
    expected(facts)
        .filter_map(|ordinal| member(facts, ordinal))
        .collect()
}

/// Those there are and those there are to be; none of a cluster that sleeps.
fn expected(facts: &Facts<'_>) -> impl Iterator<Item = Ordinal> + use<> {
    let (size, wanted) = (facts.world().size(), facts.wanted.replicas);
    (0..size.max(wanted)).map(Ordinal)
}

fn member(facts: &Facts<'_>, ordinal: Ordinal) -> Option<EtcdMemberStatus> {
    let lease = facts.seen.leases.get(&ordinal)?;
    let held = lease.held.as_ref()?;
    let renewed = lease.renewed?;
    let (status, reason) = state(facts, ordinal, renewed);
    let name = facts.wanted.member(ordinal);
    let before = facts.before().and_then(|status| {
        let mut members = status.members.iter().flatten();
        members.find(|member| member.name == name)
    });
    let seen = facts.world().member(ordinal);
    let role = match seen {
        Some(member) if member.is_learner => MemberRole::Learner,
        Some(member) if member.answer.is_some() => role(member.is_leader()),
        _ => role(held.is_leader),
    };
    let answer = seen.and_then(|member| member.answer.as_ref());
    let same = before.filter(|before| before.status == status);
    Some(EtcdMemberStatus {
        id: Some(held.member.to_string()),
        role: Some(role),
        status,
        reason: reason.to_owned(),
        last_transition_time: same.map_or_else(
            || clock::time(facts.now),
            |before| before.last_transition_time.clone(),
        ),
        version: fact(answer, |answer| answer.version.clone())
            .or(before.and_then(|b| b.version.clone())),
        db_size_bytes: size(
            answer.map(|a| a.db_bytes),
            before.and_then(|b| b.db_size_bytes),
        ),
        db_size_in_use_bytes: size(
            answer.map(|a| a.db_bytes_in_use),
            before.and_then(|b| b.db_size_in_use_bytes),
        ),
        name,
    })
}

fn fact<T>(answer: Option<&Answer>, of: impl Fn(&Answer) -> T) -> Option<T> {
    answer.map(of)
}

fn role(is_leader: bool) -> MemberRole {
    if is_leader {
        MemberRole::Leader
    } else {
        MemberRole::Member
    }
}

/// The size told before, until it is off by a tenth.
fn size(now: Option<i64>, before: Option<i64>) -> Option<i64> {
    let (Some(now), Some(before)) = (now, before) else {
        return now.or(before);
    };
    let is_near = (now - before).saturating_abs() <= before / SIZE_STEP;
    Some(if is_near { before } else { now })
}

/// What the age of the last sign of life means.
fn state(facts: &Facts<'_>, ordinal: Ordinal, renewed: Timestamp) -> (MemberState, &'static str) {
    let [unknown, not_ready] = limits(facts);
    let age = facts.now.duration_since(renewed);
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

/// The ages at which a member becomes unknown and not ready.
fn limits(facts: &Facts<'_>) -> [SignedDuration; 2] {
    let signed = |span| SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    let unknown = signed(facts.thresholds.unknown);
    [
        unknown,
        unknown.saturating_add(signed(facts.thresholds.not_ready)),
    ]
}

/// When a Lease runs out, if nobody renews it.
pub(super) fn next_change(facts: &Facts<'_>) -> Option<Duration> {
    let limits = limits(facts);
    let change = |lease: &SeenLease| {
        let age = facts.now.duration_since(lease.renewed?);
        let ahead = limits.into_iter().find(|limit| age <= *limit)?;
        // Past the boundary, not on it; renewals are not announced while a member is away.
        let wait = (ahead - age).unsigned_abs() + Duration::from_secs(1);
        Some(if age > limits[0] {
            wait.min(cadence::UNWELL)
        } else {
            wait
        })
    };
    let leases: Vec<&SeenLease> = expected(facts)
        .filter_map(|ordinal| facts.seen.leases.get(&ordinal))
        .collect();
    let is_gone = |lease: &&SeenLease| {
        let age = lease
            .renewed
            .map(|renewed| facts.now.duration_since(renewed));
        age.is_some_and(|age| age > limits[1])
    };
    let soonest = leases.iter().copied().filter_map(change);
    let unwell = leases.iter().any(is_gone).then_some(cadence::UNWELL);
    soonest.chain(unwell).min()
}

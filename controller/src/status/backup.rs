//! Whether snapshots are as recent as their schedules promise.
//!
//! A snapshot that is late by less than half its period is nothing; by less than a whole one, nobody can say; then it failed.

use std::str::FromStr;
use std::time::Duration;

use croner::Cron;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use mainstay_crds::ConditionStatus;

use super::Facts;
use super::conditions::{ConditionUpdate, build_update};
use crate::observe::SnapshotLease;
use crate::validate::DesiredBackup;

/// When the schedule is not given, the sidecar's own.
const DEFAULT_FULL_PERIOD: SignedDuration = SignedDuration::from_hours(1);
/// A snapshot takes time, and Leases are written after it.
const GRACE_PERIOD: SignedDuration = SignedDuration::from_mins(1);
/// How long after a cluster begins its first full snapshot may take.
const FIRST_SNAPSHOT_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

/// How late one kind of snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lateness {
    OnTime,
    Late,
    Overdue,
}

/// The ages at which a snapshot is perhaps late, and certainly.
fn lateness_limits(period: SignedDuration) -> [SignedDuration; 2] {
    let half = period / 2;
    [
        period.saturating_add(half).saturating_add(GRACE_PERIOD),
        period.saturating_mul(2).saturating_add(GRACE_PERIOD * 2),
    ]
}

pub(super) fn check_backup_ready(facts: &Facts<'_>) -> Option<ConditionUpdate> {
    let backup = facts.desired.backup.as_ref()?;
    let unknown = |message: &str| build_update(ConditionStatus::Unknown, "Unknown", message);
    let Some(full_period) = full_snapshot_period(backup, facts.now) else {
        return Some(unknown("spec.backup.fullSnapshotSchedule cannot be read"));
    };
    let full = facts.observed.full_snapshot.as_ref();
    let Some(taken) = full.and_then(|lease| lease.renewed_at) else {
        return Some(check_first_snapshot(facts, full));
    };
    let full_late = classify_lateness(facts.now.duration_since(taken), full_period);
    let delta_late = backup.delta_period_seconds.map_or(Lateness::OnTime, |seconds| {
        let period = SignedDuration::from_secs(seconds);
        let checked = facts
            .observed
            .delta_snapshot
            .as_ref()
            .and_then(|lease| lease.renewed_at);
        // A full snapshot starts the deltas anew.
        let since = checked.map_or(taken, |checked| checked.max(taken));
        classify_lateness(facts.now.duration_since(since), period)
    });
    let word = if full_late >= delta_late {
        "full"
    } else {
        "delta"
    };
    Some(match full_late.max(delta_late) {
        Lateness::OnTime => build_update(
            ConditionStatus::True,
            "BackupSucceeded",
            "snapshots are as recent as scheduled",
        ),
        Lateness::Late => unknown(&format!("the {word} snapshot is late")),
        Lateness::Overdue => build_update(
            ConditionStatus::False,
            "BackupFailed",
            format!("the {word} snapshot is overdue"),
        ),
    })
}

/// Before the first full snapshot.
fn check_first_snapshot(facts: &Facts<'_>, lease: Option<&SnapshotLease>) -> ConditionUpdate {
    let waited = lease
        .and_then(|lease| lease.created_at)
        .map(|created| facts.now.duration_since(created));
    if waited.is_some_and(|waited| waited > FIRST_SNAPSHOT_TIMEOUT) && facts.world().is_bootstrapped() {
        return build_update(
            ConditionStatus::False,
            "BackupFailed",
            "no full snapshot was ever taken",
        );
    }
    build_update(
        ConditionStatus::Unknown,
        "Unknown",
        "no full snapshot was taken yet",
    )
}

fn classify_lateness(age: SignedDuration, period: SignedDuration) -> Lateness {
    let [perhaps, certainly] = lateness_limits(period);
    if age <= perhaps {
        Lateness::OnTime
    } else if age <= certainly {
        Lateness::Late
    } else {
        Lateness::Overdue
    }
}

/// The longest time between two full snapshots around now; `None` for a schedule that cannot be read.
fn full_snapshot_period(backup: &DesiredBackup, now: Timestamp) -> Option<SignedDuration> {
    let Some(schedule) = &backup.full_schedule else {
        return Some(DEFAULT_FULL_PERIOD);
    };
    // Sunday is 7 in the resource and in this crate.
    let cron = Cron::from_str(schedule).ok()?;
    let now = now.to_zoned(TimeZone::UTC);
    let first = cron.find_next_occurrence(&now, false).ok()?;
    let second = cron.find_next_occurrence(&first, false).ok()?;
    Some(second.timestamp().duration_since(first.timestamp()))
}

/// When a snapshot becomes late, if none is taken.
pub(super) fn time_until_change(facts: &Facts<'_>) -> Option<Duration> {
    let backup = facts
        .desired
        .backup
        .as_ref()
        .filter(|_| facts.desired.replicas > 0)?;
    let ahead = |taken: Option<Timestamp>, period: SignedDuration| {
        let age = facts.now.duration_since(taken?);
        let limit = lateness_limits(period).into_iter().find(|limit| age <= *limit)?;
        Some((limit - age).unsigned_abs() + Duration::from_secs(1))
    };
    let renewed = |lease: &Option<SnapshotLease>| lease.as_ref().and_then(|lease| lease.renewed_at);
    let full = full_snapshot_period(backup, facts.now)
        .and_then(|period| ahead(renewed(&facts.observed.full_snapshot), period));
    let delta = backup.delta_period_seconds.and_then(|seconds| {
        ahead(
            renewed(&facts.observed.delta_snapshot),
            SignedDuration::from_secs(seconds),
        )
    });
    full.into_iter().chain(delta).min()
}

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
use super::conditions::{Says, says};
use crate::observe::SnapshotLease;
use crate::validate::WantedBackup;

/// When the schedule is not given, the sidecar's own.
const HOURLY: SignedDuration = SignedDuration::from_hours(1);
/// A snapshot takes time, and Leases are written after it.
const SLACK: SignedDuration = SignedDuration::from_mins(1);
/// How long after a cluster begins its first full snapshot may take.
const FIRST: SignedDuration = SignedDuration::from_mins(10);

/// How late one kind of snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Late {
    No,
    Perhaps,
    Yes,
}

/// The ages at which a snapshot is perhaps late, and certainly.
fn limits(period: SignedDuration) -> [SignedDuration; 2] {
    let half = period / 2;
    [
        period.saturating_add(half).saturating_add(SLACK),
        period.saturating_mul(2).saturating_add(SLACK * 2),
    ]
}

pub(super) fn ready(facts: &Facts<'_>) -> Option<Says> {
    let backup = facts.wanted.backup.as_ref()?;
    let unknown = |message: &str| says(ConditionStatus::Unknown, "Unknown", message);
    let Some(full_period) = full_period(backup, facts.now) else {
        return Some(unknown("spec.backup.fullSnapshotSchedule cannot be read"));
    };
    let full = facts.seen.full_snapshot.as_ref();
    let Some(taken) = full.and_then(|lease| lease.renewed) else {
        return Some(first(facts, full));
    };
    let full_late = late(facts.now.duration_since(taken), full_period);
    let delta_late = backup.delta_seconds.map_or(Late::No, |seconds| {
        let period = SignedDuration::from_secs(seconds);
        let checked = facts
            .seen
            .delta_snapshot
            .as_ref()
            .and_then(|lease| lease.renewed);
        // A full snapshot starts the deltas anew.
        let since = checked.map_or(taken, |checked| checked.max(taken));
        late(facts.now.duration_since(since), period)
    });
    let word = if full_late >= delta_late {
        "full"
    } else {
        "delta"
    };
    Some(match full_late.max(delta_late) {
        Late::No => says(
            ConditionStatus::True,
            "BackupSucceeded",
            "snapshots are as recent as scheduled",
        ),
        Late::Perhaps => unknown(&format!("the {word} snapshot is late")),
        Late::Yes => says(
            ConditionStatus::False,
            "BackupFailed",
            format!("the {word} snapshot is overdue"),
        ),
    })
}

/// Before the first full snapshot.
fn first(facts: &Facts<'_>, lease: Option<&SnapshotLease>) -> Says {
    let waited = lease
        .and_then(|lease| lease.created)
        .map(|created| facts.now.duration_since(created));
    if waited.is_some_and(|waited| waited > FIRST) && facts.world().is_formed() {
        return says(
            ConditionStatus::False,
            "BackupFailed",
            "no full snapshot was ever taken",
        );
    }
    says(
        ConditionStatus::Unknown,
        "Unknown",
        "no full snapshot was taken yet",
    )
}

fn late(age: SignedDuration, period: SignedDuration) -> Late {
    let [perhaps, certainly] = limits(period);
    if age <= perhaps {
        Late::No
    } else if age <= certainly {
        Late::Perhaps
    } else {
        Late::Yes
    }
}

/// The longest time between two full snapshots around now; `None` for a schedule that cannot be read.
fn full_period(backup: &WantedBackup, now: Timestamp) -> Option<SignedDuration> {
    let Some(schedule) = &backup.schedule else {
        return Some(HOURLY);
    };
    // Sunday is 7 in the resource and in this crate.
    let cron = Cron::from_str(schedule).ok()?;
    let now = now.to_zoned(TimeZone::UTC);
    let first = cron.find_next_occurrence(&now, false).ok()?;
    let second = cron.find_next_occurrence(&first, false).ok()?;
    Some(second.timestamp().duration_since(first.timestamp()))
}

/// When a snapshot becomes late, if none is taken.
pub(super) fn next_change(facts: &Facts<'_>) -> Option<Duration> {
    let backup = facts
        .wanted
        .backup
        .as_ref()
        .filter(|_| facts.wanted.replicas > 0)?;
    let ahead = |taken: Option<Timestamp>, period: SignedDuration| {
        let age = facts.now.duration_since(taken?);
        let limit = limits(period).into_iter().find(|limit| age <= *limit)?;
        Some((limit - age).unsigned_abs() + Duration::from_secs(1))
    };
    let renewed = |lease: &Option<SnapshotLease>| lease.as_ref().and_then(|lease| lease.renewed);
    let full = full_period(backup, facts.now)
        .and_then(|period| ahead(renewed(&facts.seen.full_snapshot), period));
    let delta = backup.delta_seconds.and_then(|seconds| {
        ahead(
            renewed(&facts.seen.delta_snapshot),
            SignedDuration::from_secs(seconds),
        )
    });
    full.into_iter().chain(delta).min()
}

//! `BackupReady`: whether snapshots are as recent as their schedules require.
//!
//! A snapshot late by up to half its period is on time, by up to a whole period late (Unknown), then overdue (False).

use std::str::FromStr;
use std::time::Duration;

use croner::Cron;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use mainstay_crds::ConditionStatus;

use super::Facts;
use super::conditions::{ConditionUpdate, build_update};
use crate::model::{DesiredBackup, SnapshotLease};

/// The sidecar's default, for an Etcd without a schedule.
const DEFAULT_FULL_PERIOD: SignedDuration = SignedDuration::from_hours(1);
/// The sidecar renews the Lease only after the upload.
const GRACE_PERIOD: SignedDuration = SignedDuration::from_mins(1);
/// Time from the creation of the Lease until a missing first full snapshot counts as a failure.
const FIRST_SNAPSHOT_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lateness {
    OnTime,
    Late,
    Overdue,
}

/// The ages above which a snapshot is late, and overdue.
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
        return Some(unknown(
            "Invalid spec.backup.fullSnapshotSchedule: not a cron expression",
        ));
    };
    let full = facts.observed.full_snapshot.as_ref();
    let Some(taken) = full.and_then(|lease| lease.renewed_at) else {
        return Some(check_first_snapshot(facts, full));
    };
    let full_late = classify_lateness(facts.now.duration_since(taken), full_period);
    let delta_late = backup
        .delta_period_seconds
        .map_or(Lateness::OnTime, |seconds| {
            let period = SignedDuration::from_secs(seconds);
            let checked = facts
                .observed
                .delta_snapshot
                .as_ref()
                .and_then(|lease| lease.renewed_at);
            // Deltas continue from the last full snapshot, so its age counts for them too.
            let since = checked.map_or(taken, |checked| checked.max(taken));
            classify_lateness(facts.now.duration_since(since), period)
        });
    let kind = if full_late >= delta_late {
        "full"
    } else {
        "delta"
    };
    Some(match full_late.max(delta_late) {
        Lateness::OnTime => build_update(
            ConditionStatus::True,
            "BackupSucceeded",
            "Snapshots are on schedule",
        ),
        Lateness::Late => unknown(&format!("Late {kind} snapshot")),
        Lateness::Overdue => build_update(
            ConditionStatus::False,
            "BackupFailed",
            format!("Overdue {kind} snapshot"),
        ),
    })
}

fn check_first_snapshot(facts: &Facts<'_>, lease: Option<&SnapshotLease>) -> ConditionUpdate {
    let waited = lease
        .and_then(|lease| lease.created_at)
        .map(|created| facts.now.duration_since(created));
    // A cluster that is still bootstrapping has nothing to back up.
    if waited.is_some_and(|waited| waited > FIRST_SNAPSHOT_TIMEOUT)
        && facts.world().is_bootstrapped()
    {
        return build_update(
            ConditionStatus::False,
            "BackupFailed",
            "No full snapshot taken since the Etcd was created",
        );
    }
    build_update(
        ConditionStatus::Unknown,
        "Unknown",
        "No full snapshot taken yet",
    )
}

fn classify_lateness(age: SignedDuration, period: SignedDuration) -> Lateness {
    let [late_age, overdue_age] = lateness_limits(period);
    if age <= late_age {
        Lateness::OnTime
    } else if age <= overdue_age {
        Lateness::Late
    } else {
        Lateness::Overdue
    }
}

/// The time between the next two full snapshots, as etcd-druid computes it. `None` for an invalid schedule.
fn full_snapshot_period(backup: &DesiredBackup, now: Timestamp) -> Option<SignedDuration> {
    let Some(schedule) = &backup.full_schedule else {
        return Some(DEFAULT_FULL_PERIOD);
    };
    let cron = Cron::from_str(schedule).ok()?;
    let now = now.to_zoned(TimeZone::UTC);
    let first = cron.find_next_occurrence(&now, false).ok()?;
    let second = cron.find_next_occurrence(&first, false).ok()?;
    Some(second.timestamp().duration_since(first.timestamp()))
}

/// Time until a snapshot becomes late or overdue if none is taken.
pub(super) fn time_until_change(facts: &Facts<'_>) -> Option<Duration> {
    let backup = facts
        .desired
        .backup
        .as_ref()
        // Conditions are not checked while hibernated.
        .filter(|_| facts.desired.replicas > 0)?;
    let until_limit = |taken: Option<Timestamp>, period: SignedDuration| {
        let age = facts.now.duration_since(taken?);
        let limit = lateness_limits(period)
            .into_iter()
            .find(|limit| age <= *limit)?;
        // One second past the limit, so that the comparison holds on wake-up.
        Some((limit - age).unsigned_abs() + Duration::from_secs(1))
    };
    let renewed = |lease: &Option<SnapshotLease>| lease.as_ref().and_then(|lease| lease.renewed_at);
    let full = full_snapshot_period(backup, facts.now)
        .and_then(|period| until_limit(renewed(&facts.observed.full_snapshot), period));
    let delta = backup.delta_period_seconds.and_then(|seconds| {
        until_limit(
            renewed(&facts.observed.delta_snapshot),
            SignedDuration::from_secs(seconds),
        )
    });
    full.into_iter().chain(delta).min()
}

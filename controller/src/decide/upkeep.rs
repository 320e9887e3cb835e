//! Plans backup maintenance: compaction of delta snapshots and restore drills. Pure.
//!
//! ```text
//! events, bytes, schedule ─► compaction Job ─► outcome in the condition ─► delete the Job
//!                        └─ too many events, or Job deadline exceeded ─► full snapshot by the leader's sidecar
//! schedule ────────────────► drill Job ──────► outcome in the condition ─► delete the Job
//! ```
//!
//! No action touches etcd or its volumes, so none is a reconcile step and none waits for a step. Invariants: at most one Job of
//! each kind; no Job while a recovery is open; a Job is deleted only after its outcome is published.

use std::str::FromStr;
use std::time::Duration;

use croner::Cron;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use mainstay_crds::ConditionStatus;

use crate::fingerprint::hash_value;
use crate::model::{
    FULL_SNAPSHOT_FAILED, FailureClass, FallbackSnapshot, JobState, Observation, ObservedJob,
    PIN_RENEWAL, PinOwner, ReportedOutcome, UpkeepAction, World, format_job_marker,
};

/// Every n-th restore drill restores an older revision.
const OLDER_REVISION_EVERY: u32 = 4;
/// Maximum delay that spreads Jobs of many clusters with the same schedule.
const MAX_SCHEDULE_JITTER: SignedDuration = SignedDuration::from_mins(10);

/// The actions that are due now.
pub(crate) fn plan_actions(world: &World<'_>) -> Vec<UpkeepAction> {
    if world.desired.backup.is_none() || world.observed.recovery.open_incident().is_some() {
        return Vec::new();
    }
    let upkeep = &world.observed.upkeep;
    let pins = [
        (PinOwner::Compaction, &upkeep.compaction),
        (PinOwner::Drill, &upkeep.drill),
    ];
    let pins = pins
        .into_iter()
        .filter_map(|(pin, job)| renew_pin(world, pin, job.as_ref()?));
    let jobs = plan_compaction(world).into_iter().chain(plan_drill(world));
    jobs.chain(pins).collect()
}

/// Renews the pin of a running Job, or sets it again when it is lost.
fn renew_pin(world: &World<'_>, owner: PinOwner, job: &ObservedJob) -> Option<UpkeepAction> {
    let is_running = job.state == JobState::Running && !job.is_deleting;
    let observed = world.observed.upkeep.pins.get(owner.name());
    let age = |renewed| world.now.duration_since(renewed).unsigned_abs();
    let is_due = observed.is_none_or(|observed| age(observed.renewed_at) >= PIN_RENEWAL);
    let full = || world.observed.full_snapshot.as_ref()?.revision;
    // A renewed pin keeps its revision: a newer full snapshot does not shorten what the Job reads.
    let from_revision = observed
        .map(|observed| observed.from_revision)
        .or_else(full)?;
    (is_running && is_due).then_some(UpkeepAction::RenewPin {
        owner,
        from_revision,
    })
}

/// Bytes of delta snapshots since the last full snapshot.
fn sum_bytes_since_full(observed: &Observation) -> u64 {
    let full = observed
        .full_snapshot
        .as_ref()
        .and_then(|full| full.revision);
    // The sidecar sees a compacted snapshot minutes later; until then it reports bytes that are already compacted.
    let known = observed
        .upkeep
        .delta_backlog
        .filter(|backlog| Some(backlog.since_revision) >= full);
    known.map_or(0, |backlog| backlog.bytes)
}

fn plan_compaction(world: &World<'_>) -> Option<UpkeepAction> {
    let reported = world.last_known.upkeep.compaction.as_ref();
    if let Some(job) = &world.observed.upkeep.compaction {
        let written_revision = match &job.state {
            JobState::Succeeded { done, .. } => done.revision,
            JobState::Running | JobState::Failed { .. } => None,
        };
        let uid = job.uid.clone();
        return is_reported(job, reported).then_some(UpkeepAction::DeleteCompactionJob {
            uid,
            snapshot_revision: written_revision,
        });
    }
    // While the outcome of a snapshot is unpublished, the condition still shows the failure that led to the request.
    if !world.policy.upkeep.is_compaction_enabled
        || world.observed.upkeep.fallback != FallbackSnapshot::None
    {
        return None;
    }
    let events = world.observed.count_events_since_full()?;
    let from_revision = world.observed.full_snapshot.as_ref()?.revision?;
    let failed = reported.filter(|reported| reported.status == ConditionStatus::False);
    if failed.is_some_and(|reported| is_backing_off(world, reported.reported_at)) {
        return None;
    }
    let desired = &world.desired.upkeep;
    let limit = desired
        .full_snapshot_threshold
        .unwrap_or(world.policy.upkeep.full_snapshot_threshold);
    // A Job that exceeded its deadline once would exceed it again.
    let is_late = failed.is_some_and(|reported| {
        reported.reason == FailureClass::Deadline.reason()
            || reported.reason == FULL_SNAPSHOT_FAILED
    });
    if events > 0 && (is_late || events >= limit) {
        return has_ready_sidecar(world).then_some(UpkeepAction::RequestFullSnapshot);
    }
    is_compaction_due(world, events, reported)
        .then_some(UpkeepAction::StartCompaction { from_revision })
}

/// Whether a threshold is reached or the schedule is due.
fn is_compaction_due(world: &World<'_>, events: i64, reported: Option<&ReportedOutcome>) -> bool {
    let (desired, policy) = (&world.desired.upkeep, &world.policy.upkeep);
    if events == 0 {
        return false;
    }
    events >= desired.events_threshold.unwrap_or(policy.events_threshold)
        || sum_bytes_since_full(world.observed)
            >= desired.bytes_threshold.unwrap_or(policy.bytes_threshold)
        || is_schedule_due(world, desired.compaction_schedule.as_deref(), reported)
}

fn plan_drill(world: &World<'_>) -> Option<UpkeepAction> {
    let reported = world.last_known.upkeep.drill.as_ref();
    if let Some(job) = &world.observed.upkeep.drill {
        let uid = job.uid.clone();
        return is_reported(job, reported).then_some(UpkeepAction::DeleteDrillJob { uid });
    }
    let full = world.observed.full_snapshot.as_ref()?.revision?;
    if !is_schedule_due(
        world,
        world.desired.upkeep.drill_schedule.as_deref(),
        reported,
    ) {
        return None;
    }
    // Alternate by count, not by time: every schedule then tests both the newest and an older revision.
    let is_older =
        world.last_known.upkeep.drill_count % OLDER_REVISION_EVERY == OLDER_REVISION_EVERY - 1;
    Some(UpkeepAction::StartDrill {
        to_revision: is_older.then_some(full),
    })
}

/// Whether a Job has finished and its outcome is published.
fn is_reported(job: &ObservedJob, reported: Option<&ReportedOutcome>) -> bool {
    let ended = job.state.ended_at().map(format_job_marker);
    !job.is_deleting
        && ended
            .zip(reported)
            .is_some_and(|(mark, reported)| reported.message.contains(&mark))
}

fn is_backing_off(world: &World<'_>, since: Timestamp) -> bool {
    world.now.duration_since(since).unsigned_abs() < world.policy.upkeep.retry_interval
}

/// The next run of a schedule after the last outcome, plus a delay that is constant per cluster, so that a thousand clusters
/// with one schedule do not start their Jobs in the same second.
fn find_next_due(
    world: &World<'_>,
    schedule: Option<&str>,
    reported: Option<&ReportedOutcome>,
) -> Option<Timestamp> {
    let last = reported
        .map(|reported| reported.reported_at)
        .or(world.desired.upkeep.schedules_since)?;
    let cron = Cron::from_str(schedule?).ok()?;
    let next = cron
        .find_next_occurrence(&last.to_zoned(TimeZone::UTC), false)
        .ok()?;
    let period = cron
        .find_next_occurrence(&next, false)
        .map_or(MAX_SCHEDULE_JITTER, |after| {
            after.timestamp().duration_since(next.timestamp())
        });
    // At most half the period, so that a run never moves past the next one.
    let spread = (period / 2)
        .min(MAX_SCHEDULE_JITTER)
        .as_secs()
        .unsigned_abs()
        .max(1);
    let delay = i64::try_from(hash_value(&world.desired.key()) % spread).unwrap_or_default();
    next.timestamp()
        .checked_add(SignedDuration::from_secs(delay))
        .ok()
}

/// Whether a scheduled run is due since the last outcome.
fn is_schedule_due(
    world: &World<'_>,
    schedule: Option<&str>,
    reported: Option<&ReportedOutcome>,
) -> bool {
    find_next_due(world, schedule, reported).is_some_and(|due| due <= world.now)
}

/// Time until the next scheduled action; `None` without one.
pub(crate) fn time_until_change(world: &World<'_>) -> Option<Duration> {
    world.desired.backup.as_ref()?;
    let (desired, known) = (&world.desired.upkeep, &world.last_known.upkeep);
    let schedules = [
        (&desired.compaction_schedule, &known.compaction),
        (&desired.drill_schedule, &known.drill),
    ];
    let next = schedules.into_iter().filter_map(|(schedule, reported)| {
        let due = find_next_due(world, schedule.as_deref(), reported.as_ref())?;
        let ahead = due.duration_since(world.now).max(SignedDuration::ZERO);
        Some(ahead.unsigned_abs() + Duration::from_secs(1))
    });
    // An overdue action waits for something that a watch event announces.
    next.filter(|ahead| *ahead > Duration::from_secs(1)).min()
}

/// Whether a sidecar runs that can take a snapshot.
fn has_ready_sidecar(world: &World<'_>) -> bool {
    world
        .observed
        .pods
        .values()
        .any(|pod| pod.is_ready && !pod.is_deleting)
}

#[cfg(test)]
mod tests;

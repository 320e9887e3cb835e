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

use super::World;
use crate::caches::hash_value;
use crate::observe::{FailureClass, FallbackSnapshot, JobState, Observation, ObservedJob};

/// Backup maintenance settings of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpkeepPolicy {
    pub(crate) is_compaction_enabled: bool,
    /// Events since the last full snapshot that trigger a compaction.
    pub(crate) events_threshold: i64,
    /// Bytes of delta snapshots that trigger a compaction.
    pub(crate) bytes_threshold: u64,
    /// Events above which the sidecar takes a full snapshot instead of a compaction.
    pub(crate) full_snapshot_threshold: i64,
    /// Time between a failed compaction and the next attempt.
    pub(crate) retry_interval: Duration,
    /// Deadline of a Job.
    pub(crate) job_deadline: Duration,
}

impl Default for UpkeepPolicy {
    fn default() -> Self {
        Self {
            is_compaction_enabled: true,
            events_threshold: 1_000_000,
            bytes_threshold: 1 << 30,
            full_snapshot_threshold: 3_000_000,
            retry_interval: Duration::from_mins(10),
            job_deadline: Duration::from_hours(3),
        }
    }
}

impl UpkeepPolicy {
    pub(crate) fn from_config(compaction: &crate::config::CompactionController) -> Self {
        Self {
            is_compaction_enabled: compaction.enabled,
            events_threshold: compaction.events_threshold,
            full_snapshot_threshold: compaction.trigger_full_snapshot_threshold,
            job_deadline: compaction.active_deadline_duration,
            ..Self::default()
        }
    }
}

/// Backup maintenance settings of one Etcd. `None` means the controller's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DesiredUpkeep {
    pub(crate) events_threshold: Option<i64>,
    pub(crate) bytes_threshold: Option<u64>,
    pub(crate) full_snapshot_threshold: Option<i64>,
    /// Cron schedule on which deltas are compacted below the thresholds as well.
    pub(crate) compaction_schedule: Option<String>,
    /// Cron schedule of restore drills.
    pub(crate) drill_schedule: Option<String>,
    /// Creation time of the Etcd; schedules count from it before the first run.
    pub(crate) schedules_since: Option<Timestamp>,
}

/// Outcomes published by earlier reconciles.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReportedUpkeep {
    pub(crate) compaction: Option<ReportedOutcome>,
    pub(crate) drill: Option<ReportedOutcome>,
    /// Number of finished restore drills.
    pub(crate) drill_count: u32,
}

/// The published outcome of a Job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReportedOutcome {
    /// `True` for success.
    pub(crate) status: ConditionStatus,
    pub(crate) reason: String,
    /// Ends with a marker that identifies the Job.
    pub(crate) message: String,
    pub(crate) reported_at: Timestamp,
}

/// An action of backup maintenance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UpkeepAction {
    StartCompaction {
        /// Revision of the full snapshot the Job starts from: retention must keep this revision and later ones.
        from_revision: i64,
    },
    /// Requests a full snapshot from the leader's sidecar.
    RequestFullSnapshot,
    DeleteCompactionJob {
        uid: String,
        /// Revision of the full snapshot that the Job wrote.
        snapshot_revision: Option<i64>,
    },
    StartDrill {
        /// Revision to restore; `None` means the newest.
        to_revision: Option<i64>,
    },
    DeleteDrillJob {
        uid: String,
    },
    /// Renews the pin of a running Job, so that retention keeps what the Job reads.
    RenewPin {
        owner: PinOwner,
        /// Retention must keep this revision and later ones.
        from_revision: i64,
    },
}

/// The Job that holds a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinOwner {
    Compaction,
    Drill,
}

impl PinOwner {
    /// Name of the pin in the coordination document.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Compaction => "compaction",
            Self::Drill => "restore-drill",
        }
    }
}

/// Renewal interval of a pin: a third of its lifetime, so that two renewals may fail.
pub(crate) const PIN_RENEWAL: Duration = Duration::from_mins(20);

/// Condition reason of etcd-druid for a full snapshot taken instead of a compaction.
pub(crate) const FULL_SNAPSHOT_TAKEN: &str = "FullSnapshotTakenSuccessfully";
/// Condition reason of etcd-druid for a full snapshot that failed.
pub(crate) const FULL_SNAPSHOT_FAILED: &str = "ErrorTriggeringFullSnapshot";
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

/// Events since the last full snapshot; `None` while a snapshot Lease has no revision.
pub(crate) fn count_events_since_full(observed: &Observation) -> Option<i64> {
    let full = observed.full_snapshot.as_ref()?.revision?;
    let delta = observed.delta_snapshot.as_ref()?.revision?;
    Some(delta.saturating_sub(full).max(0))
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
    let events = count_events_since_full(world.observed)?;
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

/// The marker in a condition message that identifies a Job: its end time in whole seconds.
pub(crate) fn format_job_marker(ended: Timestamp) -> String {
    let whole = Timestamp::from_second(ended.as_second()).unwrap_or(ended);
    format!("({whole})")
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

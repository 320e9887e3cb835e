//! The upkeep of a backup: deltas folded into full snapshots, restores rehearsed. Pure.
//!
//! ```text
//! events, bytes, schedule ─► Compact ─► Job ─► told in the condition ─► Retire
//!                        └─ too much, or no Job in time ─► FullSnapshot, by the leader's sidecar
//! schedule ────────────────► Drill ───► Job ─► told ─► Retire
//! ```
//!
//! None of it touches etcd or its volumes, so it is no step and waits for none. **Holds**: one Job of a kind at a time; none
//! while data is being recovered; a Job is removed only after what came of it was told.

use std::str::FromStr;
use std::time::Duration;

use croner::Cron;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use mainstay_crds::ConditionStatus;

use super::World;
use crate::caches::hash_value;
use crate::observe::{FailureClass, FallbackSnapshot, JobState, Observation, ObservedJob};

/// Numbers of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpkeepPolicy {
    /// Whether deltas are folded at all.
    pub is_compaction_enabled: bool,
    /// After so many changes.
    pub events_threshold: i64,
    /// After so many bytes.
    pub bytes_threshold: u64,
    /// At so many changes, etcd itself is asked.
    pub full_snapshot_threshold: i64,
    /// The pause after a Job that failed.
    pub retry_interval: Duration,
    /// How long a Job may take.
    pub job_deadline: Duration,
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
    /// What the operator's configuration says.
    pub fn from_config(compaction: &crate::config::CompactionController) -> Self {
        Self {
            is_compaction_enabled: compaction.enabled,
            events_threshold: compaction.events_threshold,
            full_snapshot_threshold: compaction.trigger_full_snapshot_threshold,
            job_deadline: compaction.active_deadline_duration,
            ..Self::default()
        }
    }
}

/// What the spec asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredUpkeep {
    /// After so many changes; the operator's number when absent.
    pub events_threshold: Option<i64>,
    /// After so many bytes; the operator's number when absent.
    pub bytes_threshold: Option<u64>,
    /// At so many changes, etcd itself is asked; the operator's number when absent.
    pub full_snapshot_threshold: Option<i64>,
    /// When deltas are folded whatever has piled up.
    pub compaction_schedule: Option<String>,
    /// When a restore is rehearsed.
    pub drill_schedule: Option<String>,
    /// Since when the resource exists: schedules count from then.
    pub schedules_since: Option<Timestamp>,
}

/// What was told about the upkeep before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportedUpkeep {
    /// About the last compaction.
    pub compaction: Option<ReportedOutcome>,
    /// About the last rehearsal.
    pub drill: Option<ReportedOutcome>,
    /// How many rehearsals there were.
    pub drill_count: u32,
}

/// What was told about a Job.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportedOutcome {
    /// Whether it went well.
    pub status: ConditionStatus,
    /// Why, in one word.
    pub reason: String,
    /// In words.
    pub message: String,
    /// When.
    pub reported_at: Timestamp,
}

/// Something to do for the backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpkeepAction {
    /// Starts the Job that folds deltas.
    StartCompaction {
        /// The revision of the full snapshot it begins with: that and what follows must stay.
        from_revision: i64,
    },
    /// Asks the leader's sidecar for a full snapshot.
    RequestFullSnapshot,
    /// Removes the Job that folded deltas, after its outcome was told.
    DeleteCompactionJob {
        /// This very one.
        uid: String,
        /// The revision of the full snapshot it has written.
        snapshot_revision: Option<i64>,
    },
    /// Starts the Job that rehearses a restore.
    StartDrill {
        /// Up to which revision; the newest when absent.
        to_revision: Option<i64>,
    },
    /// Removes the Job that rehearsed, after its outcome was told.
    DeleteDrillJob {
        /// This very one.
        uid: String,
    },
    /// Shows a sign of life of a pin, whose Job still reads.
    RenewPin {
        /// Which.
        owner: PinOwner,
        /// This revision and what follows must stay.
        from_revision: i64,
    },
}

/// Whose pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinOwner {
    /// The Job that folds deltas.
    Compaction,
    /// The Job that rehearses a restore.
    Drill,
}

impl PinOwner {
    /// Its name in the coordination document.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compaction => "compaction",
            Self::Drill => "restore-drill",
        }
    }
}

/// How old a sign of life may be: a third of what a pin lasts.
pub const PIN_RENEWAL: Duration = Duration::from_mins(20);

/// The reason etcd-druid gives for a full snapshot that was taken in place of a compaction.
pub const FULL_SNAPSHOT_TAKEN: &str = "FullSnapshotTakenSuccessfully";
/// And for one that was not.
pub const FULL_SNAPSHOT_FAILED: &str = "ErrorTriggeringFullSnapshot";
/// Every how many rehearsals an older state is tried.
const OLDER_REVISION_EVERY: u32 = 4;
/// Over how long what many clusters have scheduled for the same moment is spread, at most.
const MAX_SCHEDULE_JITTER: SignedDuration = SignedDuration::from_mins(10);

/// What is to be done now.
pub fn plan_actions(world: &World<'_>) -> Vec<UpkeepAction> {
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

/// What a Job reads stays for as long as it reads; a pin that is gone is set again.
fn renew_pin(world: &World<'_>, pin: PinOwner, job: &ObservedJob) -> Option<UpkeepAction> {
    let is_running = job.state == JobState::Running && !job.is_deleting;
    let observed = world.observed.upkeep.pins.get(pin.name());
    let age = |renewed| world.now.duration_since(renewed).unsigned_abs();
    let is_due = observed.is_none_or(|observed| age(observed.renewed_at) >= PIN_RENEWAL);
    let full = || world.observed.full_snapshot.as_ref()?.revision;
    let from = observed.map(|observed| observed.from_revision).or_else(full)?;
    (is_running && is_due).then_some(UpkeepAction::RenewPin { owner: pin, from_revision: from })
}

/// Changes since the last full snapshot.
pub fn count_events_since_full(observed: &Observation) -> Option<i64> {
    let full = observed.full_snapshot.as_ref()?.revision?;
    let delta = observed.delta_snapshot.as_ref()?.revision?;
    Some(delta.saturating_sub(full).max(0))
}

/// Bytes of deltas since the last full snapshot. A sidecar hears minutes later of one that a Job has stored: what it tells until
/// then is folded already.
fn sum_bytes_since_full(observed: &Observation) -> u64 {
    let full = observed.full_snapshot.as_ref().and_then(|full| full.revision);
    let known = observed.upkeep.delta_backlog.filter(|pile| Some(pile.since_revision) >= full);
    known.map_or(0, |pile| pile.bytes)
}

fn plan_compaction(world: &World<'_>) -> Option<UpkeepAction> {
    let told = world.last_known.upkeep.compaction.as_ref();
    if let Some(job) = &world.observed.upkeep.compaction {
        let wrote = match &job.state {
            JobState::Succeeded { done, .. } => done.revision,
            JobState::Running | JobState::Failed { .. } => None,
        };
        let uid = job.uid.clone();
        return is_reported(job, told).then_some(UpkeepAction::DeleteCompactionJob { uid, snapshot_revision: wrote });
    }
    // An outcome that is not published yet: the condition still says what led to the request.
    if !world.policy.upkeep.is_compaction_enabled || world.observed.upkeep.fallback != FallbackSnapshot::None {
        return None;
    }
    let events = count_events_since_full(world.observed)?;
    let from = world.observed.full_snapshot.as_ref()?.revision?;
    let failed = told.filter(|told| told.status == ConditionStatus::False);
    if failed.is_some_and(|told| is_backing_off(world, told.reported_at)) {
        return None;
    }
    let wanted = &world.desired.upkeep;
    let limit = wanted
        .full_snapshot_threshold
        .unwrap_or(world.policy.upkeep.full_snapshot_threshold);
    let is_late = failed.is_some_and(|told| {
        told.reason == FailureClass::Deadline.reason() || told.reason == FULL_SNAPSHOT_FAILED
    });
    if events > 0 && (is_late || events >= limit) {
        return has_ready_sidecar(world).then_some(UpkeepAction::RequestFullSnapshot);
    }
    is_compaction_due(world, events, told).then_some(UpkeepAction::StartCompaction { from_revision: from })
}

/// Whether enough has piled up, or it is time.
fn is_compaction_due(world: &World<'_>, events: i64, told: Option<&ReportedOutcome>) -> bool {
    let (wanted, policy) = (&world.desired.upkeep, &world.policy.upkeep);
    if events == 0 {
        return false;
    }
    events >= wanted.events_threshold.unwrap_or(policy.events_threshold)
        || sum_bytes_since_full(world.observed) >= wanted.bytes_threshold.unwrap_or(policy.bytes_threshold)
        || is_schedule_due(world, wanted.compaction_schedule.as_deref(), told)
}

fn plan_drill(world: &World<'_>) -> Option<UpkeepAction> {
    let told = world.last_known.upkeep.drill.as_ref();
    if let Some(job) = &world.observed.upkeep.drill {
        let uid = job.uid.clone();
        return is_reported(job, told).then_some(UpkeepAction::DeleteDrillJob { uid });
    }
    let full = world.observed.full_snapshot.as_ref()?.revision?;
    if !is_schedule_due(world, world.desired.upkeep.drill_schedule.as_deref(), told) {
        return None;
    }
    // Which one it is does not matter, so that it differs does, whatever the schedule.
    let is_older = world.last_known.upkeep.drill_count % OLDER_REVISION_EVERY == OLDER_REVISION_EVERY - 1;
    Some(UpkeepAction::StartDrill {
        to_revision: is_older.then_some(full),
    })
}

/// Whether a Job has ended and that was told.
fn is_reported(job: &ObservedJob, told: Option<&ReportedOutcome>) -> bool {
    let ended = job.state.ended_at().map(format_job_marker);
    !job.is_deleting
        && ended
            .zip(told)
            .is_some_and(|(mark, told)| told.message.contains(&mark))
}

/// How a message says which Job it is about.
pub fn format_job_marker(ended: Timestamp) -> String {
    let whole = Timestamp::from_second(ended.as_second()).unwrap_or(ended);
    format!("({whole})")
}

fn is_backing_off(world: &World<'_>, since: Timestamp) -> bool {
    world.now.duration_since(since).unsigned_abs() < world.policy.upkeep.retry_interval
}

/// When a schedule comes round after the last time: at its moment, or a little later, so that a thousand clusters with one
/// schedule do not start their Jobs in one second. The same cluster is always late by the same.
fn find_next_due(world: &World<'_>, schedule: Option<&str>, told: Option<&ReportedOutcome>) -> Option<Timestamp> {
    let last = told.map(|told| told.reported_at).or(world.desired.upkeep.schedules_since)?;
    let cron = Cron::from_str(schedule?).ok()?;
    let next = cron
        .find_next_occurrence(&last.to_zoned(TimeZone::UTC), false)
        .ok()?;
    let period = cron
        .find_next_occurrence(&next, false)
        .map_or(MAX_SCHEDULE_JITTER, |after| {
            after.timestamp().duration_since(next.timestamp())
        });
    let spread = (period / 2).min(MAX_SCHEDULE_JITTER).as_secs().unsigned_abs().max(1);
    let share = i64::try_from(hash_value(&world.desired.key()) % spread).unwrap_or_default();
    next.timestamp()
        .checked_add(SignedDuration::from_secs(share))
        .ok()
}

/// Whether a schedule has passed since the last time.
fn is_schedule_due(world: &World<'_>, schedule: Option<&str>, told: Option<&ReportedOutcome>) -> bool {
    find_next_due(world, schedule, told).is_some_and(|due| due <= world.now)
}

/// When a schedule asks for something although nothing happens.
pub fn time_until_change(world: &World<'_>) -> Option<Duration> {
    world.desired.backup.as_ref()?;
    let (wanted, known) = (&world.desired.upkeep, &world.last_known.upkeep);
    let schedules = [
        (&wanted.compaction_schedule, &known.compaction),
        (&wanted.drill_schedule, &known.drill),
    ];
    let next = schedules.into_iter().filter_map(|(schedule, told)| {
        let due = find_next_due(world, schedule.as_deref(), told.as_ref())?;
        let ahead = due.duration_since(world.now).max(SignedDuration::ZERO);
        Some(ahead.unsigned_abs() + Duration::from_secs(1))
    });
    // What is overdue waits for something else, of which events tell.
    next.filter(|ahead| *ahead > Duration::from_secs(1)).min()
}

/// Whether somebody is there to take a snapshot.
fn has_ready_sidecar(world: &World<'_>) -> bool {
    world
        .observed
        .pods
        .values()
        .any(|pod| pod.is_ready && !pod.is_deleting)
}

#[cfg(test)]
mod tests;

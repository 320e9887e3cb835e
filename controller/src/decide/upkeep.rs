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
use crate::caches::number;
use crate::observe::{FailureClass, FallBack, JobState, Observation, SeenJob};

/// Numbers of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpkeepPolicy {
    /// Whether deltas are folded at all.
    pub compacts: bool,
    /// After so many changes.
    pub events: i64,
    /// After so many bytes.
    pub bytes: u64,
    /// At so many changes, etcd itself is asked.
    pub full_events: i64,
    /// The pause after a Job that failed.
    pub pause: Duration,
    /// How long a Job may take.
    pub deadline: Duration,
}

impl Default for UpkeepPolicy {
    fn default() -> Self {
        Self {
            compacts: true,
            events: 1_000_000,
            bytes: 1 << 30,
            full_events: 3_000_000,
            pause: Duration::from_mins(10),
            deadline: Duration::from_hours(3),
        }
    }
}

impl UpkeepPolicy {
    /// What the operator's configuration says.
    pub fn of(compaction: &crate::config::Compaction) -> Self {
        Self {
            compacts: compaction.enabled,
            events: compaction.events_threshold,
            full_events: compaction.trigger_full_snapshot_threshold,
            deadline: compaction.active_deadline_duration,
            ..Self::default()
        }
    }
}

/// What the spec asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedUpkeep {
    /// After so many changes; the operator's number when absent.
    pub events: Option<i64>,
    /// After so many bytes; the operator's number when absent.
    pub bytes: Option<u64>,
    /// At so many changes, etcd itself is asked; the operator's number when absent.
    pub full_events: Option<i64>,
    /// When deltas are folded whatever has piled up.
    pub compaction: Option<String>,
    /// When a restore is rehearsed.
    pub drill: Option<String>,
    /// Since when the resource exists: schedules count from then.
    pub since: Option<Timestamp>,
}

/// What was told about the upkeep before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownUpkeep {
    /// About the last compaction.
    pub compaction: Option<Told>,
    /// About the last rehearsal.
    pub drill: Option<Told>,
    /// How many rehearsals there were.
    pub drills: u32,
}

/// What was told about a Job.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// Whether it went well.
    pub status: ConditionStatus,
    /// Why, in one word.
    pub reason: String,
    /// In words.
    pub message: String,
    /// When.
    pub at: Timestamp,
}

/// Something to do for the backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chore {
    /// Starts the Job that folds deltas.
    Compact {
        /// The revision of the full snapshot it begins with: that and what follows must stay.
        from: i64,
    },
    /// Asks the leader's sidecar for a full snapshot.
    FullSnapshot,
    /// Removes the Job that folded deltas, after its outcome was told.
    RetireCompaction {
        /// This very one.
        uid: String,
        /// The revision of the full snapshot it has written.
        wrote: Option<i64>,
    },
    /// Starts the Job that rehearses a restore.
    Drill {
        /// Up to which revision; the newest when absent.
        to: Option<i64>,
    },
    /// Removes the Job that rehearsed, after its outcome was told.
    RetireDrill {
        /// This very one.
        uid: String,
    },
    /// Shows a sign of life of a pin, whose Job still reads.
    KeepPin {
        /// Which.
        pin: PinOf,
        /// This revision and what follows must stay.
        from: i64,
    },
}

/// Whose pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinOf {
    /// The Job that folds deltas.
    Compaction,
    /// The Job that rehearses a restore.
    Drill,
}

impl PinOf {
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
pub const FULL_TAKEN: &str = "FullSnapshotTakenSuccessfully";
/// And for one that was not.
pub const FULL_FAILED: &str = "ErrorTriggeringFullSnapshot";
/// Every how many rehearsals an older state is tried.
const OLDER_EVERY: u32 = 4;
/// Over how long what many clusters have scheduled for the same moment is spread, at most.
const SPREAD: SignedDuration = SignedDuration::from_mins(10);

/// What is to be done now.
pub fn chores(world: &World<'_>) -> Vec<Chore> {
    if world.wanted.backup.is_none() || world.seen.recovery.open().is_some() {
        return Vec::new();
    }
    let upkeep = &world.seen.upkeep;
    let pins = [
        (PinOf::Compaction, &upkeep.compaction),
        (PinOf::Drill, &upkeep.drill),
    ];
    let pins = pins
        .into_iter()
        .filter_map(|(pin, job)| keep_pin(world, pin, job.as_ref()?));
    let jobs = compaction(world).into_iter().chain(drill(world));
    jobs.chain(pins).collect()
}

/// What a Job reads stays for as long as it reads; a pin that is gone is set again.
fn keep_pin(world: &World<'_>, pin: PinOf, job: &SeenJob) -> Option<Chore> {
    let is_running = job.state == JobState::Running && !job.is_deleting;
    let seen = world.seen.upkeep.pins.get(pin.name());
    let age = |renewed| world.now.duration_since(renewed).unsigned_abs();
    let is_due = seen.is_none_or(|seen| age(seen.renewed) >= PIN_RENEWAL);
    let full = || world.seen.full_snapshot.as_ref()?.revision;
    let from = seen.map(|seen| seen.from).or_else(full)?;
    (is_running && is_due).then_some(Chore::KeepPin { pin, from })
}

/// Changes since the last full snapshot.
pub fn piled_up(seen: &Observation) -> Option<i64> {
    let full = seen.full_snapshot.as_ref()?.revision?;
    let delta = seen.delta_snapshot.as_ref()?.revision?;
    Some(delta.saturating_sub(full).max(0))
}

/// Bytes of deltas since the last full snapshot. A sidecar hears minutes later of one that a Job has stored: what it tells until
/// then is folded already.
fn bytes_piled_up(seen: &Observation) -> u64 {
    let full = seen.full_snapshot.as_ref().and_then(|full| full.revision);
    let known = seen.upkeep.pile.filter(|pile| Some(pile.since) >= full);
    known.map_or(0, |pile| pile.bytes)
}

fn compaction(world: &World<'_>) -> Option<Chore> {
    let told = world.known.upkeep.compaction.as_ref();
    if let Some(job) = &world.seen.upkeep.compaction {
        let wrote = match &job.state {
            JobState::Succeeded { done, .. } => done.revision,
            JobState::Running | JobState::Failed { .. } => None,
        };
        let uid = job.uid.clone();
        return is_over(job, told).then_some(Chore::RetireCompaction { uid, wrote });
    }
    // An outcome that is not published yet: the condition still says what led to the request.
    if !world.policy.upkeep.compacts || world.seen.upkeep.fall_back != FallBack::None {
        return None;
    }
    let events = piled_up(world.seen)?;
    let from = world.seen.full_snapshot.as_ref()?.revision?;
    let failed = told.filter(|told| told.status == ConditionStatus::False);
    if failed.is_some_and(|told| is_resting(world, told.at)) {
        return None;
    }
    let wanted = &world.wanted.upkeep;
    let limit = wanted
        .full_events
        .unwrap_or(world.policy.upkeep.full_events);
    let is_late = failed.is_some_and(|told| {
        told.reason == FailureClass::Deadline.reason() || told.reason == FULL_FAILED
    });
    if events > 0 && (is_late || events >= limit) {
        return has_sidecar(world).then_some(Chore::FullSnapshot);
    }
    is_due(world, events, told).then_some(Chore::Compact { from })
}

/// Whether enough has piled up, or it is time.
fn is_due(world: &World<'_>, events: i64, told: Option<&Told>) -> bool {
    let (wanted, policy) = (&world.wanted.upkeep, &world.policy.upkeep);
    if events == 0 {
        return false;
    }
    events >= wanted.events.unwrap_or(policy.events)
        || bytes_piled_up(world.seen) >= wanted.bytes.unwrap_or(policy.bytes)
        || is_time(world, wanted.compaction.as_deref(), told)
}

fn drill(world: &World<'_>) -> Option<Chore> {
    let told = world.known.upkeep.drill.as_ref();
    if let Some(job) = &world.seen.upkeep.drill {
        let uid = job.uid.clone();
        return is_over(job, told).then_some(Chore::RetireDrill { uid });
    }
    let full = world.seen.full_snapshot.as_ref()?.revision?;
    if !is_time(world, world.wanted.upkeep.drill.as_deref(), told) {
        return None;
    }
    // Which one it is does not matter, so that it differs does, whatever the schedule.
    let is_older = world.known.upkeep.drills % OLDER_EVERY == OLDER_EVERY - 1;
    Some(Chore::Drill {
        to: is_older.then_some(full),
    })
}

/// Whether a Job has ended and that was told.
fn is_over(job: &SeenJob, told: Option<&Told>) -> bool {
    let ended = job.state.ended().map(mark);
    !job.is_deleting
        && ended
            .zip(told)
            .is_some_and(|(mark, told)| told.message.contains(&mark))
}

/// How a message says which Job it is about.
pub fn mark(ended: Timestamp) -> String {
    let whole = Timestamp::from_second(ended.as_second()).unwrap_or(ended);
    format!("({whole})")
}

fn is_resting(world: &World<'_>, since: Timestamp) -> bool {
    world.now.duration_since(since).unsigned_abs() < world.policy.upkeep.pause
}

/// When a schedule comes round after the last time: at its moment, or a little later, so that a thousand clusters with one
/// schedule do not start their Jobs in one second. The same cluster is always late by the same.
fn due(world: &World<'_>, schedule: Option<&str>, told: Option<&Told>) -> Option<Timestamp> {
    let last = told.map(|told| told.at).or(world.wanted.upkeep.since)?;
    let cron = Cron::from_str(schedule?).ok()?;
    let next = cron
        .find_next_occurrence(&last.to_zoned(TimeZone::UTC), false)
        .ok()?;
    let period = cron
        .find_next_occurrence(&next, false)
        .map_or(SPREAD, |after| {
            after.timestamp().duration_since(next.timestamp())
        });
    let spread = (period / 2).min(SPREAD).as_secs().unsigned_abs().max(1);
    let share = i64::try_from(number(&world.wanted.key()) % spread).unwrap_or_default();
    next.timestamp()
        .checked_add(SignedDuration::from_secs(share))
        .ok()
}

/// Whether a schedule has passed since the last time.
fn is_time(world: &World<'_>, schedule: Option<&str>, told: Option<&Told>) -> bool {
    due(world, schedule, told).is_some_and(|due| due <= world.now)
}

/// When a schedule asks for something although nothing happens.
pub fn next_change(world: &World<'_>) -> Option<Duration> {
    world.wanted.backup.as_ref()?;
    let (wanted, known) = (&world.wanted.upkeep, &world.known.upkeep);
    let schedules = [
        (&wanted.compaction, &known.compaction),
        (&wanted.drill, &known.drill),
    ];
    let next = schedules.into_iter().filter_map(|(schedule, told)| {
        let due = due(world, schedule.as_deref(), told.as_ref())?;
        let ahead = due.duration_since(world.now).max(SignedDuration::ZERO);
        Some(ahead.unsigned_abs() + Duration::from_secs(1))
    });
    // What is overdue waits for something else, of which events tell.
    next.filter(|ahead| *ahead > Duration::from_secs(1)).min()
}

/// Whether somebody is there to take a snapshot.
fn has_sidecar(world: &World<'_>) -> bool {
    world
        .seen
        .pods
        .values()
        .any(|pod| pod.is_ready && !pod.is_deleting)
}

#[cfg(test)]
mod tests;

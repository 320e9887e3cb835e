//! Gives the free pages of a database back to the disk, member by member, while the cluster goes on answering.
//!
//! ```text
//! cron or threshold, while leading ─► observe ─► decide ─┬ follower ─► defragment ─► wait until it is well ─┐
//!                                       ▲                ├ leader ───► move leadership away ────────────────┤
//!                                       └────────────────┴──────────────────────────────────────────────────┘
//! ```
//!
//! **Holds**: one member at a time; nobody has a turn while a voter is not well; a member that leads is never defragmented,
//! unless it is alone; no turn begins during a full snapshot of this sidecar, nor the other way round.
//!
//! **Who does it**: the sidecar whose member leads when it is time. It finishes what it began: by moving leadership away it
//! stops being the one that takes backups, and then defragments its own member, a follower now. The sidecar
//! of the new leader had its tick of the schedule while it did not lead, and begins nothing before its next. A
//! threshold it finds exceeded meanwhile has to wait: a member that is being defragmented answers no
//! linearizable read, and so is not well.
//!
//! **After a crash**: a member not reached waits for the next time.

mod act;
pub mod args;
pub mod decide;
pub mod observe;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_ids::MemberId;
use mainstay_telemetry::ErrorChain;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{CallError, Connect, MaintenanceMetrics, MaintenanceOutcome, elapsed_since};
use crate::ask::Snapshotter;
use crate::schedule::{Schedule, ScheduleTimer};
use crate::state::{SidecarRole, StateReceiver};
use decide::{DefragmentRefusal, DefragmentStep, Threshold, DefragmentTrigger};

/// How often sizes are compared with the threshold. Free pages come from compactions, minutes apart.
const THRESHOLD_CHECK_INTERVAL: Duration = Duration::from_mins(10);
/// Sleeps are cut into pieces, so that a clock that is set does not move the schedule.
const MAX_SLEEP: Duration = Duration::from_mins(1);
/// Pause before what is left of a failed pass is tried again.
const RETRY_AFTER: Duration = Duration::from_mins(1);
/// How often a scheduled pass is tried before it waits for the next time.
const MAX_ATTEMPTS: usize = 10;
/// How long a delta may take before leadership is moved without it.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// Leadership that keeps coming back is not chased.
const MAX_LEADER_MOVES: usize = 3;

/// When and how to defragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefragmentConfig {
    /// When it is time for all members; `None` for never.
    pub schedule: Option<Schedule>,
    /// When a member is so full of air that it cannot wait; `None` for never.
    pub threshold: Option<Threshold>,
    /// How long one member may take.
    pub timeout: Duration,
}

/// Why a pass ended before all members had their turn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DefragmentError {
    /// The members could not be listed.
    #[error("look at the members")]
    Observe(#[source] CallError),
    /// It is not the time.
    #[error("not now: {0}")]
    Refused(DefragmentRefusal),
    /// The leader keeps its post.
    #[error("move leadership from {leader} to {to}")]
    MoveLeader {
        /// Who leads.
        leader: MemberId,
        /// Who was to lead.
        to: MemberId,
        /// What happened.
        source: CallError,
    },
    /// It is given away, and comes back.
    #[error("leadership came back {MAX_LEADER_MOVES} times")]
    LeadershipReturned,
    /// A member could not be defragmented.
    #[error("defragment {member} at {url}")]
    Defragment {
        /// Who.
        member: MemberId,
        /// Where.
        url: String,
        /// What happened.
        source: CallError,
    },
    /// A member was defragmented and did not come back in time.
    #[error("{member} at {url} is not well {limit:?} after its defragmentation")]
    Unhealthy {
        /// Who.
        member: MemberId,
        /// Where.
        url: String,
        /// How long was waited.
        limit: Duration,
    },
    /// Whoever shares the permit is gone: the process is stopping.
    #[error("the permit shared with full snapshots was withdrawn")]
    Closed,
}

/// Defragments the cluster of one etcd.
pub struct Defragmenter {
    connector: Arc<dyn Connect>,
    /// One permit, shared with full snapshots.
    maintenance_lock: Arc<Semaphore>,
    config: DefragmentConfig,
    metrics: Arc<dyn MaintenanceMetrics>,
    snapshotter: Option<Arc<dyn Snapshotter>>,
    clock: Clock,
}

/// Reads the wall clock.
type Clock = Box<dyn Fn() -> Timestamp + Send + Sync>;

impl Defragmenter {
    /// `quiet` has one permit; whoever holds it keeps the others from working on the database.
    pub fn new(
        connect: Arc<dyn Connect>,
        maintenance_lock: Arc<Semaphore>,
        config: DefragmentConfig,
        metrics: Arc<dyn MaintenanceMetrics>,
    ) -> Self {
        Self {
            connector: connect,
            maintenance_lock,
            config,
            metrics,
            snapshotter: None,
            clock: Box::new(Timestamp::now),
        }
    }

    /// Follows its schedule by another clock than the wall clock.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        self.clock = Box::new(clock);
        self
    }

    /// Has what was captured stored before leadership is moved away.
    #[must_use]
    pub fn with_snapshotter(mut self, snapshots: Arc<dyn Snapshotter>) -> Self {
        self.snapshotter = Some(snapshots);
        self
    }

    /// Begins a pass whenever it is time and this sidecar leads, until cancelled.
    ///
    /// Belongs to the process, not to a term of leadership: a pass moves leadership away and goes on.
    pub async fn run(self, view: StateReceiver, cancel: CancellationToken) {
        let schedule = self.config.schedule.clone();
        let mut schedule = schedule.map(|s| ScheduleTimer::new(s, (self.clock)()));
        let mut last_check = (self.clock)();
        loop {
            let delay = compute_sleep(schedule.as_ref().and_then(ScheduleTimer::next_at), (self.clock)());
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(delay) => {}
            }
            let now = (self.clock)();
            let trigger = if schedule.as_mut().is_some_and(|s| s.poll_due(now)) {
                DefragmentTrigger::Schedule
            } else if self.config.threshold.is_some() && is_check_due(last_check, now) {
                DefragmentTrigger::Threshold
            } else {
                continue;
            };
            last_check = now;
            if view.borrow().role != SidecarRole::Leader {
                continue;
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.run_with_retries(trigger) => {}
            }
        }
    }

    /// A scheduled pass is tried until all had their turn; the threshold is looked at again anyway.
    async fn run_with_retries(&self, trigger: DefragmentTrigger) {
        let mut done = BTreeSet::new();
        for attempt in 1..=MAX_ATTEMPTS {
            match self.run_once(trigger, &mut done).await {
                Ok(()) => {
                    if !done.is_empty() {
                        info!(members = done.len(), "defragmentation is complete");
                    }
                    return;
                }
                Err(DefragmentError::Refused(DefragmentRefusal::SingleMember)) => {
                    debug!("a single member is defragmented on schedule only");
                    return;
                }
                Err(error) => {
                    warn!(attempt, error = %ErrorChain(&error), "defragmentation did not finish");
                }
            }
            if trigger == DefragmentTrigger::Threshold {
                return;
            }
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    /// Gives each member its turn. `done` are those that had it; they are added as they come back.
    ///
    /// # Errors
    /// [`DefragmentError`]; members in `done` stay done, so that the rest can be tried later.
    pub async fn run_once(
        &self,
        trigger: DefragmentTrigger,
        done: &mut BTreeSet<MemberId>,
    ) -> Result<(), DefragmentError> {
        let threshold = self.config.threshold.unwrap_or(Threshold {
            free_percent: 100,
            minimum_bytes: u64::MAX,
        });
        let mut handed_over = 0;
        loop {
            let permit = self.maintenance_lock.acquire().await;
            let _permit = permit.map_err(|_| DefragmentError::Closed)?;
            let connect = self.connector.as_ref();
            let observed = observe::observe_cluster(connect)
                .await
                .map_err(DefragmentError::Observe)?;
            match decide::next_step(&observed, done, trigger, &threshold) {
                DefragmentStep::Done => return Ok(()),
                DefragmentStep::Refuse(refusal) => return Err(DefragmentError::Refused(refusal)),
                DefragmentStep::MoveLeader { .. } if handed_over == MAX_LEADER_MOVES => {
                    return Err(DefragmentError::LeadershipReturned);
                }
                DefragmentStep::MoveLeader { leader, url, to } => {
                    handed_over += 1;
                    info!(member = %leader, "leadership is moved away before defragmentation");
                    self.flush_delta().await;
                    let moved = act::move_leader(connect, leader, &url, to).await;
                    moved.map_err(|source| DefragmentError::MoveLeader { leader, to, source })?;
                }
                DefragmentStep::Defragment { member, url } => {
                    self.defragment_member(member, &url).await?;
                    done.insert(member);
                }
            }
        }
    }

    /// A delta now is one the next leader need not capture again. Without it nothing is lost.
    async fn flush_delta(&self) {
        let Some(snapshots) = &self.snapshotter else {
            return;
        };
        match tokio::time::timeout(FLUSH_TIMEOUT, snapshots.take_delta()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => debug!(error = %ErrorChain(&error), "no delta before leadership moves"),
            Err(_) => debug!("no delta in time before leadership moves"),
        }
    }

    /// One member: defragment, then wait until it is well.
    async fn defragment_member(&self, member: MemberId, url: &str) -> Result<(), DefragmentError> {
        let start = Timestamp::now();
        let connect = self.connector.as_ref();
        let outcome = act::defragment(connect, url, self.config.timeout).await;
        let outcome = outcome.map_err(|source| DefragmentError::Defragment {
            member,
            url: url.to_owned(),
            source,
        });
        let word = match outcome {
            Ok(()) => MaintenanceOutcome::Succeeded,
            Err(_) => MaintenanceOutcome::Failed,
        };
        self.metrics.record_defragmentation(url, word, elapsed_since(start));
        outcome?;
        info!(member = %member, elapsed_ms = elapsed_since(start).as_millis(), "member defragmented");
        if act::wait_until_healthy(connect, url).await {
            return Ok(());
        }
        Err(DefragmentError::Unhealthy {
            member,
            url: url.to_owned(),
            limit: act::RECOVERY_TIMEOUT,
        })
    }
}

/// Whether it is time to compare sizes with the threshold again.
fn is_check_due(last_check: Timestamp, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(last_check)).is_ok_and(|passed| passed >= THRESHOLD_CHECK_INTERVAL)
}

/// How long to sleep before looking at the clock again.
fn compute_sleep(next_time: Option<Timestamp>, now: Timestamp) -> Duration {
    let left = next_time.map(|time| time.duration_since(now));
    // What is due already has been waited for; a negative span is that.
    let left = left.map(|left| Duration::try_from(left).unwrap_or_default());
    left.map_or(MAX_SLEEP, |left| left.min(MAX_SLEEP))
}

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
use mainstay_telemetry::Chain;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{CallError, Connect, MaintenanceMetrics, Outcome, since};
use crate::ask::Snapshots;
use crate::schedule::{Schedule, Upcoming};
use crate::state::{Standing, View};
use decide::{Refusal, Step, Threshold, Trigger};

/// How often sizes are compared with the threshold. Free pages come from compactions, minutes apart.
const LOOK_EVERY: Duration = Duration::from_mins(10);
/// Sleeps are cut into pieces, so that a clock that is set does not move the schedule.
const LONGEST_SLEEP: Duration = Duration::from_mins(1);
/// Pause before what is left of a failed pass is tried again.
const RETRY_AFTER: Duration = Duration::from_mins(1);
/// How often a scheduled pass is tried before it waits for the next time.
const ATTEMPTS: usize = 10;
/// How long a delta may take before leadership is moved without it.
const FLUSH: Duration = Duration::from_secs(10);
/// Leadership that keeps coming back is not chased.
const MOST_MOVES: usize = 3;

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
    Refused(Refusal),
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
    #[error("leadership came back {MOST_MOVES} times")]
    Restless,
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
    NotWell {
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
    connect: Arc<dyn Connect>,
    /// One permit, shared with full snapshots.
    quiet: Arc<Semaphore>,
    config: DefragmentConfig,
    metrics: Arc<dyn MaintenanceMetrics>,
    snapshots: Option<Arc<dyn Snapshots>>,
    clock: Clock,
}

/// Reads the wall clock.
type Clock = Box<dyn Fn() -> Timestamp + Send + Sync>;

impl Defragmenter {
    /// `quiet` has one permit; whoever holds it keeps the others from working on the database.
    pub fn new(
        connect: Arc<dyn Connect>,
        quiet: Arc<Semaphore>,
        config: DefragmentConfig,
        metrics: Arc<dyn MaintenanceMetrics>,
    ) -> Self {
        Self {
            connect,
            quiet,
            config,
            metrics,
            snapshots: None,
            clock: Box::new(Timestamp::now),
        }
    }

    /// Follows its schedule by another clock than the wall clock.
    #[must_use]
    pub fn by_clock(mut self, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        self.clock = Box::new(clock);
        self
    }

    /// Has what was captured stored before leadership is moved away.
    #[must_use]
    pub fn flushing(mut self, snapshots: Arc<dyn Snapshots>) -> Self {
        self.snapshots = Some(snapshots);
        self
    }

    /// Begins a pass whenever it is time and this sidecar leads, until cancelled.
    ///
    /// Belongs to the process, not to a term of leadership: a pass moves leadership away and goes on.
    pub async fn run(self, view: View, cancel: CancellationToken) {
        let schedule = self.config.schedule.clone();
        let mut schedule = schedule.map(|s| Upcoming::new(s, (self.clock)()));
        let mut looked = (self.clock)();
        loop {
            let nap = nap(schedule.as_ref().and_then(Upcoming::at), (self.clock)());
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(nap) => {}
            }
            let now = (self.clock)();
            let trigger = if schedule.as_mut().is_some_and(|s| s.has_come(now)) {
                Trigger::Schedule
            } else if self.config.threshold.is_some() && is_due(looked, now) {
                Trigger::Threshold
            } else {
                continue;
            };
            looked = now;
            if view.borrow().standing != Standing::Leader {
                continue;
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.attempt(trigger) => {}
            }
        }
    }

    /// A scheduled pass is tried until all had their turn; the threshold is looked at again anyway.
    async fn attempt(&self, trigger: Trigger) {
        let mut done = BTreeSet::new();
        for attempt in 1..=ATTEMPTS {
            match self.pass(trigger, &mut done).await {
                Ok(()) => {
                    if !done.is_empty() {
                        info!(members = done.len(), "defragmentation is complete");
                    }
                    return;
                }
                Err(DefragmentError::Refused(Refusal::Alone)) => {
                    debug!("a single member is defragmented on schedule only");
                    return;
                }
                Err(error) => {
                    warn!(attempt, error = %Chain(&error), "defragmentation did not finish");
                }
            }
            if trigger == Trigger::Threshold {
                return;
            }
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    /// Gives each member its turn. `done` are those that had it; they are added as they come back.
    ///
    /// # Errors
    /// [`DefragmentError`]; members in `done` stay done, so that the rest can be tried later.
    pub async fn pass(
        &self,
        trigger: Trigger,
        done: &mut BTreeSet<MemberId>,
    ) -> Result<(), DefragmentError> {
        let threshold = self.config.threshold.unwrap_or(Threshold {
            free_percent: 100,
            minimum_bytes: u64::MAX,
        });
        let mut handed_over = 0;
        loop {
            let permit = self.quiet.acquire().await;
            let _permit = permit.map_err(|_| DefragmentError::Closed)?;
            let connect = self.connect.as_ref();
            let seen = observe::observe(connect)
                .await
                .map_err(DefragmentError::Observe)?;
            match decide::next(&seen, done, trigger, &threshold) {
                Step::Done => return Ok(()),
                Step::Refuse(refusal) => return Err(DefragmentError::Refused(refusal)),
                Step::MoveLeader { .. } if handed_over == MOST_MOVES => {
                    return Err(DefragmentError::Restless);
                }
                Step::MoveLeader { leader, url, to } => {
                    handed_over += 1;
                    info!(member = %leader, "leadership is moved away before defragmentation");
                    self.flush().await;
                    let moved = act::move_leader(connect, leader, &url, to).await;
                    moved.map_err(|source| DefragmentError::MoveLeader { leader, to, source })?;
                }
                Step::Defragment { member, url } => {
                    self.turn(member, &url).await?;
                    done.insert(member);
                }
            }
        }
    }

    /// A delta now is one the next leader need not capture again. Without it nothing is lost.
    async fn flush(&self) {
        let Some(snapshots) = &self.snapshots else {
            return;
        };
        match tokio::time::timeout(FLUSH, snapshots.delta()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => debug!(error = %Chain(&error), "no delta before leadership moves"),
            Err(_) => debug!("no delta in time before leadership moves"),
        }
    }

    /// One member: defragment, then wait until it is well.
    async fn turn(&self, member: MemberId, url: &str) -> Result<(), DefragmentError> {
        let start = Timestamp::now();
        let connect = self.connect.as_ref();
        let outcome = act::defragment(connect, url, self.config.timeout).await;
        let outcome = outcome.map_err(|source| DefragmentError::Defragment {
            member,
            url: url.to_owned(),
            source,
        });
        let word = match outcome {
            Ok(()) => Outcome::Succeeded,
            Err(_) => Outcome::Failed,
        };
        self.metrics.defragmented(url, word, since(start));
        outcome?;
        info!(member = %member, elapsed_ms = since(start).as_millis(), "member defragmented");
        if act::until_well(connect, url).await {
            return Ok(());
        }
        Err(DefragmentError::NotWell {
            member,
            url: url.to_owned(),
            limit: act::CONVALESCENCE,
        })
    }
}

/// Whether it is time to compare sizes with the threshold again.
fn is_due(looked: Timestamp, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(looked)).is_ok_and(|passed| passed >= LOOK_EVERY)
}

/// How long to sleep before looking at the clock again.
fn nap(next_time: Option<Timestamp>, now: Timestamp) -> Duration {
    let left = next_time.map(|time| time.duration_since(now));
    // What is due already has been waited for; a negative span is that.
    let left = left.map(|left| Duration::try_from(left).unwrap_or_default());
    left.map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP))
}

//! Defragments etcd databases member by member, while the cluster keeps serving.
//!
//! ```text
//! cron or threshold, while leading ─► observe ─► decide ─┬ follower ─► defragment ─► wait until healthy ────┐
//!                                       ▲                ├ leader ───► move leadership away ────────────────┤
//!                                       └────────────────┴──────────────────────────────────────────────────┘
//! ```
//!
//! **Invariants**: one member at a time; no member is defragmented while a voter is unhealthy; the leader is never
//! defragmented, unless it is the only member; defragmentation and full snapshots of this sidecar exclude each other.
//!
//! **Which sidecar**: the one whose member leads when the schedule fires. It finishes what it started: after it has moved
//! leadership away, it no longer takes backups and defragments its own member, now a follower. The sidecar of the new
//! leader was not leading when the schedule fired, and starts nothing before the next time. If it finds the threshold
//! exceeded meanwhile, it has to wait: a member that is being defragmented answers no linearizable read and therefore
//! counts as unhealthy.
//!
//! **After a crash**: members not yet defragmented wait for the next schedule.

mod actions;
pub(crate) mod args;
pub mod decision;
pub mod observation;

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
use crate::schedule::{Schedule, ScheduleTimer};
use crate::snapshotter::Snapshotter;
use crate::state::{SidecarRole, StateReceiver};
use decision::{DefragmentRefusal, DefragmentStep, DefragmentTrigger, Threshold};

/// Interval of threshold checks. Free pages come from compactions, which are minutes apart.
const THRESHOLD_CHECK_INTERVAL: Duration = Duration::from_mins(10);
/// Longest single sleep: the schedule follows the wall clock, which may be set meanwhile.
const MAX_SLEEP: Duration = Duration::from_mins(1);
/// Pause before a failed run is retried for the remaining members.
const RETRY_AFTER: Duration = Duration::from_mins(1);
/// Attempts of a scheduled run before it waits for the next schedule.
const MAX_ATTEMPTS: usize = 10;
/// Timeout of the delta stored before leadership is moved.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts to move leadership away in one run.
const MAX_LEADER_MOVES: usize = 3;

/// Settings of defragmentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefragmentConfig {
    /// `None` disables scheduled defragmentation.
    pub schedule: Option<Schedule>,
    /// `None` disables defragmentation by free space.
    pub threshold: Option<Threshold>,
    /// Limit for one member.
    pub timeout: Duration,
}

/// Why a run ended before all members were defragmented.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DefragmentError {
    #[error("read the status of the members")]
    Observe(#[source] CallError),
    #[error("postponed: {0}")]
    Refused(DefragmentRefusal),
    #[error("move leadership from {leader} to {to}")]
    MoveLeader {
        leader: MemberId,
        to: MemberId,
        source: CallError,
    },
    #[error("leadership returned to the member {MAX_LEADER_MOVES} times")]
    LeadershipReturned,
    #[error("defragment member {member} at {url}")]
    Defragment {
        member: MemberId,
        url: String,
        source: CallError,
    },
    #[error("member {member} at {url} is not healthy {limit:?} after its defragmentation")]
    Unhealthy {
        member: MemberId,
        url: String,
        limit: Duration,
    },
    /// The semaphore shared with full snapshots is closed.
    #[error("the process is stopping")]
    Closed,
}

/// Defragments the members of one etcd cluster.
pub struct Defragmenter {
    connector: Arc<dyn Connect>,
    /// One permit: full snapshots and defragmentation exclude each other.
    maintenance_lock: Arc<Semaphore>,
    config: DefragmentConfig,
    metrics: Arc<dyn MaintenanceMetrics>,
    snapshotter: Option<Arc<dyn Snapshotter>>,
    clock: Clock,
}

type Clock = Box<dyn Fn() -> Timestamp + Send + Sync>;

impl Defragmenter {
    /// `maintenance_lock` must have one permit and be shared with the full snapshotter.
    pub fn new(
        connector: Arc<dyn Connect>,
        maintenance_lock: Arc<Semaphore>,
        config: DefragmentConfig,
        metrics: Arc<dyn MaintenanceMetrics>,
    ) -> Self {
        Self {
            connector,
            maintenance_lock,
            config,
            metrics,
            snapshotter: None,
            clock: Box::new(Timestamp::now),
        }
    }

    /// Replaces the wall clock.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        self.clock = Box::new(clock);
        self
    }

    /// Stores a delta before leadership is moved away.
    #[must_use]
    pub fn with_snapshotter(mut self, snapshots: Arc<dyn Snapshotter>) -> Self {
        self.snapshotter = Some(snapshots);
        self
    }

    /// Starts a run whenever one is due and this sidecar leads, until cancelled.
    ///
    /// Lives as long as the process, not as a session: a run moves leadership away and continues.
    pub async fn run(self, view: StateReceiver, cancel: CancellationToken) {
        let schedule = self.config.schedule.clone();
        let mut schedule = schedule.map(|s| ScheduleTimer::new(s, (self.clock)()));
        let mut last_check = (self.clock)();
        loop {
            let delay = compute_sleep(
                schedule.as_ref().and_then(ScheduleTimer::next_at),
                (self.clock)(),
            );
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
            // The schedule counts as handled also on followers: the sidecar that leads now runs it.
            if view.borrow().role != SidecarRole::Leader {
                continue;
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.run_with_retries(trigger) => {}
            }
        }
    }

    /// Retries a scheduled run until all members are defragmented. A threshold run is not retried: it is checked
    /// periodically anyway.
    async fn run_with_retries(&self, trigger: DefragmentTrigger) {
        let mut done = BTreeSet::new();
        for attempt in 1..=MAX_ATTEMPTS {
            match self.run_once(trigger, &mut done).await {
                Ok(()) => {
                    if !done.is_empty() {
                        info!(members = done.len(), "defragmentation finished");
                    }
                    return;
                }
                Err(DefragmentError::Refused(DefragmentRefusal::SingleMember)) => {
                    debug!(
                        "threshold ignored: a single-member cluster is defragmented on schedule only"
                    );
                    return;
                }
                Err(error) => {
                    warn!(attempt, error = %ErrorChain(&error), "defragmentation not finished");
                }
            }
            if trigger == DefragmentTrigger::Threshold {
                return;
            }
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    /// Defragments every due member that is not in `done`, and adds each one once it is healthy again.
    ///
    /// # Errors
    /// [`DefragmentError`]; members in `done` stay there, so that a retry handles only the rest.
    pub async fn run_once(
        &self,
        trigger: DefragmentTrigger,
        done: &mut BTreeSet<MemberId>,
    ) -> Result<(), DefragmentError> {
        // Without a threshold, no member may ever exceed it.
        let threshold = self.config.threshold.unwrap_or(Threshold {
            free_percent: 100,
            minimum_bytes: u64::MAX,
        });
        let mut leader_moves = 0;
        loop {
            // Acquired per step, so that a due full snapshot can run between two members.
            let permit = self.maintenance_lock.acquire().await;
            let _permit = permit.map_err(|_| DefragmentError::Closed)?;
            let connect = self.connector.as_ref();
            let observed = observation::observe_cluster(connect)
                .await
                .map_err(DefragmentError::Observe)?;
            match decision::next_step(&observed, done, trigger, &threshold) {
                DefragmentStep::Done => return Ok(()),
                DefragmentStep::Refuse(refusal) => return Err(DefragmentError::Refused(refusal)),
                DefragmentStep::MoveLeader { .. } if leader_moves == MAX_LEADER_MOVES => {
                    return Err(DefragmentError::LeadershipReturned);
                }
                DefragmentStep::MoveLeader { leader, url, to } => {
                    leader_moves += 1;
                    info!(member = %leader, "moving leadership away before defragmentation");
                    self.flush_delta().await;
                    let moved = actions::move_leader(connect, leader, &url, to).await;
                    moved.map_err(|source| DefragmentError::MoveLeader { leader, to, source })?;
                }
                DefragmentStep::Defragment { member, url } => {
                    self.defragment_member(member, &url).await?;
                    done.insert(member);
                }
            }
        }
    }

    /// Stores a delta, which the next leader then need not capture again. Without it nothing is lost.
    async fn flush_delta(&self) {
        let Some(snapshots) = &self.snapshotter else {
            return;
        };
        match tokio::time::timeout(FLUSH_TIMEOUT, snapshots.take_delta()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                debug!(error = %ErrorChain(&error), "failed to store a delta before moving leadership");
            }
            Err(_) => debug!("delta not stored in time, moving leadership without it"),
        }
    }

    /// Defragments one member and waits until it is healthy.
    async fn defragment_member(&self, member: MemberId, url: &str) -> Result<(), DefragmentError> {
        let start = Timestamp::now();
        let connect = self.connector.as_ref();
        let outcome = actions::defragment(connect, url, self.config.timeout).await;
        let outcome = outcome.map_err(|source| DefragmentError::Defragment {
            member,
            url: url.to_owned(),
            source,
        });
        let result = match outcome {
            Ok(()) => MaintenanceOutcome::Succeeded,
            Err(_) => MaintenanceOutcome::Failed,
        };
        self.metrics
            .record_defragmentation(url, result, elapsed_since(start));
        outcome?;
        info!(member = %member, elapsed_ms = elapsed_since(start).as_millis(), "member defragmented");
        if actions::wait_until_healthy(connect, url).await {
            return Ok(());
        }
        Err(DefragmentError::Unhealthy {
            member,
            url: url.to_owned(),
            limit: actions::RECOVERY_TIMEOUT,
        })
    }
}

/// Whether the threshold check is due.
fn is_check_due(last_check: Timestamp, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(last_check))
        .is_ok_and(|passed| passed >= THRESHOLD_CHECK_INTERVAL)
}

fn compute_sleep(next_time: Option<Timestamp>, now: Timestamp) -> Duration {
    let left = next_time.map(|time| time.duration_since(now));
    // A negative span is overdue: do not sleep.
    let left = left.map(|left| Duration::try_from(left).unwrap_or_default());
    left.map_or(MAX_SLEEP, |left| left.min(MAX_SLEEP))
}

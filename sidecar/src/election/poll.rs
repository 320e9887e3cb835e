//! Election loop: polls etcd, derives the role, starts and stops the session.

use std::time::Duration;

use mainstay_telemetry::ErrorChain;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::role::{LeadershipChange, PollOutcome, decide_role, detect_leadership_change};
use crate::etcd::EtcdClient;
use crate::metrics::SidecarMetrics;
use crate::state::{SidecarRole, StateSender};

/// Timing of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElectionTiming {
    /// Interval between polls.
    pub(crate) poll_interval: Duration,
    /// Timeout of one request to etcd.
    pub(crate) timeout: Duration,
}

impl ElectionTiming {
    /// Polls several times per re-election period, so that a change of leadership is handled within one. etcd's own
    /// election takes a second or two, and a poll costs it microseconds.
    pub(crate) fn from_period(period: Duration, request_timeout: Duration) -> Self {
        Self {
            poll_interval: (period / 5).clamp(Duration::from_millis(100), Duration::from_secs(1)),
            timeout: request_timeout.min(period),
        }
    }
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnStop {
    /// Store the captured events first.
    Store,
    /// End at once: the next leader captures what is not stored.
    Discard,
}

/// Work of a leader. It ends soon after its token is cancelled, as [`OnStop`] specifies.
pub(crate) trait LeaderSession: Send + Sync + 'static {
    /// Starts the session.
    fn start(&self, stop: CancellationToken, on_stop: OnStopCell) -> JoinHandle<()>;
}

/// Tells a stopped session how to end; set before its token is cancelled.
pub(crate) type OnStopCell = std::sync::Arc<std::sync::OnceLock<OnStop>>;

struct RunningSession {
    task: JoinHandle<()>,
    stop: CancellationToken,
    on_stop: OnStopCell,
}

/// The election of one sidecar.
pub(crate) struct BackupElection<S> {
    pub(crate) etcd: EtcdClient,
    pub(crate) timing: ElectionTiming,
    pub(crate) state_tx: StateSender,
    pub(crate) session: S,
    pub(crate) metrics: SidecarMetrics,
}

impl<S: LeaderSession> BackupElection<S> {
    /// Polls until cancelled; then stops the session, which stores its captured events.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let mut running: Option<RunningSession> = None;
        let mut ticker = tokio::time::interval(self.timing.poll_interval);
        ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                _ = ticker.tick() => {}
            }
            let evidence = self.poll().await;
            let before = self.state_tx.borrow().role;
            let now = decide_role(&evidence);
            self.publish_state(&evidence, now);
            match detect_leadership_change(before, now) {
                LeadershipChange::None => self.restart_if_ended(&mut running),
                LeadershipChange::Acquired => running = Some(self.start_session()),
                LeadershipChange::Transferred => stop_session(running.take(), OnStop::Store).await,
                // Without a quorum another member may lead already, so nothing more is written.
                LeadershipChange::Lost => stop_session(running.take(), OnStop::Discard).await,
            }
            if before != now {
                info!(from = before.as_str(), to = now.as_str(), "role changed");
                self.metrics.record_role_change(now);
            }
        }
        // The fence still decides whether the remaining events may be stored.
        stop_session(running, OnStop::Store).await;
    }

    /// Reads the status of the own member, and confirms with a quorum if the member claims to lead.
    async fn poll(&self) -> PollOutcome {
        let member_status = match self.etcd.fetch_status(self.timing.timeout).await {
            Ok(member_status) => member_status,
            Err(error) => {
                debug!(error = %ErrorChain(&error), "no status from the own etcd member");
                return PollOutcome::NoAnswer;
            }
        };
        if member_status.leader != Some(member_status.member) || member_status.is_learner {
            return PollOutcome::NotLeading(member_status);
        }
        // A partitioned leader still reports itself as leader until its election timeout; only a quorum read proves it.
        match self.etcd.read_quorum_revision(self.timing.timeout).await {
            Ok(revision) => PollOutcome::ConfirmedLeader(member_status, revision),
            Err(error) => {
                warn!(error = %ErrorChain(&error), "own etcd member claims to lead, but no quorum confirms it");
                PollOutcome::UnconfirmedLeader(member_status)
            }
        }
    }

    fn publish_state(&self, evidence: &PollOutcome, standing: SidecarRole) {
        self.metrics.set_role(standing);
        self.state_tx.send_modify(|state| {
            state.role = standing;
            state.is_etcd_reachable = !matches!(evidence, PollOutcome::NoAnswer);
            let member_status = match evidence {
                PollOutcome::NoAnswer => return,
                PollOutcome::NotLeading(member_status)
                | PollOutcome::UnconfirmedLeader(member_status) => member_status.clone(),
                PollOutcome::ConfirmedLeader(member_status, revision) => {
                    let mut member_status = member_status.clone();
                    member_status.revision = member_status.revision.max(*revision);
                    member_status
                }
            };
            self.metrics.set_learner(member_status.is_learner);
            state.member_status = Some(member_status);
        });
    }

    /// Restarts a session that ended by itself, which only a defect can cause, so that backups continue.
    fn restart_if_ended(&self, running: &mut Option<RunningSession>) {
        if running
            .as_ref()
            .is_some_and(|session| session.task.is_finished())
        {
            error!("backup session ended unexpectedly, restarting it");
            *running = Some(self.start_session());
        }
    }

    fn start_session(&self) -> RunningSession {
        let stop = CancellationToken::new();
        let on_stop = OnStopCell::default();
        let task = self.session.start(stop.clone(), on_stop.clone());
        RunningSession {
            task,
            stop,
            on_stop,
        }
    }
}

/// Stops a session and waits for its end, so that two sessions never overlap.
async fn stop_session(running: Option<RunningSession>, on_stop: OnStop) {
    let Some(RunningSession {
        task,
        stop,
        on_stop: note,
    }) = running
    else {
        return;
    };
    let _ = note.set(on_stop); // set only here
    stop.cancel();
    if let Err(error) = task.await {
        warn!(error = %error, "backup session task failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leadership_is_polled_at_least_five_times_per_period() {
        for seconds in [1, 2, 5, 60] {
            let period = Duration::from_secs(seconds);
            let timing = ElectionTiming::from_period(period, Duration::from_secs(5));
            assert!(
                timing.poll_interval * 5 <= period,
                "{timing:?} in {period:?}"
            );
            assert!(timing.timeout <= period, "{timing:?} in {period:?}");
        }
    }
}

//! Full snapshots that are wanted, and the one under way. They outlive a round: that deltas begin anew is no reason to
//! begin a snapshot anew.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::info;

use super::begin::FullSnapshotReason;
use crate::ask::{SnapshotRequestError, Finality};
use crate::full::{FullError, UploadedFull};
use crate::state::StoredSnapshot;

type FullReply = oneshot::Sender<Result<StoredSnapshot, SnapshotRequestError>>;
type FullResult = Result<UploadedFull, FullError>;

/// A full snapshot that is wanted.
pub(super) struct FullRequest {
    pub(super) reason: FullSnapshotReason,
    pub(super) finality: Finality,
    pub(super) replies: Vec<FullReply>,
    pub(super) attempts: u32,
    start_after: Instant,
}

impl FullRequest {
    /// Tells whoever asked that it is stored.
    pub(super) fn notify_stored(self, stored: &StoredSnapshot) {
        for reply in self.replies {
            let _ = reply.send(Ok(stored.clone())); // whoever asked may have gone
        }
    }
}

/// One that came to an end.
pub(super) struct FinishedFull {
    pub(super) request: FullRequest,
    pub(super) result: FullResult,
    pub(super) duration: Duration,
}

struct RunningFull {
    request: FullRequest,
    task: JoinHandle<FullResult>,
    started_at: Instant,
}

/// See the module.
#[derive(Default)]
pub(super) struct FullQueue {
    pending: VecDeque<FullRequest>,
    running: Option<RunningFull>,
}

impl FullQueue {
    pub(super) fn enqueue(&mut self, because: FullSnapshotReason, finality: Finality, reply: Option<FullReply>) {
        info!(because = because.as_str(), "a full snapshot is due");
        self.pending.push_back(FullRequest {
            reason: because,
            finality,
            replies: reply.into_iter().collect(),
            attempts: 0,
            start_after: Instant::now(),
        });
    }

    /// Whether nothing waits; one may be under way.
    pub(super) fn is_queue_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether one that the chain needs is waiting.
    pub(super) fn has_required(&self) -> bool {
        let mut wanted = self.pending.iter();
        wanted.any(|wanted| wanted.reason != FullSnapshotReason::OnDemand)
    }

    /// Whether one that the chain needs is waiting, or any is under way.
    pub(super) fn has_required_or_running(&self) -> bool {
        self.running.is_some() || self.has_required()
    }

    /// When the next one is to be started; `None` when there is none, or one is under way.
    pub(super) fn next_start(&self) -> Option<Instant> {
        match self.running {
            None => self.pending.front().map(|wanted| wanted.start_after),
            Some(_) => None,
        }
    }

    /// Starts the next one if it is time; whether it was.
    pub(super) fn start_if_due(
        &mut self,
        start: impl FnOnce(Finality) -> JoinHandle<FullResult>,
    ) -> bool {
        let is_due = self.next_start().is_some_and(|due| due <= Instant::now());
        let Some(wanted) = is_due.then(|| self.pending.pop_front()).flatten() else {
            return false;
        };
        self.running = Some(RunningFull {
            task: start(wanted.finality),
            request: wanted,
            started_at: Instant::now(),
        });
        true
    }

    /// The end of the one under way; waits for ever when there is none. Dropping the future loses nothing.
    pub(super) async fn wait_for_finished(&mut self) -> FinishedFull {
        let outcome = match &mut self.running {
            Some(running) => (&mut running.task).await,
            None => std::future::pending().await,
        };
        let Some(running) = self.running.take() else {
            return std::future::pending().await; // it was there before
        };
        FinishedFull {
            request: running.request,
            result: outcome.unwrap_or(Err(FullError::Interrupted)),
            duration: running.started_at.elapsed(),
        }
    }

    /// Tries again after a pause.
    pub(super) fn retry(&mut self, mut wanted: FullRequest, pause: Duration) {
        wanted.start_after = Instant::now() + pause;
        self.pending.push_front(wanted);
    }

    /// What is under way was begun too early: it is begun anew, even if it has just been stored.
    pub(super) async fn restart_running(&mut self) {
        if let Some(ended) = self.abort_running().await {
            self.pending.push_front(ended.request);
        }
    }

    /// Nothing more is taken, and those who wait are told. What became of the one under way: it may have been stored at
    /// the last moment, and then whoever asked for it still waits.
    pub(super) async fn abort_all(&mut self) -> Option<FinishedFull> {
        let mut ended = self.abort_running().await;
        let interrupted = ended.as_mut().filter(|ended| ended.result.is_err());
        let wanted = interrupted.map(|ended| &mut ended.request);
        for wanted in wanted.into_iter().chain(&mut self.pending) {
            for reply in wanted.replies.drain(..) {
                let _ = reply.send(Err(SnapshotRequestError::Aborted)); // whoever asked may have gone
            }
        }
        self.pending.clear();
        ended
    }

    async fn abort_running(&mut self) -> Option<FinishedFull> {
        self.running.as_ref()?.task.abort(); // its upload goes with it
        Some(self.wait_for_finished().await)
    }
}

#[cfg(test)]
mod tests;

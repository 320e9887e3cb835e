//! Queue of full snapshots, and the one that is running. The queue outlives a round: a restart of delta capture does
//! not restart a running snapshot.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::info;

use super::start_plan::FullSnapshotReason;
use crate::full::{FullError, UploadedFull};
use crate::snapshotter::{Finality, SnapshotRequestError};
use crate::state::StoredSnapshot;

type FullReply = oneshot::Sender<Result<StoredSnapshot, SnapshotRequestError>>;
type FullResult = Result<UploadedFull, FullError>;

/// A queued full snapshot.
pub(super) struct FullRequest {
    pub(super) reason: FullSnapshotReason,
    pub(super) finality: Finality,
    pub(super) replies: Vec<FullReply>,
    pub(super) attempts: u32,
    start_after: Instant,
}

impl FullRequest {
    /// Reports to the requesters that it is stored.
    pub(super) fn notify_stored(self, stored: &StoredSnapshot) {
        for reply in self.replies {
            let _ = reply.send(Ok(stored.clone())); // the requester may be gone
        }
    }
}

/// A full snapshot that ended.
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

#[derive(Default)]
pub(super) struct FullQueue {
    pending: VecDeque<FullRequest>,
    running: Option<RunningFull>,
}

impl FullQueue {
    pub(super) fn enqueue(
        &mut self,
        because: FullSnapshotReason,
        finality: Finality,
        reply: Option<FullReply>,
    ) {
        info!(because = because.as_str(), "full snapshot queued");
        self.pending.push_back(FullRequest {
            reason: because,
            finality,
            replies: reply.into_iter().collect(),
            attempts: 0,
            start_after: Instant::now(),
        });
    }

    /// Whether nothing is queued; one may be running.
    pub(super) fn is_queue_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether one that the chain needs is queued.
    pub(super) fn has_required(&self) -> bool {
        let mut wanted = self.pending.iter();
        wanted.any(|wanted| wanted.reason != FullSnapshotReason::OnDemand)
    }

    /// Whether one that the chain needs is queued, or any is running.
    pub(super) fn has_required_or_running(&self) -> bool {
        self.running.is_some() || self.has_required()
    }

    /// When to start the next one; `None` if none is queued, or one is running.
    pub(super) fn next_start(&self) -> Option<Instant> {
        match self.running {
            None => self.pending.front().map(|wanted| wanted.start_after),
            Some(_) => None,
        }
    }

    /// Starts the next one if it is due. Returns whether it did.
    pub(super) fn start_if_due(
        &mut self,
        start: impl FnOnce(Finality) -> JoinHandle<FullResult>,
    ) -> bool {
        let is_due = self.next_start().is_some_and(|due| due <= Instant::now());
        let Some(request) = is_due.then(|| self.pending.pop_front()).flatten() else {
            return false;
        };
        self.running = Some(RunningFull {
            task: start(request.finality),
            request,
            started_at: Instant::now(),
        });
        true
    }

    /// Waits for the running one to end; for ever if there is none. Cancel-safe.
    pub(super) async fn wait_for_finished(&mut self) -> FinishedFull {
        let outcome = match &mut self.running {
            Some(running) => (&mut running.task).await,
            None => std::future::pending().await,
        };
        let Some(running) = self.running.take() else {
            return std::future::pending().await; // unreachable: checked above
        };
        FinishedFull {
            request: running.request,
            // A join error means that the task was aborted or panicked.
            result: outcome.unwrap_or(Err(FullError::Interrupted)),
            duration: running.started_at.elapsed(),
        }
    }

    /// Retries after a pause, before anything else that is queued.
    pub(super) fn retry(&mut self, mut wanted: FullRequest, pause: Duration) {
        wanted.start_after = Instant::now() + pause;
        self.pending.push_front(wanted);
    }

    /// Restarts the running snapshot, even if it has just been stored: it started before the new round captures, so
    /// revisions between the two could be missing.
    pub(super) async fn restart_running(&mut self) {
        if let Some(ended) = self.abort_running().await {
            self.pending.push_front(ended.request);
        }
    }

    /// Aborts the running snapshot, clears the queue and fails its requests. Returns how the running one ended: it may
    /// have been stored just before the abort, and its requesters then still wait.
    pub(super) async fn abort_all(&mut self) -> Option<FinishedFull> {
        let mut ended = self.abort_running().await;
        let interrupted = ended.as_mut().filter(|ended| ended.result.is_err());
        let wanted = interrupted.map(|ended| &mut ended.request);
        for wanted in wanted.into_iter().chain(&mut self.pending) {
            for reply in wanted.replies.drain(..) {
                let _ = reply.send(Err(SnapshotRequestError::Aborted)); // the requester may be gone
            }
        }
        self.pending.clear();
        ended
    }

    async fn abort_running(&mut self) -> Option<FinishedFull> {
        self.running.as_ref()?.task.abort(); // dropping the task aborts its upload
        Some(self.wait_for_finished().await)
    }
}

#[cfg(test)]
mod tests;

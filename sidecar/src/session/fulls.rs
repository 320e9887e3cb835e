//! Full snapshots that are wanted, and the one under way. They outlive a round: that deltas begin anew is no reason to
//! begin a snapshot anew.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::info;

use super::begin::Because;
use crate::ask::{AskError, Finality};
use crate::full::{FullError, Taken};
use crate::state::Stored;

type Reply = oneshot::Sender<Result<Stored, AskError>>;
type Outcome = Result<Taken, FullError>;

/// A full snapshot that is wanted.
pub(super) struct Wanted {
    pub(super) because: Because,
    pub(super) finality: Finality,
    pub(super) replies: Vec<Reply>,
    pub(super) attempts: u32,
    not_before: Instant,
}

impl Wanted {
    /// Tells whoever asked that it is stored.
    pub(super) fn tell(self, stored: &Stored) {
        for reply in self.replies {
            let _ = reply.send(Ok(stored.clone())); // whoever asked may have gone
        }
    }
}

/// One that came to an end.
pub(super) struct Ended {
    pub(super) wanted: Wanted,
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
}

struct Running {
    wanted: Wanted,
    task: JoinHandle<Outcome>,
    started: Instant,
}

/// See the module.
#[derive(Default)]
pub(super) struct Fulls {
    wanted: VecDeque<Wanted>,
    running: Option<Running>,
}

impl Fulls {
    pub(super) fn want(&mut self, because: Because, finality: Finality, reply: Option<Reply>) {
        info!(because = because.text(), "a full snapshot is due");
        self.wanted.push_back(Wanted {
            because,
            finality,
            replies: reply.into_iter().collect(),
            attempts: 0,
            not_before: Instant::now(),
        });
    }

    /// Whether nothing waits; one may be under way.
    pub(super) fn is_idle(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Whether one that the chain needs is waiting.
    pub(super) fn is_needed(&self) -> bool {
        let mut wanted = self.wanted.iter();
        wanted.any(|wanted| wanted.because != Because::Asked)
    }

    /// Whether one that the chain needs is waiting, or any is under way.
    pub(super) fn is_coming(&self) -> bool {
        self.running.is_some() || self.is_needed()
    }

    /// When the next one is to be started; `None` when there is none, or one is under way.
    pub(super) fn next_start(&self) -> Option<Instant> {
        match self.running {
            None => self.wanted.front().map(|wanted| wanted.not_before),
            Some(_) => None,
        }
    }

    /// Starts the next one if it is time; whether it was.
    pub(super) fn start_if_due(
        &mut self,
        start: impl FnOnce(Finality) -> JoinHandle<Outcome>,
    ) -> bool {
        let is_due = self.next_start().is_some_and(|due| due <= Instant::now());
        let Some(wanted) = is_due.then(|| self.wanted.pop_front()).flatten() else {
            return false;
        };
        self.running = Some(Running {
            task: start(wanted.finality),
            wanted,
            started: Instant::now(),
        });
        true
    }

    /// The end of the one under way; waits for ever when there is none. Dropping the future loses nothing.
    pub(super) async fn ended(&mut self) -> Ended {
        let outcome = match &mut self.running {
            Some(running) => (&mut running.task).await,
            None => std::future::pending().await,
        };
        let Some(running) = self.running.take() else {
            return std::future::pending().await; // it was there before
        };
        Ended {
            wanted: running.wanted,
            outcome: outcome.unwrap_or(Err(FullError::Interrupted)),
            took: running.started.elapsed(),
        }
    }

    /// Tries again after a pause.
    pub(super) fn again(&mut self, mut wanted: Wanted, pause: Duration) {
        wanted.not_before = Instant::now() + pause;
        self.wanted.push_front(wanted);
    }

    /// What is under way was begun too early: it is begun anew, even if it has just been stored.
    pub(super) async fn start_over(&mut self) {
        if let Some(ended) = self.abort().await {
            self.wanted.push_front(ended.wanted);
        }
    }

    /// Nothing more is taken, and those who wait are told. What became of the one under way: it may have been stored at
    /// the last moment, and then whoever asked for it still waits.
    pub(super) async fn give_up(&mut self) -> Option<Ended> {
        let mut ended = self.abort().await;
        let interrupted = ended.as_mut().filter(|ended| ended.outcome.is_err());
        let wanted = interrupted.map(|ended| &mut ended.wanted);
        for wanted in wanted.into_iter().chain(&mut self.wanted) {
            for reply in wanted.replies.drain(..) {
                let _ = reply.send(Err(AskError::Ended)); // whoever asked may have gone
            }
        }
        self.wanted.clear();
        ended
    }

    async fn abort(&mut self) -> Option<Ended> {
        self.running.as_ref()?.task.abort(); // its upload goes with it
        Some(self.ended().await)
    }
}

#[cfg(test)]
mod tests;

//! One stretch of a session: a tail, full snapshots when they are due, and whoever asks.

use std::collections::VecDeque;

use jiff::Timestamp;
use steward_archive::name::Kind;
use steward_ids::Revision;
use steward_telemetry::Chain;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::begin::{Because, Begin};
use super::handle::Ask;
use super::lead::{Leader, announce, refuse_ask};
use super::stock::Stock;
use crate::ask::{AskError, Finality};
use crate::bucket::Bucket;
use crate::election::{Farewell, FarewellNote};
use crate::etcd::EtcdError;
use crate::full::{FullError, Taken};
use crate::state::{self, Stored};
use crate::tail::{Notice, Parts, Tail};

/// What the tail has to say between two looks; it says something once per delta.
const NOTICES: usize = 64;
/// The clock may be set meanwhile, so no wait for the schedule is longer.
const LOOK_AT_THE_CLOCK: std::time::Duration = std::time::Duration::from_secs(30);

/// How a round ended.
pub(super) enum Over {
    /// Told to stop.
    Stopped,
    /// To be followed by another, which begins with a full snapshot when there is a reason.
    BeginAnew(Option<Because>),
}

struct Wanted {
    because: Because,
    finality: Finality,
    replies: Vec<oneshot::Sender<Result<Stored, AskError>>>,
    attempts: u32,
    not_before: Instant,
}

struct Running {
    wanted: Wanted,
    task: JoinHandle<Result<Taken, FullError>>,
    started: Instant,
}

/// See the module.
pub(super) struct Round<'a> {
    leader: &'a Leader,
    bucket: &'a Bucket,
    tail: Option<Tail>,
    tail_stop: CancellationToken,
    farewell: FarewellNote,
    session_farewell: &'a FarewellNote,
    notices: mpsc::Receiver<Notice>,
    wanted: VecDeque<Wanted>,
    running: Option<Running>,
    next_full: Option<Timestamp>,
    stock: Stock,
}

impl<'a> Round<'a> {
    pub(super) async fn start(
        leader: &'a Leader,
        bucket: &'a Bucket,
        plan: Begin,
        stock: Stock,
        session_farewell: &'a FarewellNote,
    ) -> Result<Self, EtcdError> {
        let (after, held, full) = match plan {
            Begin::Continue {
                after,
                deltas_end,
                full,
            } => (leader.furthest_back(after, deltas_end).await, false, full),
            // Captured from before the snapshot on, so that nothing falls between.
            Begin::FullFirst(because) => {
                let now = leader.etcd.confirm(leader.fence.patience).await?;
                (now, true, Some(because))
            }
            Begin::StoreAhead { etcd, .. } => (etcd, true, None), // never planned for
        };
        let (send, notices) = mpsc::channel(NOTICES);
        let (tail_stop, farewell) = (CancellationToken::new(), FarewellNote::default());
        let tail = leader.config.tail.clone().map(|config| {
            let parts = Parts {
                etcd: leader.etcd.clone(),
                config,
                shipper: leader.shipper(bucket),
                board: leader.board.clone(),
                metrics: leader.metrics.clone(),
                notices: send,
            };
            Tail::start(parts, after, held, tail_stop.clone(), farewell.clone())
        });
        let mut round = Self {
            leader,
            bucket,
            tail,
            tail_stop,
            farewell,
            session_farewell,
            notices,
            wanted: VecDeque::new(),
            running: None,
            next_full: None,
            stock,
        };
        round.begun(after, full);
        Ok(round)
    }

    fn begun(&mut self, after: Revision, full: Option<Because>) {
        info!(revision = %after, "backups begin");
        self.leader.board.send_modify(|state| {
            state.captured = Some(after);
        });
        if let Some(because) = full {
            self.want(because, Finality::Ordinary, None);
        }
        self.next_full = self.leader.config.schedule.next_after(Timestamp::now());
    }

    pub(super) async fn run(
        mut self,
        stop: &CancellationToken,
        asks: &mut mpsc::Receiver<Ask>,
    ) -> Over {
        let over = loop {
            self.start_full_if_due();
            let wake = self.next_wake();
            tokio::select! {
                biased;
                () = stop.cancelled() => break Over::Stopped,
                taken = taken(&mut self.running) => self.on_taken(taken),
                Some(notice) = self.notices.recv() => {
                    if let Some(over) = self.on_notice(notice) {
                        break over;
                    }
                }
                Some(ask) = asks.recv() => self.on_ask(ask),
                () = tokio::time::sleep_until(wake) => self.on_clock(),
            }
        };
        self.end(&over).await;
        over
    }

    fn want(
        &mut self,
        because: Because,
        finality: Finality,
        reply: Option<oneshot::Sender<Result<Stored, AskError>>>,
    ) {
        announce(because);
        self.leader.metrics.snapshot_required(Kind::Full, true);
        self.wanted.push_back(Wanted {
            because,
            finality,
            replies: reply.into_iter().collect(),
            attempts: 0,
            not_before: Instant::now(),
        });
    }

    fn start_full_if_due(&mut self) {
        let is_due = self
            .wanted
            .front()
            .is_some_and(|wanted| wanted.not_before <= Instant::now());
        if self.running.is_some() || !is_due {
            return;
        }
        let Some(wanted) = self.wanted.pop_front() else {
            return;
        };
        let taker = self.leader.taker(self.bucket);
        let flusher = self.tail.as_ref().map(Tail::flusher);
        let finality = wanted.finality;
        let task = tokio::spawn(async move { taker.take(finality, flusher).await });
        self.leader
            .board
            .send_modify(|state| state.full_under_way = true);
        self.running = Some(Running {
            wanted,
            task,
            started: Instant::now(),
        });
    }

    fn on_taken(&mut self, taken: Result<Taken, FullError>) {
        let Some(running) = self.running.take() else {
            return;
        };
        let seconds = running.started.elapsed().as_secs_f64();
        let metrics = &self.leader.metrics;
        metrics.snapshot_finished(Kind::Full, taken.is_ok(), seconds);
        self.leader
            .board
            .send_modify(|state| state.full_under_way = false);
        match taken {
            Ok(taken) => self.on_full(taken, running.wanted, seconds),
            Err(error) => self.on_failed(&error, running.wanted),
        }
    }

    fn on_full(&mut self, taken: Taken, wanted: Wanted, seconds: f64) {
        let Taken { stored, raw_bytes } = taken;
        info!(object_key = %stored.key, bytes = stored.size, raw_bytes, seconds, "full snapshot stored");
        self.leader.metrics.snapshot_stored(&stored, raw_bytes);
        if self.wanted.is_empty() {
            self.leader.metrics.snapshot_required(Kind::Full, false);
        }
        self.added(&stored);
        if let Some(tail) = &self.tail {
            tail.release();
        }
        for reply in wanted.replies {
            let _ = reply.send(Ok(stored.clone())); // whoever asked may have gone
        }
    }

    /// Whoever asked is told; what the chain needs is tried again, later and later.
    fn on_failed(&mut self, error: &FullError, mut wanted: Wanted) {
        let reason = Chain(error).to_string();
        warn!(error = %reason, because = wanted.because.text(), "a full snapshot failed");
        self.leader.metrics.snapshotter_failed(error.class());
        if let FullError::Store { source, .. } = error {
            self.leader.metrics.store_failed(source.class());
        }
        state::trouble(&self.leader.board, error.class(), &reason);
        for reply in wanted.replies.drain(..) {
            let reason = reason.clone();
            let _ = reply.send(Err(AskError::Failed { reason })); // as above
        }
        if wanted.because == Because::Asked {
            return;
        }
        wanted.attempts = wanted.attempts.saturating_add(1);
        let pause = self.leader.config.backoff.pause(wanted.attempts);
        wanted.not_before = Instant::now() + pause;
        self.wanted.push_front(wanted);
    }

    fn on_notice(&mut self, notice: Notice) -> Option<Over> {
        match notice {
            Notice::Stored(stored) => {
                self.added(&stored);
                None
            }
            Notice::Gap(_) => Some(Over::BeginAnew(Some(Because::Gap))),
            Notice::Overtaken => Some(Over::BeginAnew(None)),
        }
    }

    fn added(&mut self, stored: &Stored) {
        self.stock.add(stored);
        self.stock.publish(&self.leader.board, &self.leader.metrics);
        state::trouble_over(&self.leader.board);
    }

    fn on_ask(&mut self, ask: Ask) {
        match (ask, &self.tail) {
            (Ask::Full(finality, reply), _) => self.want(Because::Asked, finality, Some(reply)),
            (ask @ Ask::Delta(_), None) => refuse_ask(ask, AskError::DeltasDisabled),
            (Ask::Delta(reply), Some(tail)) => {
                let (etcd, patience) = (self.leader.etcd.clone(), self.leader.fence.patience);
                let flusher = tail.flusher();
                tokio::spawn(async move {
                    let stored = match etcd.confirm(patience).await {
                        Ok(now) => flusher.flush(now).await,
                        Err(error) => Err(AskError::Failed {
                            reason: Chain(&error).to_string(),
                        }),
                    };
                    let _ = reply.send(stored); // whoever asked may have gone
                });
            }
        }
    }

    /// When the schedule or a repetition is due.
    fn next_wake(&self) -> Instant {
        let scheduled = self.next_full.map(|due| {
            let left = due.duration_since(Timestamp::now());
            let left = std::time::Duration::try_from(left).unwrap_or_default();
            Instant::now() + left
        });
        let repeated = match self.running {
            None => self.wanted.front().map(|wanted| wanted.not_before),
            Some(_) => None,
        };
        let due = scheduled.into_iter().chain(repeated).min();
        let latest = Instant::now() + LOOK_AT_THE_CLOCK;
        due.map_or(latest, |due| due.min(latest))
    }

    fn on_clock(&mut self) {
        let now = Timestamp::now();
        if self.next_full.is_some_and(|due| due <= now) {
            self.next_full = self.leader.config.schedule.next_after(now);
            let has_one = self
                .wanted
                .iter()
                .any(|wanted| wanted.because != Because::Asked);
            if !has_one {
                self.want(Because::Scheduled, Finality::Ordinary, None);
            }
        }
    }

    /// The tail stores what it may, a full snapshot under way is given up, those who wait are told.
    async fn end(mut self, over: &Over) {
        if let Some(running) = self.running.take() {
            running.task.abort();
            let _ = running.task.await; // it was aborted; its upload goes with it
            self.wanted.push_back(running.wanted);
        }
        for reply in self.wanted.drain(..).flat_map(|wanted| wanted.replies) {
            let _ = reply.send(Err(AskError::Ended)); // whoever asked may have gone
        }
        let farewell = match over {
            Over::Stopped => self
                .session_farewell
                .get()
                .copied()
                .unwrap_or(Farewell::Drop),
            Over::BeginAnew(_) => Farewell::Store,
        };
        let _ = self.farewell.set(farewell); // nobody else sets it
        self.tail_stop.cancel();
        if let Some(tail) = self.tail.take() {
            tokio::join!(tail.ended(), drain(&mut self.notices, &mut self.stock));
        }
        self.stock.publish(&self.leader.board, &self.leader.metrics);
    }
}

/// A tail that ends must not wait for someone to listen.
async fn drain(notices: &mut mpsc::Receiver<Notice>, stock: &mut Stock) {
    while let Some(notice) = notices.recv().await {
        if let Notice::Stored(stored) = notice {
            stock.add(&stored);
        }
    }
}

/// The outcome of the full snapshot under way; waits for ever when there is none.
async fn taken(running: &mut Option<Running>) -> Result<Taken, FullError> {
    let Some(running) = running else {
        return std::future::pending().await;
    };
    match (&mut running.task).await {
        Ok(outcome) => outcome,
        Err(_) => Err(FullError::Stopping),
    }
}

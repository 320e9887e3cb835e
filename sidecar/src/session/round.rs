//! One stretch of a session: a tail, full snapshots when they are due, and whoever asks.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::name::Kind;
use mainstay_ids::Revision;
use mainstay_telemetry::Chain;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::begin::{Because, Begin};
use super::fulls::{Ended, Fulls, Wanted};
use super::handle::{Ask, refuse};
use super::lead::Leader;
use super::stock::Stock;
use crate::ask::{AskError, Finality};
use crate::bucket::Bucket;
use crate::election::{Farewell, FarewellNote};
use crate::etcd::EtcdError;
use crate::full::{FullError, Taken};
use crate::schedule::Upcoming;
use crate::state::{self, Stored};
use crate::tail::{Flusher, Notice, Parts, Tail};

/// What the tail has to say between two looks; it says something once per delta.
const NOTICES: usize = 64;
/// The clock may be set meanwhile, so no wait for the schedule is longer.
const LOOK_AT_THE_CLOCK: Duration = Duration::from_secs(30);

/// How a round ended.
pub(super) enum Over {
    /// Told to stop.
    Stopped,
    /// To be followed by another, which begins with a full snapshot when there is a reason.
    BeginAnew(Option<Because>),
    /// The tail ended unasked, and without a word.
    TailDied,
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
    fulls: &'a mut Fulls,
    schedule: Upcoming,
    stock: Stock,
    /// The next full snapshot bridges a hole.
    is_bridging: bool,
}

impl<'a> Round<'a> {
    pub(super) async fn start(
        leader: &'a Leader,
        bucket: &'a Bucket,
        (plan, stock): (Begin, Stock),
        fulls: &'a mut Fulls,
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
                fulls.start_over().await;
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
                shipper: leader.shipper(bucket, &farewell),
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
            fulls,
            schedule: Upcoming::new(leader.config.schedule.clone(), Timestamp::now()),
            stock,
            is_bridging: held,
        };
        round.begun(after, full);
        Ok(round)
    }

    fn begun(&mut self, after: Revision, full: Option<Because>) {
        info!(revision = %after, "backups begin");
        self.leader.board.send_modify(|state| {
            state.captured = Some(after);
        });
        if let Some(because) = full
            && !self.fulls.is_coming()
        {
            self.want(because);
        }
    }

    pub(super) async fn run(
        mut self,
        stop: &CancellationToken,
        asks: &mut mpsc::Receiver<Ask>,
    ) -> Over {
        let over = loop {
            self.look_at_the_clock();
            self.start_full_if_due();
            let wake = self.next_wake();
            tokio::select! {
                biased;
                () = stop.cancelled() => break Over::Stopped,
                ended = self.fulls.ended() => self.on_ended(ended),
                notice = self.notices.recv(), if self.tail.is_some() => {
                    if let Some(over) = self.on_notice(notice) {
                        break over;
                    }
                }
                Some(ask) = asks.recv() => self.on_ask(ask),
                () = tokio::time::sleep_until(wake) => {}
            }
        };
        self.end(&over).await;
        over
    }

    /// A full snapshot the chain needs.
    fn want(&mut self, because: Because) {
        self.leader.metrics.snapshot_required(Kind::Full, true);
        self.fulls.want(because, Finality::Ordinary, None);
    }

    fn start_full_if_due(&mut self) {
        let taker = self.leader.taker(self.bucket);
        let flusher = self.flusher_beside_a_full();
        let start = |finality| tokio::spawn(async move { taker.take(finality, flusher).await });
        if self.fulls.start_if_due(start) {
            self.leader
                .board
                .send_modify(|state| state.full_under_way = true);
        }
    }

    /// What makes a full snapshot wait for the deltas up to it. Those held back for it are not waited for.
    fn flusher_beside_a_full(&self) -> Option<Flusher> {
        self.tail.as_ref().and_then(Tail::flusher_beside_a_full)
    }

    fn on_ended(&mut self, ended: Ended) {
        let seconds = ended.took.as_secs_f64();
        let metrics = &self.leader.metrics;
        metrics.snapshot_finished(Kind::Full, ended.outcome.is_ok(), seconds);
        self.leader
            .board
            .send_modify(|state| state.full_under_way = false);
        match ended.outcome {
            Ok(taken) => self.on_full(taken, ended.wanted, seconds),
            Err(error) => self.on_failed(&error, ended.wanted),
        }
    }

    fn on_full(&mut self, taken: Taken, wanted: Wanted, seconds: f64) {
        let Taken {
            stored,
            raw_bytes,
            parts,
        } = taken;
        self.leader.metrics.upload_parts(parts);
        info!(object_key = %stored.key, bytes = stored.size, raw_bytes, seconds, "full snapshot stored");
        self.leader.metrics.snapshot_stored(&stored, raw_bytes);
        if self.fulls.is_idle() {
            self.leader.metrics.snapshot_required(Kind::Full, false);
        }
        self.added(&stored);
        self.tell_of_a_hole(&stored);
        if let Some(tail) = &self.tail {
            tail.release();
        }
        wanted.tell(&stored);
    }

    /// What the store lacks for good, told as soon as that is known.
    fn tell_of_a_hole(&mut self, stored: &Stored) {
        let is_bridging = std::mem::take(&mut self.is_bridging);
        if let Some((from, to)) = self.stock.hole_before(stored.name.last)
            && is_bridging
        {
            error!(object_key = %stored.key, "revisions {from} to {to} are missing: the full snapshot comes behind them");
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
        self.fulls.again(wanted, pause);
    }

    /// Nothing is tried again; one that was stored at the last moment is one.
    fn on_given_up(&mut self, ended: Ended) {
        let seconds = ended.took.as_secs_f64();
        match ended.outcome {
            Ok(taken) => {
                let metrics = &self.leader.metrics;
                metrics.snapshot_finished(Kind::Full, true, seconds);
                self.on_full(taken, ended.wanted, seconds);
            }
            Err(error) => self.leader.given_up(&error),
        }
    }

    fn on_notice(&mut self, notice: Option<Notice>) -> Option<Over> {
        match notice {
            Some(Notice::Stored(stored)) => {
                self.added(&stored);
                None
            }
            Some(Notice::Gap(_)) => Some(Over::BeginAnew(Some(Because::Gap))),
            Some(Notice::Overtaken) => Some(Over::BeginAnew(None)),
            None => Some(Over::TailDied),
        }
    }

    fn added(&mut self, stored: &Stored) {
        self.stock.add(stored);
        self.leader.publish(&self.stock);
        state::trouble_over(&self.leader.board);
    }

    fn on_ask(&mut self, ask: Ask) {
        match (ask, &self.tail) {
            (Ask::Full(finality, reply), _) => {
                self.leader.metrics.snapshot_required(Kind::Full, true);
                self.fulls.want(Because::Asked, finality, Some(reply));
            }
            (ask @ Ask::Delta(_), None) => refuse(ask, AskError::DeltasDisabled),
            (Ask::Delta(reply), Some(tail)) => {
                let (etcd, patience) = (self.leader.etcd.clone(), self.leader.fence.patience);
                let (flusher, line) = (tail.flusher(), self.leader.line.clone());
                tokio::spawn(async move {
                    let stored = match etcd.confirm(patience).await {
                        Ok(now) => flusher.flush(now).await,
                        Err(error) => Err(AskError::Failed {
                            reason: Chain(&error).to_string(),
                        }),
                    };
                    match stored {
                        // The round is over; the one that follows, if any does, captures it again.
                        Err(AskError::Ended) => line.ask_again(Ask::Delta(reply)).await,
                        told => drop(reply.send(told)), // whoever asked may have gone
                    }
                });
            }
        }
    }

    /// When the schedule or a repetition is due, or the clock is to be looked at.
    fn next_wake(&self) -> Instant {
        let scheduled = self.schedule.at().map(|due| {
            let left = due.duration_since(Timestamp::now());
            Instant::now() + Duration::try_from(left).unwrap_or_default()
        });
        let due = scheduled.into_iter().chain(self.fulls.next_start()).min();
        let latest = Instant::now() + LOOK_AT_THE_CLOCK;
        due.map_or(latest, |due| due.min(latest))
    }

    fn look_at_the_clock(&mut self) {
        if self.schedule.has_come(Timestamp::now()) && !self.fulls.is_needed() {
            self.want(Because::Scheduled);
        }
    }

    /// The tail stores what it may. A full snapshot under way goes on, unless there is a reason to take another.
    async fn end(mut self, over: &Over) {
        if matches!(over, Over::Stopped | Over::BeginAnew(Some(_))) {
            if let Some(ended) = self.fulls.give_up().await {
                self.on_given_up(ended);
            }
            self.leader
                .board
                .send_modify(|state| state.full_under_way = false);
        }
        let farewell = match over {
            Over::Stopped => self
                .session_farewell
                .get()
                .copied()
                .unwrap_or(Farewell::Drop),
            Over::BeginAnew(_) | Over::TailDied => Farewell::Store,
        };
        let _ = self.farewell.set(farewell); // nobody else sets it
        self.tail_stop.cancel();
        if let Some(tail) = self.tail.take() {
            tokio::join!(tail.ended(), drain(&mut self.notices, &mut self.stock));
        }
        self.leader.publish(&self.stock);
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

#[cfg(test)]
mod tests;

//! The task that owns the batch: reads the watch, seals, stores, answers.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::name::Kind;
use mainstay_ids::Revision;
use mainstay_telemetry::Chain;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::batch::{Batch, BatchError, Sealed};
use super::follow::{Follow, Item};
use super::gapless::{Gap, GapCause};
use super::handle::{Asked, Notice, Parts, TailConfig};
use super::leases::LeaseTtls;
use super::ship::{ShipError, Shipped, Shipper};
use super::silence::Silence;
use crate::ask::AskError;
use crate::election::{Farewell, FarewellNote};
use crate::etcd::{Etcd, EtcdError};
use crate::metrics::Metrics;
use crate::state::{Board, Stored};

/// How often it is looked at how far behind the capture is.
const LOOK: Duration = Duration::from_secs(1);
/// How long an event waits for the lives of the leases that came with it.
const LEASES: Duration = Duration::from_secs(1);
/// How long etcd may take to tell whether it still has a revision.
const HISTORY: Duration = Duration::from_secs(2);
/// The class of trouble with the watch.
const WATCH: &str = "watch";
/// The watch is opened twice a second: a warning every half minute is enough.
const FAILURES_PER_WARNING: u32 = 60;
/// How long storing the rest may take when leadership ends.
const FAREWELL: Duration = Duration::from_secs(10);

/// A delta on its way into the store.
struct Shipment {
    sealed: Sealed,
    attempts: u32,
    attempt: JoinHandle<Result<Shipped, ShipError>>,
    started: Instant,
}

/// Owns the batch.
pub(super) struct Worker {
    etcd: Etcd,
    /// `None` once there is nothing more to capture.
    follow: Option<Follow>,
    batch: Batch,
    leases: LeaseTtls,
    config: TailConfig,
    shipper: Shipper,
    board: Board,
    metrics: Metrics,
    notices: mpsc::Sender<Notice>,
    line: mpsc::Receiver<Asked>,
    held: watch::Receiver<bool>,
    is_first: bool,
    /// What is captured does not begin where the store ends: nothing more is stored.
    is_overtaken: bool,
    is_due: bool,
    shipment: Option<Shipment>,
    asked: Vec<Asked>,
    caught_up: Instant,
    silence: Silence,
    /// Events captured without the life of their lease.
    untold_lives: usize,
    /// How often in a row the watch could not be opened.
    watch_failures: u32,
}

impl Worker {
    /// Captures after a revision.
    pub(super) fn new(
        parts: Parts,
        after: Revision,
        line: mpsc::Receiver<Asked>,
        held: watch::Receiver<bool>,
    ) -> Self {
        let Parts {
            etcd,
            config,
            shipper,
            board,
            metrics,
            notices,
        } = parts;
        Self {
            follow: Some(Follow::start(etcd.clone(), after)),
            etcd,
            batch: Batch::after(after, config.compression.clone()),
            leases: LeaseTtls::default(),
            config,
            shipper,
            board,
            metrics,
            notices,
            line,
            held,
            is_first: true,
            is_overtaken: false,
            is_due: false,
            shipment: None,
            asked: Vec::new(),
            caught_up: Instant::now(),
            silence: Silence::new(),
            untold_lives: 0,
            watch_failures: 0,
        }
    }

    /// Until told to stop.
    pub(super) async fn run(mut self, stop: CancellationToken, farewell: FarewellNote) {
        let mut ticks = self.ticks();
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.ship_if_due().await;
            let has_room = self.batch.has_room(self.config.limit_bytes);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                shipped = shipped(&mut self.shipment) => self.on_shipped(shipped).await,
                Some(asked) = self.line.recv() => self.asked.push(asked),
                Ok(()) = self.held.changed() => {}
                () = tick(&mut ticks) => self.on_tick(),
                _ = looks.tick() => self.look(has_room),
                item = next(&mut self.follow), if has_room => self.on_item(item, &stop).await,
            }
        }
        if farewell.get() == Some(&Farewell::Store) {
            self.store_the_rest().await;
        }
        if let Some(shipment) = self.shipment.take() {
            shipment.attempt.abort();
        }
    }

    fn ticks(&self) -> Option<tokio::time::Interval> {
        let period = self.config.period?;
        let mut ticks = tokio::time::interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Some(ticks)
    }

    fn on_tick(&mut self) {
        self.is_due = true;
        let is_all_stored = self.batch.is_empty() && self.shipment.is_none();
        if is_all_stored && self.follow.is_some() && self.revisions_behind() == 0 {
            let now = Timestamp::now();
            self.metrics.succeeded_at(Kind::Delta, now); // there was nothing to store
            self.board.send_modify(|state| {
                state.delta_checked_at = Some(now);
                state.trouble.take_if(|trouble| trouble.class == WATCH);
            });
        }
    }

    async fn on_item(&mut self, item: Option<Item>, stop: &CancellationToken) {
        self.silence.broken();
        let taken = match item {
            // Whoever read the watch is gone, and with it what it held.
            None => Err(BatchError::Gap(Gap {
                from: self.batch.captured().next(),
                to: self.batch.captured().next(),
                cause: GapCause::Lost,
            })),
            Some(Item::Reopened { trouble }) => {
                self.batch.forget_arriving();
                self.on_watch_trouble(trouble);
                return;
            }
            Some(Item::Compacted { oldest }) => Err(BatchError::Gap(Gap {
                from: self.batch.captured().next(),
                to: oldest,
                cause: GapCause::Compacted,
            })),
            Some(Item::Events {
                events,
                is_whole,
                client,
            }) => {
                let learning = self.leases.learn(&client, &events);
                tokio::select! {
                    _ = tokio::time::timeout(LEASES, learning) => {} // what is not known is done without
                    () = stop.cancelled() => {}
                }
                self.tell_of_leases(self.leases.untold(&events));
                self.watch_failures = 0;
                self.take(events, is_whole)
            }
        };
        if let Err(error) = taken {
            self.on_hole(error).await;
        }
        self.publish();
    }

    /// What is stored without the life of its lease comes back with one that is guessed.
    fn tell_of_leases(&mut self, untold: usize) {
        self.metrics.lease_lives_unknown(untold);
        if untold > 0 && self.untold_lives == 0 {
            warn!(
                events = untold,
                "etcd does not tell in time how long leases live: events are stored without that"
            );
        }
        self.untold_lives = self.untold_lives.saturating_add(untold);
    }

    fn take(&mut self, events: Vec<etcd_client::Event>, is_whole: bool) -> Result<(), BatchError> {
        let received = Timestamp::now();
        for event in events {
            self.batch.push(event, received, &self.leases)?;
        }
        if is_whole {
            self.batch.close(&self.leases)?;
        }
        Ok(())
    }

    /// Nothing can be captured behind a hole; what came before it is stored.
    async fn on_hole(&mut self, error: BatchError) {
        let gap = match error {
            BatchError::Gap(gap) => gap,
            other => {
                error!(error = %Chain(&other), "an event cannot be written");
                let from = self.batch.captured().next();
                Gap {
                    from,
                    to: from,
                    cause: GapCause::Lost,
                }
            }
        };
        self.follow = None;
        self.is_due = true;
        self.metrics.gap(gap.cause);
        error!(revision = %gap.from, "{gap}; a full snapshot is taken");
        let _ = self.notices.send(Notice::Gap(gap)).await; // the session may be ending
    }

    /// A watch that cannot be opened is told at once, and then now and again.
    fn on_watch_trouble(&mut self, trouble: Option<EtcdError>) {
        let Some(error) = trouble else { return };
        if self.watch_failures.is_multiple_of(FAILURES_PER_WARNING) {
            warn!(error = %Chain(&error), revision = %self.batch.captured(), "the watch cannot be opened");
        }
        self.watch_failures = self.watch_failures.saturating_add(1);
        crate::state::trouble(&self.board, WATCH, &Chain(&error).to_string());
    }

    fn publish(&mut self) {
        let captured = self.batch.captured();
        self.metrics.buffer_bytes(self.batch.length());
        self.board.send_modify(|state| {
            state.captured = Some(captured);
            state.captured_at = Some(Timestamp::now());
        });
        self.look_behind();
    }

    /// Revisions etcd was seen to have and the capture has not.
    fn revisions_behind(&self) -> i64 {
        let state = self.board.borrow();
        let newest = state.sighting.as_ref().map(|sighting| sighting.revision);
        newest.map_or(0, |newest| {
            newest.0.saturating_sub(self.batch.captured().0).max(0)
        })
    }

    /// Also while nothing arrives: then most of all.
    fn look_behind(&mut self) {
        let behind = self.revisions_behind();
        if behind == 0 {
            self.caught_up = Instant::now();
        }
        self.metrics
            .watch_lag(behind, self.caught_up.elapsed().as_secs_f64());
    }

    /// Once in a while. A watch that hangs is opened anew.
    fn look(&mut self, is_read: bool) {
        self.look_behind();
        let behind = self.revisions_behind();
        if self.follow.is_some() && self.silence.is_too_long(behind, is_read) {
            let captured = self.batch.captured();
            warn!(revision = %captured, behind, "the watch is silent although etcd has more, opening it anew");
            self.batch.forget_arriving();
            self.follow = Some(Follow::start(self.etcd.clone(), captured));
        }
    }

    /// Seals and sends when it is time, one delta after the other.
    async fn ship_if_due(&mut self) {
        if self.is_overtaken {
            return;
        }
        self.answer_who_waits_for_nothing();
        let captured = self.batch.captured();
        let is_full = self.batch.length() >= self.config.limit_bytes;
        let is_asked = self.asked.iter().any(|asked| asked.through <= captured);
        let is_held = *self.held.borrow();
        if is_held || self.shipment.is_some() || !(self.is_due || is_full || is_asked) {
            return;
        }
        self.is_due = false;
        match self.batch.seal(Timestamp::now()) {
            Ok(Some(sealed)) => {
                self.metrics.buffer_bytes(self.batch.length());
                self.send(sealed, 0, Duration::ZERO);
            }
            Ok(None) => {}
            Err(error) => self.on_hole(error).await,
        }
    }

    /// Everything up to what they asked for is stored already.
    fn answer_who_waits_for_nothing(&mut self) {
        if self.shipment.is_some() || !self.batch.is_empty() {
            return;
        }
        let captured = self.batch.captured();
        for asked in take_up_to(&mut self.asked, captured) {
            let _ = asked.reply.send(Ok(None)); // whoever asked may have gone
        }
    }

    fn send(&mut self, sealed: Sealed, attempts: u32, pause: Duration) {
        let shipper = self.shipper.clone();
        let (delta, is_first) = (sealed.clone(), self.is_first);
        let attempt = tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            shipper.attempt(&delta, is_first).await
        });
        self.shipment = Some(Shipment {
            sealed,
            attempts,
            attempt,
            started: Instant::now(),
        });
    }

    async fn on_shipped(&mut self, outcome: Result<Shipped, ShipError>) {
        let Some(shipment) = self.shipment.take() else {
            return;
        };
        let seconds = shipment.started.elapsed().as_secs_f64();
        self.metrics
            .snapshot_finished(Kind::Delta, outcome.is_ok(), seconds);
        match outcome {
            Ok(Shipped { stored, parts }) => {
                self.metrics.upload_parts(parts);
                self.on_stored(stored, &shipment.sealed).await;
            }
            Err(ShipError::Overtaken { reaches, .. }) => self.on_overtaken(reaches, shipment).await,
            Err(error) => self.on_refused(&error, shipment),
        }
    }

    /// What another sidecar has not stored is captured again, or, where etcd has compacted it meanwhile, stored as it is:
    /// whoever restores skips what is there twice.
    async fn on_overtaken(&mut self, reaches: Revision, shipment: Shipment) {
        if self.is_first && reaches < self.batch.captured() {
            let etcd = self.etcd.clone();
            let has_history = etcd.has_history_after(reaches, HISTORY).await;
            if matches!(has_history, Ok(false)) {
                warn!(revision = %reaches, "another sidecar stored these revisions, but etcd has compacted what comes behind them");
                self.is_first = false;
                return self.send(shipment.sealed, shipment.attempts, Duration::ZERO);
            }
        }
        info!(revision = %reaches, "another sidecar stored these revisions, beginning behind them");
        self.follow = None;
        self.is_overtaken = true;
        let _ = self.notices.send(Notice::Overtaken).await; // the session may be ending
    }

    async fn on_stored(&mut self, stored: Stored, sealed: &Sealed) {
        self.is_first = false;
        debug!(object_key = %stored.key, bytes = stored.size, events = sealed.events, "delta stored");
        self.metrics.snapshot_stored(&stored, sealed.raw_bytes);
        for asked in take_up_to(&mut self.asked, stored.name.last) {
            let _ = asked.reply.send(Ok(Some(stored.clone()))); // whoever asked may have gone
        }
        let _ = self.notices.send(Notice::Stored(stored)).await; // the session may be ending
    }

    /// Tries again, later and later; what was captured stays in memory meanwhile.
    fn on_refused(&mut self, error: &ShipError, shipment: Shipment) {
        let attempts = shipment.attempts.saturating_add(1);
        let pause = self.config.backoff.pause(attempts);
        warn!(error = %Chain(error), attempt = attempts, "a delta is not stored, trying again");
        self.metrics.snapshotter_failed(error.class());
        if let ShipError::Store { source, .. } = error {
            self.metrics.store_failed(source.class());
        }
        let reason = Chain(error).to_string();
        crate::state::trouble(&self.board, error.class(), &reason);
        for asked in take_up_to(&mut self.asked, shipment.sealed.name.last) {
            let reason = reason.clone();
            let _ = asked.reply.send(Err(AskError::Failed { reason })); // as above
        }
        self.send(shipment.sealed, attempts, pause);
    }

    /// What was captured is stored before leadership is given up, if that is quick.
    async fn store_the_rest(&mut self) {
        let deadline = Instant::now() + FAREWELL;
        self.follow = None;
        self.is_due = true;
        loop {
            self.ship_if_due().await;
            if self.shipment.is_none() {
                return;
            }
            let wait = tokio::time::timeout_at(deadline, shipped(&mut self.shipment));
            let Ok(outcome) = wait.await else {
                warn!(
                    "what was captured could not be stored in time, the next leader captures it again"
                );
                return;
            };
            // One that did not lead any more had not heard of the farewell: it is tried again.
            let is_over = matches!(&outcome, Err(ShipError::Fenced { source, .. }) if !source.is_not_leading());
            self.on_shipped(outcome).await;
            if is_over {
                return;
            }
            self.is_due = true;
        }
    }
}

fn take_up_to(asked: &mut Vec<Asked>, revision: Revision) -> Vec<Asked> {
    let (due, later) = std::mem::take(asked)
        .into_iter()
        .partition(|asked| asked.through <= revision);
    *asked = later;
    due
}

/// The outcome of the attempt under way; waits for ever when there is none.
async fn shipped(shipment: &mut Option<Shipment>) -> Result<Shipped, ShipError> {
    let Some(shipment) = shipment else {
        return std::future::pending().await;
    };
    let outcome = (&mut shipment.attempt).await;
    outcome.unwrap_or_else(|source| Err(ShipError::BrokeOff { source }))
}

async fn tick(ticks: &mut Option<tokio::time::Interval>) {
    match ticks {
        Some(ticks) => {
            ticks.tick().await;
        }
        None => std::future::pending().await,
    }
}

async fn next(follow: &mut Option<Follow>) -> Option<Item> {
    match follow {
        Some(follow) => follow.next().await,
        None => std::future::pending().await,
    }
}

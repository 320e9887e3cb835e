//! One round of a session: runs a tail, takes full snapshots when they are due, and serves requests.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::name::SnapshotKind;
use mainstay_ids::Revision;
use mainstay_telemetry::ErrorChain;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::full_queue::{FinishedFull, FullQueue, FullRequest};
use super::handle::{SessionRequest, reject};
use super::inventory::Inventory;
use super::leader::BackupLeader;
use super::start_plan::{FullSnapshotReason, StartPlan};
use crate::backup_store::BackupStore;
use crate::election::{OnStop, OnStopCell};
use crate::etcd::EtcdError;
use crate::full::{FullError, UploadedFull};
use crate::schedule::ScheduleTimer;
use crate::snapshotter::{Finality, SnapshotRequestError};
use crate::state::{self, StoredSnapshot};
use crate::tail::{DeltaFlusher, DeltaTail, TailEvent, TailParts};

/// Tail events that may queue; the tail sends one per delta.
const TAIL_EVENT_CAPACITY: usize = 64;
/// Longest sleep until the schedule is checked again: the wall clock may be set meanwhile.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(30);

pub(super) enum RoundEnd {
    Stopped,
    /// Another round follows; it starts with a full snapshot if there is a reason.
    Restart(Option<FullSnapshotReason>),
    /// The tail's task ended without being stopped, for example by a panic.
    TailEnded,
}

pub(super) struct Round<'a> {
    leader: &'a BackupLeader,
    store: &'a BackupStore,
    tail: Option<DeltaTail>,
    tail_stop: CancellationToken,
    on_stop: OnStopCell,
    session_on_stop: &'a OnStopCell,
    tail_events: mpsc::Receiver<TailEvent>,
    full_queue: &'a mut FullQueue,
    schedule: ScheduleTimer,
    inventory: Inventory,
    /// The next full snapshot covers a gap.
    is_bridging: bool,
}

impl<'a> Round<'a> {
    pub(super) async fn start(
        leader: &'a BackupLeader,
        store: &'a BackupStore,
        (plan, inventory): (StartPlan, Inventory),
        full_queue: &'a mut FullQueue,
        session_on_stop: &'a OnStopCell,
    ) -> Result<Self, EtcdError> {
        let (after, held, full) = match plan {
            StartPlan::Continue {
                after,
                backfill_after,
                full,
            } => (
                leader.choose_delta_start(after, backfill_after).await,
                false,
                full,
            ),
            // Capture starts before the snapshot is taken, so that no revision falls between the two.
            StartPlan::FullFirst(because) => {
                full_queue.restart_running().await;
                let now = leader
                    .etcd
                    .read_quorum_revision(leader.fence.timeout)
                    .await?;
                (now, true, Some(because))
            }
            StartPlan::StoreAhead { etcd, .. } => (etcd, true, None), // unreachable: planning refuses it
        };
        let (send, tail_events) = mpsc::channel(TAIL_EVENT_CAPACITY);
        let (tail_stop, on_stop) = (CancellationToken::new(), OnStopCell::default());
        let tail = leader.config.tail.clone().map(|config| {
            let parts = TailParts {
                etcd: leader.etcd.clone(),
                config,
                uploader: leader.build_uploader(store, &on_stop),
                state_tx: leader.state_tx.clone(),
                metrics: leader.metrics.clone(),
                events: send,
            };
            DeltaTail::start(parts, after, held, tail_stop.clone(), on_stop.clone())
        });
        let mut round = Self {
            leader,
            store,
            tail,
            tail_stop,
            on_stop,
            session_on_stop,
            tail_events,
            full_queue,
            schedule: ScheduleTimer::new(leader.config.schedule.clone(), Timestamp::now()),
            inventory,
            is_bridging: held,
        };
        round.record_start(after, full);
        Ok(round)
    }

    fn record_start(&mut self, after: Revision, full: Option<FullSnapshotReason>) {
        info!(revision = %after, "backups started");
        self.leader.state_tx.send_modify(|state| {
            state.captured = Some(after);
        });
        // A full snapshot of the previous round may still be running, and serves this one as well.
        if let Some(because) = full
            && !self.full_queue.has_required_or_running()
        {
            self.request_full(because);
        }
    }

    pub(super) async fn run(
        mut self,
        stop: &CancellationToken,
        asks: &mut mpsc::Receiver<SessionRequest>,
    ) -> RoundEnd {
        let over = loop {
            self.check_schedule();
            self.start_full_if_due();
            let wake = self.next_wake();
            tokio::select! {
                // Biased: a stop wins, and requests cannot starve the tail.
                biased;
                () = stop.cancelled() => break RoundEnd::Stopped,
                ended = self.full_queue.wait_for_finished() => self.on_full_finished(ended),
                notice = self.tail_events.recv(), if self.tail.is_some() => {
                    if let Some(over) = self.on_tail_event(notice) {
                        break over;
                    }
                }
                Some(ask) = asks.recv() => self.on_request(ask),
                () = tokio::time::sleep_until(wake) => {}
            }
        };
        self.shut_down(&over).await;
        over
    }

    /// Queues a full snapshot that the chain needs.
    fn request_full(&mut self, because: FullSnapshotReason) {
        self.leader.metrics.set_required(SnapshotKind::Full, true);
        self.full_queue.enqueue(because, Finality::Ordinary, None);
    }

    fn start_full_if_due(&mut self) {
        let snapshotter = self.leader.build_full_snapshotter(self.store);
        let flusher = self.flusher_for_full();
        let start =
            |finality| tokio::spawn(async move { snapshotter.take(finality, flusher).await });
        if self.full_queue.start_if_due(start) {
            self.leader
                .state_tx
                .send_modify(|state| state.is_full_running = true);
        }
    }

    /// Makes a full snapshot wait for the deltas up to it; `None` while deltas are held back until it is stored.
    fn flusher_for_full(&self) -> Option<DeltaFlusher> {
        self.tail.as_ref().and_then(DeltaTail::flusher_for_full)
    }

    fn on_full_finished(&mut self, ended: FinishedFull) {
        let seconds = ended.duration.as_secs_f64();
        let metrics = &self.leader.metrics;
        metrics.record_snapshot(SnapshotKind::Full, ended.result.is_ok(), seconds);
        self.leader
            .state_tx
            .send_modify(|state| state.is_full_running = false);
        match ended.result {
            Ok(taken) => self.on_full_stored(taken, ended.request, seconds),
            Err(error) => self.on_full_failed(&error, ended.request),
        }
    }

    fn on_full_stored(&mut self, taken: UploadedFull, wanted: FullRequest, seconds: f64) {
        let UploadedFull {
            stored,
            raw_bytes,
            parts,
        } = taken;
        self.leader.metrics.count_upload_parts(parts);
        info!(object_key = %stored.key, bytes = stored.size, raw_bytes, seconds, "full snapshot stored");
        self.leader.metrics.record_stored(&stored, raw_bytes);
        // Another queued snapshot is still required.
        if self.full_queue.is_queue_empty() {
            self.leader.metrics.set_required(SnapshotKind::Full, false);
        }
        self.record_stored(&stored);
        state::record_own_full(&self.leader.state_tx, &stored.name);
        self.report_gap(&stored);
        // Held deltas have a full snapshot before them now.
        if let Some(tail) = &self.tail {
            tail.release();
        }
        wanted.notify_stored(&stored);
    }

    /// Logs revisions that the store lacks for good.
    fn report_gap(&mut self, stored: &StoredSnapshot) {
        let is_bridging = std::mem::take(&mut self.is_bridging);
        if let Some((from, to)) = self.inventory.find_gap_before(stored.name.last)
            && is_bridging
        {
            error!(object_key = %stored.key, "revisions {from} to {to} are missing: no delta covers them before this full snapshot");
        }
    }

    /// Fails the requests. A snapshot that the chain needs is retried with backoff; a requested one is not.
    fn on_full_failed(&mut self, error: &FullError, mut wanted: FullRequest) {
        let reason = ErrorChain(error).to_string();
        warn!(error = %reason, because = wanted.reason.as_str(), "full snapshot failed");
        self.leader.metrics.count_failure(error.class());
        if let FullError::Store { source, .. } = error {
            self.leader.metrics.count_store_error(source.class());
        }
        state::record_failure(&self.leader.state_tx, error.class(), &reason);
        for reply in wanted.replies.drain(..) {
            let reason = reason.clone();
            let _ = reply.send(Err(SnapshotRequestError::Failed { reason })); // the requester may be gone
        }
        // The requester decides whether to retry.
        if wanted.reason == FullSnapshotReason::OnDemand {
            return;
        }
        wanted.attempts = wanted.attempts.saturating_add(1);
        let pause = self.leader.config.backoff.delay(wanted.attempts);
        self.full_queue.retry(wanted, pause);
    }

    /// Handles an aborted snapshot without retrying it; it may have been stored just before the abort.
    fn on_full_aborted(&mut self, ended: FinishedFull) {
        let seconds = ended.duration.as_secs_f64();
        match ended.result {
            Ok(taken) => {
                let metrics = &self.leader.metrics;
                metrics.record_snapshot(SnapshotKind::Full, true, seconds);
                self.on_full_stored(taken, ended.request, seconds);
            }
            Err(error) => self.leader.report_full_failure(&error),
        }
    }

    fn on_tail_event(&mut self, notice: Option<TailEvent>) -> Option<RoundEnd> {
        match notice {
            Some(TailEvent::Stored(stored)) => {
                self.record_stored(&stored);
                None
            }
            Some(TailEvent::Gap) => Some(RoundEnd::Restart(Some(FullSnapshotReason::Gap))),
            Some(TailEvent::Superseded) => Some(RoundEnd::Restart(None)),
            None => Some(RoundEnd::TailEnded),
        }
    }

    fn record_stored(&mut self, stored: &StoredSnapshot) {
        self.inventory.add(stored);
        self.leader.publish(&self.inventory);
        state::clear_failure(&self.leader.state_tx);
    }

    fn on_request(&mut self, ask: SessionRequest) {
        match (ask, &self.tail) {
            (SessionRequest::Full(finality, reply), _) => {
                self.leader.metrics.set_required(SnapshotKind::Full, true);
                self.full_queue
                    .enqueue(FullSnapshotReason::OnDemand, finality, Some(reply));
            }
            (ask @ SessionRequest::Delta(_), None) => {
                reject(ask, SnapshotRequestError::DeltasDisabled);
            }
            (SessionRequest::Delta(reply), Some(tail)) => {
                let (etcd, patience) = (self.leader.etcd.clone(), self.leader.fence.timeout);
                let (flusher, line) = (tail.flusher(), self.leader.snapshot_queue.clone());
                // In its own task: the flush waits for capture and upload, and must not block the round.
                tokio::spawn(async move {
                    let stored = match etcd.read_quorum_revision(patience).await {
                        Ok(now) => flusher.flush(now).await,
                        Err(error) => Err(SnapshotRequestError::Failed {
                            reason: ErrorChain(&error).to_string(),
                        }),
                    };
                    match stored {
                        // The round ended; the next round, if there is one, captures the events again.
                        Err(SnapshotRequestError::Aborted) => {
                            line.requeue(SessionRequest::Delta(reply)).await;
                        }
                        outcome => drop(reply.send(outcome)), // the requester may be gone
                    }
                });
            }
        }
    }

    /// When the schedule, a retry or the next clock check is due.
    fn next_wake(&self) -> Instant {
        let scheduled = self.schedule.next_at().map(|due| {
            let left = due.duration_since(Timestamp::now());
            Instant::now() + Duration::try_from(left).unwrap_or_default()
        });
        let due = scheduled
            .into_iter()
            .chain(self.full_queue.next_start())
            .min();
        let latest = Instant::now() + CLOCK_CHECK_INTERVAL;
        due.map_or(latest, |due| due.min(latest))
    }

    fn check_schedule(&mut self) {
        // A queued full snapshot serves the schedule as well.
        if self.schedule.poll_due(Timestamp::now()) && !self.full_queue.has_required() {
            self.request_full(FullSnapshotReason::Scheduled);
        }
    }

    /// Lets the tail store what it has captured. A running full snapshot continues into the next round, unless the
    /// session stops or a new one is required.
    async fn shut_down(mut self, over: &RoundEnd) {
        // A snapshot that started before a gap does not cover it.
        if matches!(over, RoundEnd::Stopped | RoundEnd::Restart(Some(_))) {
            if let Some(ended) = self.full_queue.abort_all().await {
                self.on_full_aborted(ended);
            }
            self.leader
                .state_tx
                .send_modify(|state| state.is_full_running = false);
        }
        let on_stop = match over {
            RoundEnd::Stopped => self
                .session_on_stop
                .get()
                .copied()
                .unwrap_or(OnStop::Discard),
            // This sidecar still leads, so its captured events are valid.
            RoundEnd::Restart(_) | RoundEnd::TailEnded => OnStop::Store,
        };
        let _ = self.on_stop.set(on_stop); // set only here
        self.tail_stop.cancel();
        if let Some(tail) = self.tail.take() {
            tokio::join!(
                tail.wait_until_ended(),
                drain_tail_events(&mut self.tail_events, &mut self.inventory)
            );
        }
        self.leader.publish(&self.inventory);
    }
}

/// Reads the remaining events, so that the ending tail does not block on a full channel.
async fn drain_tail_events(notices: &mut mpsc::Receiver<TailEvent>, stock: &mut Inventory) {
    while let Some(notice) = notices.recv().await {
        if let TailEvent::Stored(stored) = notice {
            stock.add(&stored);
        }
    }
}

#[cfg(test)]
mod tests;

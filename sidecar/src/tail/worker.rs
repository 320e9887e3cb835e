//! The task that owns the batch: reads the watch, seals and uploads deltas, and answers flush requests.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::name::SnapshotKind;
use mainstay_ids::Revision;
use mainstay_telemetry::ErrorChain;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::batch::{BatchError, DeltaBatch, SealedDelta};
use super::handle::{FlushRequest, TailConfig, TailEvent, TailParts};
use super::lease_ttls::LeaseTtls;
use super::sequence::{CaptureGap, GapCause};
use super::stall_detector::StallDetector;
use super::upload::{DeltaUploadError, DeltaUploader, UploadedDelta};
use super::watcher::{EtcdWatcher, WatchItem};
use crate::election::{OnStop, OnStopCell};
use crate::etcd::{EtcdClient, EtcdError};
use crate::metrics::SidecarMetrics;
use crate::snapshotter::SnapshotRequestError;
use crate::state::{StateSender, StoredSnapshot};

/// How often the capture lag is measured.
const LAG_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long events wait for the TTLs of their leases.
const LEASE_TTL_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout to check whether etcd still has a revision.
const HISTORY_TIMEOUT: Duration = Duration::from_secs(2);
/// Failure class of a broken watch.
const WATCH_FAILURE_CLASS: &str = "watch";
/// Failed attempts per warning: the watch is opened twice a second, so this warns every half minute.
const FAILURES_PER_WARNING: u32 = 60;
/// Timeout to upload the remaining events when leadership ends.
const FINAL_UPLOAD_TIMEOUT: Duration = Duration::from_secs(10);

/// A delta being uploaded.
struct PendingUpload {
    sealed: SealedDelta,
    attempts: u32,
    task: JoinHandle<Result<UploadedDelta, DeltaUploadError>>,
    started_at: Instant,
}

pub(super) struct TailWorker {
    etcd: EtcdClient,
    /// `None` once capture has stopped.
    watcher: Option<EtcdWatcher>,
    batch: DeltaBatch,
    lease_ttls: LeaseTtls,
    config: TailConfig,
    uploader: DeltaUploader,
    state_tx: StateSender,
    metrics: SidecarMetrics,
    events: mpsc::Sender<TailEvent>,
    requests: mpsc::Receiver<FlushRequest>,
    hold: watch::Receiver<bool>,
    is_first_upload: bool,
    /// Another sidecar stored these revisions: nothing more is uploaded.
    is_superseded: bool,
    is_upload_due: bool,
    pending_upload: Option<PendingUpload>,
    flush_requests: Vec<FlushRequest>,
    caught_up_at: Instant,
    stall_detector: StallDetector,
    /// Events captured without the TTL of their lease.
    unknown_ttl_events: usize,
    /// Consecutive failures to open the watch.
    watch_failures: u32,
}

impl TailWorker {
    /// Captures everything after a revision.
    pub(super) fn new(
        parts: TailParts,
        after: Revision,
        requests: mpsc::Receiver<FlushRequest>,
        hold: watch::Receiver<bool>,
    ) -> Self {
        let TailParts {
            etcd,
            config,
            uploader,
            state_tx,
            metrics,
            events,
        } = parts;
        Self {
            watcher: Some(EtcdWatcher::start(etcd.clone(), after)),
            etcd,
            batch: DeltaBatch::starting_after(after, config.compression.clone()),
            lease_ttls: LeaseTtls::default(),
            config,
            uploader,
            state_tx,
            metrics,
            events,
            requests,
            hold,
            is_first_upload: true,
            is_superseded: false,
            is_upload_due: false,
            pending_upload: None,
            flush_requests: Vec::new(),
            caught_up_at: Instant::now(),
            stall_detector: StallDetector::new(),
            unknown_ttl_events: 0,
            watch_failures: 0,
        }
    }

    /// Runs until stopped.
    pub(super) async fn run(mut self, stop: CancellationToken, on_stop: OnStopCell) {
        let mut ticker = self.build_ticker();
        let mut lag_checks = tokio::time::interval(LAG_CHECK_INTERVAL);
        lag_checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.upload_if_due().await;
            // A full batch stops reading the watch: etcd keeps the history until the store catches up.
            let has_room = self.batch.has_room(self.config.limit_bytes);
            tokio::select! {
                // Biased: a stop and finished uploads come first, and a busy watch cannot starve the others.
                biased;
                () = stop.cancelled() => break,
                wait_for_upload = wait_for_upload(&mut self.pending_upload) => self.on_upload_finished(wait_for_upload).await,
                Some(asked) = self.requests.recv() => self.flush_requests.push(asked),
                Ok(()) = self.hold.changed() => {}
                () = next_tick(&mut ticker) => self.on_tick(),
                _ = lag_checks.tick() => self.check_watch(has_room),
                item = next_item(&mut self.watcher), if has_room => self.on_watch_item(item, &stop).await,
            }
        }
        // After a lost leadership nothing more may be written; the next leader captures the rest.
        if on_stop.get() == Some(&OnStop::Store) {
            self.upload_remaining().await;
        }
        if let Some(pending_upload) = self.pending_upload.take() {
            pending_upload.task.abort();
        }
    }

    fn build_ticker(&self) -> Option<tokio::time::Interval> {
        let period = self.config.period?;
        let mut ticker = tokio::time::interval_at(Instant::now() + period, period);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Some(ticker)
    }

    fn on_tick(&mut self) {
        self.is_upload_due = true;
        let is_all_stored = self.batch.is_empty() && self.pending_upload.is_none();
        // An idle period counts as success, or alerts on the age of the last delta would fire without writes.
        if is_all_stored && self.watcher.is_some() && self.lag_revisions() == 0 {
            let now = Timestamp::now();
            self.metrics.record_success(SnapshotKind::Delta, now);
            self.state_tx.send_modify(|state| {
                state.delta_checked_at = Some(now);
                state
                    .failure
                    .take_if(|trouble| trouble.class == WATCH_FAILURE_CLASS);
            });
        }
    }

    async fn on_watch_item(&mut self, item: Option<WatchItem>, stop: &CancellationToken) {
        self.stall_detector.record_progress();
        let taken = match item {
            // The watch task ended, and the events it had read are lost.
            None => Err(BatchError::Gap(CaptureGap {
                from: self.batch.captured().next(),
                to: self.batch.captured().next(),
                cause: GapCause::Lost,
            })),
            Some(WatchItem::Reopened { error: trouble }) => {
                self.batch.discard_partial();
                self.on_watch_error(trouble);
                return;
            }
            Some(WatchItem::Compacted { oldest }) => Err(BatchError::Gap(CaptureGap {
                from: self.batch.captured().next(),
                to: oldest,
                cause: GapCause::Compacted,
            })),
            Some(WatchItem::Events {
                events,
                is_complete,
                client,
            }) => {
                let refresh = self.lease_ttls.refresh(&client, &events);
                tokio::select! {
                    _ = tokio::time::timeout(LEASE_TTL_TIMEOUT, refresh) => {} // events without a TTL are stored anyway
                    () = stop.cancelled() => {}
                }
                self.report_unknown_ttls(self.lease_ttls.count_unknown(&events));
                self.watch_failures = 0;
                self.push_events(events, is_complete)
            }
        };
        if let Err(error) = taken {
            self.on_gap(error).await;
        }
        self.publish_captured();
    }

    /// Warns about the first events without a lease TTL: a restore has to guess the TTL of their leases.
    fn report_unknown_ttls(&mut self, unknown: usize) {
        self.metrics.count_unknown_lease_ttls(unknown);
        if unknown > 0 && self.unknown_ttl_events == 0 {
            warn!(
                events = unknown,
                "lease TTL lookup timed out, storing events without lease TTLs"
            );
        }
        self.unknown_ttl_events = self.unknown_ttl_events.saturating_add(unknown);
    }

    fn push_events(
        &mut self,
        events: Vec<etcd_client::Event>,
        is_complete: bool,
    ) -> Result<(), BatchError> {
        let received = Timestamp::now();
        for event in events {
            self.batch.push(event, received, &self.lease_ttls)?;
        }
        if is_complete {
            self.batch.finish_revision(&self.lease_ttls)?;
        }
        Ok(())
    }

    /// Stops capturing; the events before the gap are still uploaded.
    async fn on_gap(&mut self, error: BatchError) {
        let gap = match error {
            BatchError::Gap(gap) => gap,
            other => {
                error!(error = %ErrorChain(&other), "failed to write an event to the delta");
                let from = self.batch.captured().next();
                CaptureGap {
                    from,
                    to: from,
                    cause: GapCause::Lost,
                }
            }
        };
        self.watcher = None;
        // Upload what came before the gap without waiting for the period.
        self.is_upload_due = true;
        self.metrics.count_gap(gap.cause);
        error!(revision = %gap.from, "{gap}; full snapshot required");
        let _ = self.events.send(TailEvent::Gap).await; // the session may have ended
    }

    /// Logs the first failure to open the watch, and then every half minute.
    fn on_watch_error(&mut self, trouble: Option<EtcdError>) {
        let Some(error) = trouble else { return };
        if self.watch_failures.is_multiple_of(FAILURES_PER_WARNING) {
            warn!(error = %ErrorChain(&error), revision = %self.batch.captured(), "failed to open the watch, retrying");
        }
        self.watch_failures = self.watch_failures.saturating_add(1);
        crate::state::record_failure(
            &self.state_tx,
            WATCH_FAILURE_CLASS,
            &ErrorChain(&error).to_string(),
        );
    }

    fn publish_captured(&mut self) {
        let captured = self.batch.captured();
        self.metrics.set_buffer_bytes(self.batch.raw_len());
        self.state_tx.send_modify(|state| {
            state.captured = Some(captured);
            state.captured_at = Some(Timestamp::now());
        });
        self.update_lag_metrics();
    }

    /// Revisions that etcd has and the capture does not have yet.
    fn lag_revisions(&self) -> i64 {
        let state = self.state_tx.borrow();
        let newest = state
            .member_status
            .as_ref()
            .map(|member_status| member_status.revision);
        newest.map_or(0, |newest| {
            newest.0.saturating_sub(self.batch.captured().0).max(0)
        })
    }

    /// Updates the lag metrics. Also called while no events arrive, which is when the lag matters.
    fn update_lag_metrics(&mut self) {
        let lag = self.lag_revisions();
        if lag == 0 {
            self.caught_up_at = Instant::now();
        }
        self.metrics
            .set_watch_lag(lag, self.caught_up_at.elapsed().as_secs_f64());
    }

    /// Updates the lag and reopens a watch that stalled.
    fn check_watch(&mut self, is_read: bool) {
        self.update_lag_metrics();
        let lag = self.lag_revisions();
        if self.watcher.is_some() && self.stall_detector.is_stalled(lag, is_read) {
            let captured = self.batch.captured();
            warn!(revision = %captured, lag, "watch stalled although etcd has newer revisions, reopening it");
            self.batch.discard_partial();
            self.watcher = Some(EtcdWatcher::start(self.etcd.clone(), captured));
        }
    }

    /// Seals the batch and starts its upload if one is due, one delta at a time.
    async fn upload_if_due(&mut self) {
        if self.is_superseded {
            return;
        }
        self.answer_satisfied_requests();
        let captured = self.batch.captured();
        let is_full = self.batch.raw_len() >= self.config.limit_bytes;
        let is_asked = self
            .flush_requests
            .iter()
            .any(|asked| asked.through <= captured);
        // A delta without a full snapshot before it cannot be restored.
        let is_held = *self.hold.borrow();
        if is_held || self.pending_upload.is_some() || !(self.is_upload_due || is_full || is_asked)
        {
            return;
        }
        self.is_upload_due = false;
        match self.batch.seal(Timestamp::now()) {
            Ok(Some(sealed)) => {
                self.metrics.set_buffer_bytes(self.batch.raw_len());
                self.start_upload(sealed, 0, Duration::ZERO);
            }
            Ok(None) => {}
            Err(error) => self.on_gap(error).await,
        }
    }

    /// Answers requests whose revisions are stored already.
    fn answer_satisfied_requests(&mut self) {
        if self.pending_upload.is_some() || !self.batch.is_empty() {
            return;
        }
        let captured = self.batch.captured();
        for asked in take_requests_through(&mut self.flush_requests, captured) {
            let _ = asked.reply.send(Ok(None)); // the requester may be gone
        }
    }

    fn start_upload(&mut self, sealed: SealedDelta, attempts: u32, pause: Duration) {
        let shipper = self.uploader.clone();
        let (delta, is_first) = (sealed.clone(), self.is_first_upload);
        let task = tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            shipper.try_upload(&delta, is_first).await
        });
        self.pending_upload = Some(PendingUpload {
            sealed,
            attempts,
            task,
            started_at: Instant::now(),
        });
    }

    async fn on_upload_finished(&mut self, outcome: Result<UploadedDelta, DeltaUploadError>) {
        let Some(pending_upload) = self.pending_upload.take() else {
            return;
        };
        let seconds = pending_upload.started_at.elapsed().as_secs_f64();
        self.metrics
            .record_snapshot(SnapshotKind::Delta, outcome.is_ok(), seconds);
        match outcome {
            Ok(UploadedDelta { stored, parts }) => {
                self.metrics.count_upload_parts(parts);
                self.on_stored(stored, &pending_upload.sealed).await;
            }
            Err(DeltaUploadError::Superseded { reaches, .. }) => {
                self.on_superseded(reaches, pending_upload).await;
            }
            Err(error) => self.on_upload_failed(&error, pending_upload),
        }
    }

    /// Another sidecar stored these revisions first. Asks the session to restart capture after them; uploads the delta
    /// anyway if etcd has compacted what follows them, because a restore skips duplicate events.
    async fn on_superseded(&mut self, reaches: Revision, pending_upload: PendingUpload) {
        if self.is_first_upload && reaches < self.batch.captured() {
            let etcd = self.etcd.clone();
            let has_history = etcd.has_history_after(reaches, HISTORY_TIMEOUT).await;
            if matches!(has_history, Ok(false)) {
                warn!(revision = %reaches, "another sidecar stored up to this revision and etcd has compacted the following ones, uploading an overlapping delta");
                self.is_first_upload = false;
                return self.start_upload(
                    pending_upload.sealed,
                    pending_upload.attempts,
                    Duration::ZERO,
                );
            }
        }
        info!(revision = %reaches, "another sidecar stored up to this revision, restarting capture after it");
        self.watcher = None;
        self.is_superseded = true;
        let _ = self.events.send(TailEvent::Superseded).await; // the session may have ended
    }

    async fn on_stored(&mut self, stored: StoredSnapshot, sealed: &SealedDelta) {
        self.is_first_upload = false;
        debug!(object_key = %stored.key, bytes = stored.size, events = sealed.events, "delta stored");
        self.metrics.record_stored(&stored, sealed.raw_bytes);
        for asked in take_requests_through(&mut self.flush_requests, stored.name.last) {
            let _ = asked.reply.send(Ok(Some(stored.clone()))); // the requester may be gone
        }
        let _ = self.events.send(TailEvent::Stored(stored)).await; // the session may have ended
    }

    /// Retries with backoff; the delta stays in memory.
    fn on_upload_failed(&mut self, error: &DeltaUploadError, pending_upload: PendingUpload) {
        let attempts = pending_upload.attempts.saturating_add(1);
        let pause = self.config.backoff.delay(attempts);
        warn!(error = %ErrorChain(error), attempt = attempts, "delta upload failed, retrying");
        self.metrics.count_failure(error.class());
        if let DeltaUploadError::Store { source, .. } = error {
            self.metrics.count_store_error(source.class());
        }
        let reason = ErrorChain(error).to_string();
        crate::state::record_failure(&self.state_tx, error.class(), &reason);
        for asked in
            take_requests_through(&mut self.flush_requests, pending_upload.sealed.name.last)
        {
            let reason = reason.clone();
            let _ = asked
                .reply
                .send(Err(SnapshotRequestError::Failed { reason })); // the requester may be gone
        }
        self.start_upload(pending_upload.sealed, attempts, pause);
    }

    /// Uploads the captured events before the session ends, within a deadline.
    async fn upload_remaining(&mut self) {
        let deadline = Instant::now() + FINAL_UPLOAD_TIMEOUT;
        self.watcher = None;
        self.is_upload_due = true;
        loop {
            self.upload_if_due().await;
            if self.pending_upload.is_none() {
                return;
            }
            let wait = tokio::time::timeout_at(deadline, wait_for_upload(&mut self.pending_upload));
            let Ok(outcome) = wait.await else {
                warn!("remaining events not uploaded in time, the next leader captures them again");
                return;
            };
            // An attempt that started before the stop saw only that leadership ended; retry it with the stop mode set.
            let is_over = matches!(&outcome, Err(DeltaUploadError::Fenced { source, .. }) if !source.is_not_leading());
            self.on_upload_finished(outcome).await;
            if is_over {
                return;
            }
            self.is_upload_due = true;
        }
    }
}

fn take_requests_through(asked: &mut Vec<FlushRequest>, revision: Revision) -> Vec<FlushRequest> {
    let (due, later) = std::mem::take(asked)
        .into_iter()
        .partition(|asked| asked.through <= revision);
    *asked = later;
    due
}

/// Waits for the running upload attempt; for ever if there is none.
async fn wait_for_upload(
    pending_upload: &mut Option<PendingUpload>,
) -> Result<UploadedDelta, DeltaUploadError> {
    let Some(pending_upload) = pending_upload else {
        return std::future::pending().await;
    };
    let outcome = (&mut pending_upload.task).await;
    outcome.unwrap_or_else(|source| Err(DeltaUploadError::Aborted { source }))
}

async fn next_tick(ticker: &mut Option<tokio::time::Interval>) {
    match ticker {
        Some(ticker) => {
            ticker.tick().await;
        }
        None => std::future::pending().await,
    }
}

async fn next_item(follow: &mut Option<EtcdWatcher>) -> Option<WatchItem> {
    match follow {
        Some(follow) => follow.next().await,
        None => std::future::pending().await,
    }
}

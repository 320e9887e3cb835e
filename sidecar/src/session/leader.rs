//! Runs a leader's session: one round after the other, and the other duties of a leader beside them.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use mainstay_archive::name::SnapshotKind;
use mainstay_ids::Revision;
use mainstay_telemetry::ErrorChain;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::full_queue::{FinishedFull, FullQueue};
use super::handle::{SessionRequest, SnapshotQueue, reject};
use super::plan::SessionContext;
use super::round::{Round, RoundEnd};
use crate::backoff::Backoff;
use crate::backup_store::BackupStore;
use crate::election::{LeaderFence, LeaderSession, OnStopCell};
use crate::etcd::EtcdClient;
use crate::full::{FullConfig, FullError, FullSnapshotter};
use crate::metrics::SidecarMetrics;
use crate::schedule::Schedule;
use crate::snapshotter::SnapshotRequestError;
use crate::state::{self, BackupHistory, StateSender};
use crate::tail::{DeltaUploader, TailConfig};

/// Pause before a refused store is checked again.
pub(super) const CONFLICT_RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Work of a leader besides snapshots.
pub(crate) trait LeaderTask: Send + Sync + 'static {
    /// Runs until `stop` is cancelled.
    fn run(self: Arc<Self>, stop: CancellationToken) -> BoxFuture<'static, ()>;
}

#[derive(Clone, Debug)]
pub(crate) struct SessionConfig {
    pub(crate) schedule: Schedule,
    /// `None` disables delta snapshots.
    pub(crate) tail: Option<TailConfig>,
    pub(crate) full: FullConfig,
    /// Pauses between retries.
    pub(crate) backoff: Backoff,
}

/// Everything a session needs.
#[derive(Clone)]
pub(crate) struct BackupLeader {
    pub(crate) etcd: EtcdClient,
    /// Backup store; without one a leader only runs its duties.
    pub(crate) store: Option<BackupStore>,
    pub(crate) config: SessionConfig,
    /// Confirms leadership before an object becomes visible.
    pub(crate) fence: LeaderFence,
    pub(crate) state_tx: StateSender,
    pub(crate) metrics: SidecarMetrics,
    /// Channel for snapshot requests.
    pub(crate) snapshot_queue: SnapshotQueue,
    /// Revision of the newest full snapshot from any writer: a compaction Job may have stored one.
    pub(crate) newest_full: watch::Receiver<Option<Revision>>,
    /// One permit: full snapshots and defragmentation exclude each other.
    pub(crate) maintenance_lock: Arc<Semaphore>,
    pub(crate) tasks: Vec<Arc<dyn LeaderTask>>,
}

impl LeaderSession for BackupLeader {
    fn start(&self, stop: CancellationToken, on_stop: OnStopCell) -> JoinHandle<()> {
        tokio::spawn(self.clone().run(stop, on_stop))
    }
}

impl BackupLeader {
    async fn run(self, stop: CancellationToken, on_stop: OnStopCell) {
        let mut duties = JoinSet::new();
        for duty in &self.tasks {
            duties.spawn(Arc::clone(duty).run(stop.clone()));
        }
        match self.store.clone() {
            Some(bucket) => self.run_backups(&bucket, &stop, &on_stop).await,
            None => stop.cancelled().await,
        }
        // Followers report no backup progress and no backup failure.
        self.state_tx.send_modify(|state| {
            state.captured = None;
            state.captured_at = None;
            state.is_full_running = false;
            state.failure = None;
            // Another member leads: the next session of this sidecar compares again.
            if state.history == BackupHistory::Matched {
                state.history = BackupHistory::Unverified;
            }
        });
        while let Some(ended) = duties.join_next().await {
            if let Err(error) = ended {
                warn!(error = %error, "leader duty failed");
            }
        }
    }

    async fn run_backups(
        &self,
        bucket: &BackupStore,
        stop: &CancellationToken,
        on_stop: &OnStopCell,
    ) {
        let mut asks = self.snapshot_queue.open();
        let (mut context, mut fulls) = (SessionContext::default(), FullQueue::default());
        while let Some(plan) = self.plan_round(bucket, &mut context, stop, &mut asks).await {
            let start = Round::start(self, bucket, plan, &mut fulls, on_stop);
            let over = match stop.run_until_cancelled(start).await {
                Some(Ok(round)) => round.run(stop, &mut asks).await,
                Some(Err(error)) => {
                    self.report_failure("etcd", &ErrorChain(&error).to_string());
                    self.wait_and_reject(self.config.backoff.delay(1), stop, &mut asks)
                        .await;
                    // The required full snapshot was not taken: keep its reason.
                    RoundEnd::Restart(context.forced_full)
                }
                None => RoundEnd::Stopped,
            };
            match over {
                RoundEnd::Stopped => break,
                RoundEnd::Restart(because) => context.forced_full = because,
                RoundEnd::TailEnded => {
                    context.forced_full = None;
                    self.report_failure("internal", "the delta capture task ended unexpectedly");
                    self.wait_and_reject(self.config.backoff.delay(1), stop, &mut asks)
                        .await;
                }
            }
        }
        if let Some(ended) = fulls.abort_all().await {
            self.record_finished_full(ended);
        }
        self.snapshot_queue.close();
    }

    /// Records a snapshot that ended after its round. The inventory learns of it with the next listing.
    fn record_finished_full(&self, ended: FinishedFull) {
        match ended.result {
            Ok(taken) => {
                let seconds = ended.duration.as_secs_f64();
                self.metrics
                    .record_snapshot(SnapshotKind::Full, true, seconds);
                self.metrics.record_stored(&taken.stored, taken.raw_bytes);
                state::record_own_full(&self.state_tx, &taken.stored.name);
                ended.request.notify_stored(&taken.stored);
            }
            Err(error) => self.report_full_failure(&error),
        }
    }

    pub(super) fn report_full_failure(&self, error: &FullError) {
        warn!(error = %ErrorChain(error), "full snapshot failed");
        self.metrics.count_failure(error.class());
    }

    /// Waits; meanwhile answers snapshot requests with the current failure.
    pub(super) async fn wait_and_reject(
        &self,
        pause: Duration,
        stop: &CancellationToken,
        asks: &mut mpsc::Receiver<SessionRequest>,
    ) {
        let over = tokio::time::sleep(pause);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return,
                () = stop.cancelled() => return,
                Some(ask) = asks.recv() => {
                    let trouble = self.state_tx.borrow().failure.clone();
                    let reason = trouble.map_or_else(String::new, |trouble| trouble.message);
                    reject(ask, SnapshotRequestError::Failed { reason });
                }
            }
        }
    }

    /// `false` also if etcd does not answer.
    async fn has_history_after(&self, revision: Revision) -> bool {
        let answer = self.etcd.has_history_after(revision, self.fence.timeout);
        answer.await.unwrap_or(false)
    }

    /// Where deltas continue: after the last delta if etcd still has that history, else after the newest snapshot.
    pub(super) async fn choose_delta_start(
        &self,
        after: Revision,
        deltas_end: Option<Revision>,
    ) -> Revision {
        match deltas_end {
            Some(end) if self.has_history_after(end).await => end,
            _ => after,
        }
    }

    pub(super) fn build_full_snapshotter(&self, bucket: &BackupStore) -> FullSnapshotter {
        FullSnapshotter {
            etcd: self.etcd.clone(),
            store: bucket.clone(),
            fence: self.fence.clone(),
            config: self.config.full.clone(),
            maintenance_lock: Arc::clone(&self.maintenance_lock),
        }
    }

    /// Uploads deltas also after leadership was transferred, if the session is told to store the rest.
    pub(super) fn build_uploader(
        &self,
        bucket: &BackupStore,
        on_stop: &OnStopCell,
    ) -> DeltaUploader {
        DeltaUploader {
            store: bucket.clone(),
            fence: self.fence.with_on_stop(on_stop.clone()),
        }
    }
}

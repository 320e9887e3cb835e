//! From taking over to handing over: one round after the other.

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

use super::fulls::{FinishedFull, FullQueue};
use super::handle::{SessionRequest, SnapshotQueue, reject};
use super::plan::SessionContext;
use super::round::{RoundEnd, Round};
use crate::ask::SnapshotRequestError;
use crate::backoff::Backoff;
use crate::bucket::BackupStore;
use crate::election::{OnStopCell, LeaderFence, LeaderSession};
use crate::etcd::EtcdClient;
use crate::full::{FullConfig, FullError, FullSnapshotter};
use crate::metrics::SidecarMetrics;
use crate::schedule::Schedule;
use crate::state::StateSender;
use crate::tail::{DeltaUploader, TailConfig};

/// How long to wait before looking again at a store that is not etcd's.
pub(super) const CONFLICT_RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// What a leader does besides snapshots. It ends when told to.
pub trait LeaderTask: Send + Sync + 'static {
    /// Does it until told to stop.
    fn run(self: Arc<Self>, stop: CancellationToken) -> BoxFuture<'static, ()>;
}

/// How a leader works.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// When full snapshots are due.
    pub schedule: Schedule,
    /// How deltas are made; `None` makes none.
    pub tail: Option<TailConfig>,
    /// How full snapshots are made.
    pub full: FullConfig,
    /// Between two attempts.
    pub backoff: Backoff,
}

/// What a leader is made of.
#[derive(Clone)]
pub struct BackupLeader {
    /// The etcd beside this sidecar.
    pub etcd: EtcdClient,
    /// Where the backups go; without it a leader only has its duties.
    pub store: Option<BackupStore>,
    /// How it works.
    pub config: SessionConfig,
    /// What is asked before an object is completed.
    pub fence: LeaderFence,
    /// Where it says what it knows.
    pub state_tx: StateSender,
    /// What is measured.
    pub metrics: SidecarMetrics,
    /// Where it is asked.
    pub snapshot_queue: SnapshotQueue,
    /// The newest full snapshot of anybody: a Job may have folded deltas into one meanwhile.
    pub newest_full: watch::Receiver<Option<Revision>>,
    /// Held by whoever must not be disturbed: a full snapshot, or a defragmentation.
    pub maintenance_lock: Arc<Semaphore>,
    /// What it does besides.
    pub tasks: Vec<Arc<dyn LeaderTask>>,
}

impl LeaderSession for BackupLeader {
    fn start(&self, stop: CancellationToken, farewell: OnStopCell) -> JoinHandle<()> {
        tokio::spawn(self.clone().run(stop, farewell))
    }
}

impl BackupLeader {
    async fn run(self, stop: CancellationToken, farewell: OnStopCell) {
        let mut duties = JoinSet::new();
        for duty in &self.tasks {
            duties.spawn(Arc::clone(duty).run(stop.clone()));
        }
        match self.store.clone() {
            Some(bucket) => self.run_backups(&bucket, &stop, &farewell).await,
            None => stop.cancelled().await,
        }
        self.state_tx.send_modify(|state| {
            state.captured = None;
            state.captured_at = None;
            state.is_full_running = false;
            state.failure = None;
        });
        while let Some(ended) = duties.join_next().await {
            if let Err(error) = ended {
                warn!(error = %error, "a duty did not end in an orderly way");
            }
        }
    }

    async fn run_backups(&self, bucket: &BackupStore, stop: &CancellationToken, farewell: &OnStopCell) {
        let mut asks = self.snapshot_queue.open();
        let (mut course, mut fulls) = (SessionContext::default(), FullQueue::default());
        while let Some(plan) = self.plan_round(bucket, &mut course, stop, &mut asks).await {
            let start = Round::start(self, bucket, plan, &mut fulls, farewell);
            let over = match stop.run_until_cancelled(start).await {
                Some(Ok(round)) => round.run(stop, &mut asks).await,
                Some(Err(error)) => {
                    self.report_failure("etcd", &ErrorChain(&error).to_string());
                    self.wait_and_reject(self.config.backoff.delay(1), stop, &mut asks)
                        .await;
                    RoundEnd::Restart(course.forced_full)
                }
                None => RoundEnd::Stopped,
            };
            match over {
                RoundEnd::Stopped => break,
                RoundEnd::Restart(because) => course.forced_full = because,
                RoundEnd::TailEnded => {
                    course.forced_full = None;
                    self.report_failure("internal", "the capture of deltas ended unasked");
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

    /// The store tells of one that was stored, the next time it is listed.
    fn record_finished_full(&self, ended: FinishedFull) {
        match ended.result {
            Ok(taken) => {
                let seconds = ended.duration.as_secs_f64();
                self.metrics.record_snapshot(SnapshotKind::Full, true, seconds);
                self.metrics.record_stored(&taken.stored, taken.raw_bytes);
                ended.request.notify_stored(&taken.stored);
            }
            Err(error) => self.report_full_failure(&error),
        }
    }

    /// A full snapshot is not to be: said and counted.
    pub(super) fn report_full_failure(&self, error: &FullError) {
        warn!(error = %ErrorChain(error), "a full snapshot failed");
        self.metrics.count_failure(error.class());
    }

    /// Waits, and tells those who ask meanwhile why there is no snapshot.
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

    /// No answer is no.
    async fn has_history_after(&self, revision: Revision) -> bool {
        let asked = self.etcd.has_history_after(revision, self.fence.timeout);
        asked.await.unwrap_or(false)
    }

    /// Where deltas go on: where they ended, if etcd still has what comes behind, else after the newest snapshot.
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

    /// Its deltas may be stored until the farewell is over.
    pub(super) fn build_uploader(&self, bucket: &BackupStore, farewell: &OnStopCell) -> DeltaUploader {
        DeltaUploader {
            store: bucket.clone(),
            fence: self.fence.with_on_stop(farewell.clone()),
        }
    }
}

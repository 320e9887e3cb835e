//! From taking over to handing over: one round after the other.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use mainstay_archive::name::Kind;
use mainstay_ids::Revision;
use mainstay_telemetry::Chain;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::fulls::{Ended, Fulls};
use super::handle::{Ask, Line, refuse};
use super::plan::Course;
use super::round::{Over, Round};
use crate::ask::AskError;
use crate::backoff::Backoff;
use crate::bucket::Bucket;
use crate::election::{FarewellNote, Fence, Session};
use crate::etcd::Etcd;
use crate::full::{FullConfig, FullError, FullTaker};
use crate::metrics::Metrics;
use crate::schedule::Schedule;
use crate::state::Board;
use crate::tail::{Shipper, TailConfig};

/// How long to wait before looking again at a store that is not etcd's.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// What a leader does besides snapshots. It ends when told to.
pub trait Duty: Send + Sync + 'static {
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
pub struct Leader {
    /// The etcd beside this sidecar.
    pub etcd: Etcd,
    /// Where the backups go; without it a leader only has its duties.
    pub bucket: Option<Bucket>,
    /// How it works.
    pub config: SessionConfig,
    /// What is asked before an object is completed.
    pub fence: Fence,
    /// Where it says what it knows.
    pub board: Board,
    /// What is measured.
    pub metrics: Metrics,
    /// Where it is asked.
    pub line: Line,
    /// The newest full snapshot of anybody: a Job may have folded deltas into one meanwhile.
    pub full_told: watch::Receiver<Option<Revision>>,
    /// Held by whoever must not be disturbed: a full snapshot, or a defragmentation.
    pub quiet: Arc<Semaphore>,
    /// What it does besides.
    pub duties: Vec<Arc<dyn Duty>>,
}

impl Session for Leader {
    fn start(&self, stop: CancellationToken, farewell: FarewellNote) -> JoinHandle<()> {
        tokio::spawn(self.clone().lead(stop, farewell))
    }
}

impl Leader {
    async fn lead(self, stop: CancellationToken, farewell: FarewellNote) {
        let mut duties = JoinSet::new();
        for duty in &self.duties {
            duties.spawn(Arc::clone(duty).run(stop.clone()));
        }
        match self.bucket.clone() {
            Some(bucket) => self.back_up(&bucket, &stop, &farewell).await,
            None => stop.cancelled().await,
        }
        self.board.send_modify(|state| {
            state.captured = None;
            state.captured_at = None;
            state.full_under_way = false;
            state.trouble = None;
        });
        while let Some(ended) = duties.join_next().await {
            if let Err(error) = ended {
                warn!(error = %error, "a duty did not end in an orderly way");
            }
        }
    }

    async fn back_up(&self, bucket: &Bucket, stop: &CancellationToken, farewell: &FarewellNote) {
        let mut asks = self.line.open();
        let (mut course, mut fulls) = (Course::default(), Fulls::default());
        while let Some(plan) = self.plan(bucket, &mut course, stop, &mut asks).await {
            let start = Round::start(self, bucket, plan, &mut fulls, farewell);
            let over = match stop.run_until_cancelled(start).await {
                Some(Ok(round)) => round.run(stop, &mut asks).await,
                Some(Err(error)) => {
                    self.failed("etcd", &Chain(&error).to_string());
                    self.pause(self.config.backoff.pause(1), stop, &mut asks)
                        .await;
                    Over::BeginAnew(course.forced)
                }
                None => Over::Stopped,
            };
            match over {
                Over::Stopped => break,
                Over::BeginAnew(because) => course.forced = because,
                Over::TailDied => {
                    course.forced = None;
                    self.failed("internal", "the capture of deltas ended unasked");
                    self.pause(self.config.backoff.pause(1), stop, &mut asks)
                        .await;
                }
            }
        }
        if let Some(ended) = fulls.give_up().await {
            self.ended_between_rounds(ended);
        }
        self.line.close();
    }

    /// The store tells of one that was stored, the next time it is listed.
    fn ended_between_rounds(&self, ended: Ended) {
        match ended.outcome {
            Ok(taken) => {
                let seconds = ended.took.as_secs_f64();
                self.metrics.snapshot_finished(Kind::Full, true, seconds);
                self.metrics.snapshot_stored(&taken.stored, taken.raw_bytes);
                ended.wanted.tell(&taken.stored);
            }
            Err(error) => self.given_up(&error),
        }
    }

    /// A full snapshot is not to be: said and counted.
    pub(super) fn given_up(&self, error: &FullError) {
        warn!(error = %Chain(error), "a full snapshot failed");
        self.metrics.snapshotter_failed(error.class());
    }

    /// Waits, and tells those who ask meanwhile why there is no snapshot.
    pub(super) async fn pause(
        &self,
        pause: Duration,
        stop: &CancellationToken,
        asks: &mut mpsc::Receiver<Ask>,
    ) {
        let over = tokio::time::sleep(pause);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return,
                () = stop.cancelled() => return,
                Some(ask) = asks.recv() => {
                    let trouble = self.board.borrow().trouble.clone();
                    let reason = trouble.map_or_else(String::new, |trouble| trouble.text);
                    refuse(ask, AskError::Failed { reason });
                }
            }
        }
    }

    /// No answer is no.
    async fn has_history_after(&self, revision: Revision) -> bool {
        let asked = self.etcd.has_history_after(revision, self.fence.patience);
        asked.await.unwrap_or(false)
    }

    /// Where deltas go on: where they ended, if etcd still has what comes behind, else after the newest snapshot.
    pub(super) async fn furthest_back(
        &self,
        after: Revision,
        deltas_end: Option<Revision>,
    ) -> Revision {
        match deltas_end {
            Some(end) if self.has_history_after(end).await => end,
            _ => after,
        }
    }

    pub(super) fn taker(&self, bucket: &Bucket) -> FullTaker {
        FullTaker {
            etcd: self.etcd.clone(),
            bucket: bucket.clone(),
            fence: self.fence.clone(),
            config: self.config.full.clone(),
            quiet: Arc::clone(&self.quiet),
        }
    }

    /// Its deltas may be stored until the farewell is over.
    pub(super) fn shipper(&self, bucket: &Bucket, farewell: &FarewellNote) -> Shipper {
        Shipper {
            bucket: bucket.clone(),
            fence: self.fence.until(farewell.clone()),
        }
    }
}

//! From taking over to handing over: one round after the other.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use steward_archive::catalogue::Catalogue;
use steward_archive::name::Kind;
use steward_ids::Revision;
use steward_telemetry::Chain;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::begin::{Because, Begin, begin};
use super::handle::{Ask, Line};
use super::round::{Over, Round};
use super::stock::Stock;
use crate::ask::AskError;
use crate::backoff::Backoff;
use crate::bucket::Bucket;
use crate::election::{FarewellNote, Fence, Session};
use crate::etcd::Etcd;
use crate::full::{FullConfig, FullTaker};
use crate::metrics::{GapCause, Metrics};
use crate::schedule::Schedule;
use crate::state::{self, Board};
use crate::tail::{Shipper, TailConfig};

/// How long to wait before looking again at a store that is ahead of etcd.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

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
        let mut forced = None;
        while !stop.is_cancelled() {
            let Some((plan, stock)) = self.plan(bucket, forced, stop, &mut asks).await else {
                break;
            };
            let round = Round::start(self, bucket, plan, stock, farewell);
            let over = match round.await {
                Ok(round) => round.run(stop, &mut asks).await,
                Err(error) => {
                    self.failed("etcd", &Chain(&error).to_string());
                    self.pause(self.config.backoff.pause(1), stop, &mut asks)
                        .await;
                    Over::BeginAnew(forced)
                }
            };
            match over {
                Over::Stopped => break,
                Over::BeginAnew(because) => forced = because,
            }
        }
        self.line.close();
    }

    /// Lists the store until that works, and decides how to begin. `None` when told to stop.
    async fn plan(
        &self,
        bucket: &Bucket,
        forced: Option<Because>,
        stop: &CancellationToken,
        asks: &mut mpsc::Receiver<Ask>,
    ) -> Option<(Begin, Stock)> {
        let mut attempts = 0u32;
        while !stop.is_cancelled() {
            let pause = match self.look(bucket).await {
                Ok((catalogue, etcd)) => match self.decide(&catalogue, etcd, forced) {
                    Begin::StoreAhead { store, etcd } => {
                        self.refuse(store, etcd);
                        LOOK_AGAIN
                    }
                    plan => {
                        let stock = Stock::new(&bucket.config().prefix, catalogue);
                        stock.publish(&self.board, &self.metrics);
                        return Some((plan, stock));
                    }
                },
                Err((class, reason)) => {
                    self.failed(class, &reason);
                    attempts = attempts.saturating_add(1);
                    self.config.backoff.pause(attempts)
                }
            };
            self.pause(pause, stop, asks).await;
        }
        None
    }

    async fn look(&self, bucket: &Bucket) -> Result<(Catalogue, Revision), (&'static str, String)> {
        // etcd after the store: it only grows, so a store that looks ahead is ahead.
        let catalogue = bucket.list().await.map_err(|error| {
            if let Some(error) = error.store() {
                self.metrics.store_failed(error.class());
            }
            ("store", Chain(&error).to_string())
        })?;
        let etcd = self.etcd.confirm(self.fence.patience).await;
        let etcd = etcd.map_err(|error| ("etcd", Chain(&error).to_string()))?;
        Ok((catalogue, etcd))
    }

    fn decide(&self, catalogue: &Catalogue, etcd: Revision, forced: Option<Because>) -> Begin {
        match (
            begin(catalogue, etcd, &self.config.schedule, Timestamp::now()),
            forced,
        ) {
            (ahead @ Begin::StoreAhead { .. }, _) => ahead,
            (_, Some(because)) => Begin::FullFirst(because),
            (plan, None) => plan,
        }
    }

    /// The store is not ours to write.
    fn refuse(&self, store: Revision, etcd: Revision) {
        let text = format!(
            "the store reaches revision {store}, etcd only {etcd}: this etcd does not continue this backup. \
             Restore it from the backup, or give it another --store-prefix"
        );
        error!(revision = %etcd, "{text}");
        let is_new = self
            .board
            .borrow()
            .trouble
            .as_ref()
            .is_none_or(|trouble| trouble.class != "store-ahead");
        if is_new {
            self.metrics.gap(GapCause::StoreAhead);
        }
        self.metrics.snapshotter_failed("store-ahead");
        self.metrics.snapshot_required(Kind::Full, true);
        state::trouble(&self.board, "store-ahead", &text);
    }

    fn failed(&self, class: &'static str, reason: &str) {
        warn!(error = reason, "backups cannot begin, trying again");
        self.metrics.snapshotter_failed(class);
        state::trouble(&self.board, class, reason);
    }

    /// Waits, and tells those who ask meanwhile why there is no snapshot.
    async fn pause(
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
                    refuse_ask(ask, AskError::Failed { reason });
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

    pub(super) fn shipper(&self, bucket: &Bucket) -> Shipper {
        Shipper {
            bucket: bucket.clone(),
            fence: self.fence.clone(),
        }
    }
}

pub(super) fn refuse_ask(ask: Ask, error: AskError) {
    // Whoever asked may have gone.
    match ask {
        Ask::Full(_, reply) => drop(reply.send(Err(error))),
        Ask::Delta(reply) => drop(reply.send(Err(error))),
    }
}

/// Said when a full snapshot is wanted.
pub(super) fn announce(because: Because) {
    info!(because = because.text(), "a full snapshot is due");
}

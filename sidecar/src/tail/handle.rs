//! A tail as the session sees it: started, asked, released, ended.

use std::time::Duration;

use mainstay_archive::compression::Compression;
use mainstay_ids::Revision;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::gapless::CaptureGap;
use super::ship::DeltaUploader;
use super::task::TailWorker;
use crate::ask::SnapshotRequestError;
use crate::backoff::Backoff;
use crate::election::OnStopCell;
use crate::etcd::EtcdClient;
use crate::metrics::SidecarMetrics;
use crate::state::{StateSender, StoredSnapshot};

/// What is asked of the tail may wait in line; there are only a few who ask.
const REQUEST_CAPACITY: usize = 16;

/// How deltas are made.
#[derive(Clone, Debug)]
pub struct TailConfig {
    /// Between two deltas; `None` writes them on demand and by size only.
    pub period: Option<Duration>,
    /// Bytes of text after which a delta is stored at once.
    pub limit_bytes: u64,
    /// How objects are compressed.
    pub compression: Compression,
    /// Between two attempts to store.
    pub backoff: Backoff,
}

/// What the session must know.
#[derive(Debug)]
pub enum TailEvent {
    /// A delta is in the store.
    Stored(StoredSnapshot),
    /// Events are missing: a full snapshot is due. Nothing is captured any more.
    Gap(CaptureGap),
    /// The store reaches further than it did: begin anew behind its end.
    Superseded,
}

/// A running tail.
pub struct DeltaTail {
    requests: mpsc::Sender<FlushRequest>,
    hold: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// What a tail is made of.
pub struct TailParts {
    /// The etcd to follow.
    pub etcd: EtcdClient,
    /// How deltas are made.
    pub config: TailConfig,
    /// Where they go.
    pub uploader: DeltaUploader,
    /// Where the position is written.
    pub state_tx: StateSender,
    /// What is measured.
    pub metrics: SidecarMetrics,
    /// Whom to tell.
    pub events: mpsc::Sender<TailEvent>,
}

impl DeltaTail {
    /// Follows etcd after a revision. While `is_held`, nothing is stored: a delta needs a full snapshot to stand on.
    pub fn start(
        parts: TailParts,
        after: Revision,
        is_held: bool,
        stop: CancellationToken,
        farewell: OnStopCell,
    ) -> Self {
        let (line, asking) = mpsc::channel(REQUEST_CAPACITY);
        let (grip, held) = watch::channel(is_held);
        let worker = TailWorker::new(parts, after, asking, held);
        let task = tokio::spawn(worker.run(stop, farewell));
        Self {
            requests: line,
            hold: grip,
            task,
        }
    }

    /// A handle to ask by, for tasks beside the session.
    pub fn flusher(&self) -> DeltaFlusher {
        DeltaFlusher(self.requests.clone())
    }

    /// A handle for whoever completes a full snapshot; `None` while deltas are held back, which wait for that very one.
    pub fn flusher_for_full(&self) -> Option<DeltaFlusher> {
        let is_held = *self.hold.borrow();
        (!is_held).then(|| self.flusher())
    }

    /// There is a full snapshot now: deltas may be stored.
    pub fn release(&self) {
        self.hold.send_replace(false);
    }

    /// Waits until the tail has ended; it must have been told to.
    pub async fn wait_until_ended(self) {
        if let Err(error) = self.task.await {
            warn!(error = %error, "the tail did not end in an orderly way");
        }
    }
}

/// Asks a tail to store what it has.
pub struct DeltaFlusher(mpsc::Sender<FlushRequest>);

impl DeltaFlusher {
    /// Stores everything up to a revision, once it has arrived. `None` when there was nothing to store.
    pub async fn flush(self, through: Revision) -> Result<Option<StoredSnapshot>, SnapshotRequestError> {
        let PendingFlush(answer) = self.request(through).await;
        answer.await.unwrap_or(Err(SnapshotRequestError::Aborted))
    }

    /// Asks, and leaves it to the caller how long to wait for the answer.
    pub async fn request(self, through: Revision) -> PendingFlush {
        let (reply, answer) = oneshot::channel();
        let _ = self.0.send(FlushRequest { through, reply }).await; // a tail that ended stores nothing
        PendingFlush(answer)
    }
}

/// A delta that was asked for.
pub struct PendingFlush(oneshot::Receiver<Result<Option<StoredSnapshot>, SnapshotRequestError>>);

impl PendingFlush {
    /// Waits until it is stored, or is not to be had, but not for ever.
    pub async fn wait(self, patience: Duration) {
        let _ = tokio::time::timeout(patience, self.0).await; // whoever stores it tells of its troubles
    }
}

/// Who waits for a delta.
pub(super) struct FlushRequest {
    pub(super) through: Revision,
    pub(super) reply: oneshot::Sender<Result<Option<StoredSnapshot>, SnapshotRequestError>>,
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn whoever_asked_for_a_delta_goes_on_when_it_is_stored() {
        let (send, mut tail) = mpsc::channel(1);
        let flushing = DeltaFlusher(send).request(Revision(7)).await;
        let asked = tail.recv().await.unwrap();
        assert_eq!(asked.through, Revision(7));
        let started = Instant::now();
        let storing = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            asked.reply.send(Ok(None)).ok().unwrap();
        };
        tokio::join!(flushing.wait(FLUSH_TIMEOUT), storing);
        assert_eq!(started.elapsed().as_secs(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_tail_that_ended_nor_for_ever() {
        let started = Instant::now();
        let (send, tail) = mpsc::channel(1);
        drop(tail);
        DeltaFlusher(send)
            .request(Revision(7))
            .await
            .wait(FLUSH_TIMEOUT)
            .await;
        assert_eq!(started.elapsed(), Duration::ZERO);

        let (send, _silent) = mpsc::channel(1);
        DeltaFlusher(send)
            .request(Revision(7))
            .await
            .wait(FLUSH_TIMEOUT)
            .await;
        assert_eq!(started.elapsed().as_secs(), FLUSH_TIMEOUT.as_secs());
    }
}

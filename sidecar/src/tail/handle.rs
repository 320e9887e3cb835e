//! Handle of a running tail: start, request deltas, release, wait for its end.

use std::time::Duration;

use mainstay_archive::compression::Compression;
use mainstay_ids::Revision;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::upload::DeltaUploader;
use super::worker::TailWorker;
use crate::backoff::Backoff;
use crate::election::OnStopCell;
use crate::etcd::EtcdClient;
use crate::metrics::SidecarMetrics;
use crate::snapshotter::SnapshotRequestError;
use crate::state::{StateSender, StoredSnapshot};

/// Flush requests that may queue; there are few requesters.
const REQUEST_CAPACITY: usize = 16;

/// Settings of delta snapshots.
#[derive(Clone, Debug)]
pub(crate) struct TailConfig {
    /// Time between two deltas; `None` stores them on demand and by size only.
    pub(crate) period: Option<Duration>,
    /// Uncompressed bytes after which a delta is stored at once.
    pub(crate) limit_bytes: u64,
    pub(crate) compression: Compression,
    /// Pauses between upload attempts.
    pub(crate) backoff: Backoff,
}

/// Event for the session.
#[derive(Debug)]
pub(crate) enum TailEvent {
    /// A delta was stored.
    Stored(StoredSnapshot),
    /// Events are missing and capture has stopped: a full snapshot is required.
    Gap,
    /// Another sidecar stored deltas: restart capture after the store's end.
    Superseded,
}

/// A running tail.
pub(crate) struct DeltaTail {
    requests: mpsc::Sender<FlushRequest>,
    hold: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// Everything a tail needs.
pub(crate) struct TailParts {
    pub(crate) etcd: EtcdClient,
    pub(crate) config: TailConfig,
    pub(crate) uploader: DeltaUploader,
    /// Receives the captured revision.
    pub(crate) state_tx: StateSender,
    pub(crate) metrics: SidecarMetrics,
    /// Channel to the session.
    pub(crate) events: mpsc::Sender<TailEvent>,
}

impl DeltaTail {
    /// Captures etcd's history after a revision. While `is_held`, nothing is stored: a delta needs a full snapshot
    /// before it.
    pub(crate) fn start(
        parts: TailParts,
        after: Revision,
        is_held: bool,
        stop: CancellationToken,
        on_stop: OnStopCell,
    ) -> Self {
        let (line, requests) = mpsc::channel(REQUEST_CAPACITY);
        let (held_tx, held) = watch::channel(is_held);
        let worker = TailWorker::new(parts, after, requests, held);
        let task = tokio::spawn(worker.run(stop, on_stop));
        Self {
            requests: line,
            hold: held_tx,
            task,
        }
    }

    /// Handle for tasks that request deltas.
    pub(crate) fn flusher(&self) -> DeltaFlusher {
        DeltaFlusher(self.requests.clone())
    }

    /// Handle for the full snapshotter; `None` while deltas are held back, because they wait for that full snapshot.
    pub(crate) fn flusher_for_full(&self) -> Option<DeltaFlusher> {
        let is_held = *self.hold.borrow();
        (!is_held).then(|| self.flusher())
    }

    /// Allows uploads, because a full snapshot is stored now.
    pub(crate) fn release(&self) {
        self.hold.send_replace(false);
    }

    /// Waits until the tail has ended; it must have been stopped.
    pub(crate) async fn wait_until_ended(self) {
        if let Err(error) = self.task.await {
            warn!(error = %error, "delta capture task failed");
        }
    }
}

/// Requests that a tail stores its captured events.
pub(crate) struct DeltaFlusher(mpsc::Sender<FlushRequest>);

impl DeltaFlusher {
    /// Stores everything up to a revision, once it is captured. `None` if there was nothing to store.
    pub(crate) async fn flush(
        self,
        through: Revision,
    ) -> Result<Option<StoredSnapshot>, SnapshotRequestError> {
        let PendingFlush(answer) = self.request(through).await;
        answer.await.unwrap_or(Err(SnapshotRequestError::Aborted))
    }

    /// Sends the request; the caller decides how long to wait for the answer.
    pub(crate) async fn request(self, through: Revision) -> PendingFlush {
        let (reply, answer) = oneshot::channel();
        let _ = self.0.send(FlushRequest { through, reply }).await; // a tail that ended drops the request
        PendingFlush(answer)
    }
}

/// A requested delta.
pub(crate) struct PendingFlush(
    oneshot::Receiver<Result<Option<StoredSnapshot>, SnapshotRequestError>>,
);

impl PendingFlush {
    /// Waits until it is stored or failed, at most `timeout`.
    pub(crate) async fn wait(self, timeout: Duration) {
        let _ = tokio::time::timeout(timeout, self.0).await; // the tail logs and retries failures
    }
}

/// A flush request.
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
    async fn flush_returns_when_the_delta_is_stored() {
        let (send, mut tail) = mpsc::channel(1);
        let flushing = DeltaFlusher(send).request(Revision(7)).await;
        let asked = tail.recv().await.unwrap();
        assert_eq!(asked.through, Revision(7));
        let started = Instant::now();
        let upload = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            asked.reply.send(Ok(None)).ok().unwrap();
        };
        tokio::join!(flushing.wait(FLUSH_TIMEOUT), upload);
        assert_eq!(started.elapsed().as_secs(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn flush_returns_when_the_tail_has_ended_or_at_the_timeout() {
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

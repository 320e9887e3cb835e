//! Sends snapshot requests to the current session.

use std::sync::Arc;

use async_trait::async_trait;
use mainstay_archive::catalogue::Catalogue;
use mainstay_telemetry::ErrorChain;
use tokio::sync::{mpsc, oneshot, watch};

use crate::backup_store::BackupStore;
use crate::snapshotter::{Finality, SnapshotRequestError, Snapshotter};
use crate::state::{StateReceiver, StoredSnapshot};

/// A snapshot request.
pub(crate) enum SessionRequest {
    Full(
        Finality,
        oneshot::Sender<Result<StoredSnapshot, SnapshotRequestError>>,
    ),
    Delta(oneshot::Sender<Result<Option<StoredSnapshot>, SnapshotRequestError>>),
}

/// Channel to the current session; `None` inside while no session runs.
#[derive(Clone, Default)]
pub(crate) struct SnapshotQueue(Arc<watch::Sender<Option<mpsc::Sender<SessionRequest>>>>);

/// Requests that may queue; the HTTP server rejects more than that before.
const QUEUE_CAPACITY: usize = 16;

impl SnapshotQueue {
    /// Opens the channel for a session that starts.
    pub(crate) fn open(&self) -> mpsc::Receiver<SessionRequest> {
        let (send, receive) = mpsc::channel(QUEUE_CAPACITY);
        self.0.send_replace(Some(send));
        receive
    }

    /// Passes a request that a round did not serve on to the next round.
    pub(super) async fn requeue(&self, ask: SessionRequest) {
        let line = self.0.borrow().clone();
        let Some(line) = line else {
            return reject(ask, SnapshotRequestError::Aborted);
        };
        if let Err(mpsc::error::SendError(ask)) = line.send(ask).await {
            reject(ask, SnapshotRequestError::Aborted);
        }
    }

    /// Closes the channel: requests fail until the next session starts.
    pub(crate) fn close(&self) {
        self.0.send_replace(None);
    }
}

pub(super) fn reject(ask: SessionRequest, error: SnapshotRequestError) {
    // The requester may be gone.
    match ask {
        SessionRequest::Full(_, reply) => drop(reply.send(Err(error))),
        SessionRequest::Delta(reply) => drop(reply.send(Err(error))),
    }
}

/// Snapshotter that forwards requests to the current session.
pub(crate) struct SnapshotHandle {
    pub(crate) queue: SnapshotQueue,
    /// `None` if no store is configured.
    pub(crate) store: Option<BackupStore>,
    pub(crate) state_rx: StateReceiver,
}

impl SnapshotHandle {
    async fn send_request<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, SnapshotRequestError>>) -> SessionRequest,
    ) -> Result<T, SnapshotRequestError> {
        if self.store.is_none() {
            return Err(SnapshotRequestError::NoStore);
        }
        let line = self.queue.0.borrow().clone();
        let Some(line) = line else {
            let role = self.state_rx.borrow().role.as_str();
            return Err(SnapshotRequestError::NotLeading { role });
        };
        let (reply, answer) = oneshot::channel();
        line.send(request(reply))
            .await
            .map_err(|_| SnapshotRequestError::Aborted)?;
        answer.await.unwrap_or(Err(SnapshotRequestError::Aborted))
    }
}

#[async_trait]
impl Snapshotter for SnapshotHandle {
    async fn take_full(&self, finality: Finality) -> Result<StoredSnapshot, SnapshotRequestError> {
        self.send_request(|reply| SessionRequest::Full(finality, reply))
            .await
    }

    async fn take_delta(&self) -> Result<Option<StoredSnapshot>, SnapshotRequestError> {
        self.send_request(SessionRequest::Delta).await
    }

    async fn list_snapshots(&self) -> Result<Catalogue, SnapshotRequestError> {
        let bucket = self.store.as_ref().ok_or(SnapshotRequestError::NoStore)?;
        bucket
            .list_snapshots()
            .await
            .map_err(|error| SnapshotRequestError::Failed {
                reason: ErrorChain(&error).to_string(),
            })
    }
}

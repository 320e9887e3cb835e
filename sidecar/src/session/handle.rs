//! How others ask the session, whichever leads now.

use std::sync::Arc;

use async_trait::async_trait;
use mainstay_archive::catalogue::Catalogue;
use mainstay_telemetry::ErrorChain;
use tokio::sync::{mpsc, oneshot, watch};

use crate::ask::{SnapshotRequestError, Finality, Snapshotter};
use crate::bucket::BackupStore;
use crate::state::{StoredSnapshot, StateReceiver};

/// What the session is asked.
pub enum SessionRequest {
    /// A full snapshot.
    Full(Finality, oneshot::Sender<Result<StoredSnapshot, SnapshotRequestError>>),
    /// A delta.
    Delta(oneshot::Sender<Result<Option<StoredSnapshot>, SnapshotRequestError>>),
}

/// Where the session that leads now can be reached; empty while none does.
#[derive(Clone, Default)]
pub struct SnapshotQueue(Arc<watch::Sender<Option<mpsc::Sender<SessionRequest>>>>);

/// Questions that may wait; more are refused by the HTTP server before.
const QUEUE_CAPACITY: usize = 16;

impl SnapshotQueue {
    /// A session takes questions from now on, until what it gets is dropped.
    pub fn open(&self) -> mpsc::Receiver<SessionRequest> {
        let (send, receive) = mpsc::channel(QUEUE_CAPACITY);
        self.0.send_replace(Some(send));
        receive
    }

    /// A question one stretch of a session did not come to is left to the next.
    pub(super) async fn requeue(&self, ask: SessionRequest) {
        let line = self.0.borrow().clone();
        let Some(line) = line else {
            return reject(ask, SnapshotRequestError::Aborted);
        };
        if let Err(mpsc::error::SendError(ask)) = line.send(ask).await {
            reject(ask, SnapshotRequestError::Aborted);
        }
    }

    /// No session takes questions.
    pub fn close(&self) {
        self.0.send_replace(None);
    }
}

/// Answers a question with a reason.
pub(super) fn reject(ask: SessionRequest, error: SnapshotRequestError) {
    // Whoever asked may have gone.
    match ask {
        SessionRequest::Full(_, reply) => drop(reply.send(Err(error))),
        SessionRequest::Delta(reply) => drop(reply.send(Err(error))),
    }
}

/// Asks whichever session leads.
pub struct SnapshotHandle {
    /// Where it is reached.
    pub queue: SnapshotQueue,
    /// The store; `None` without one.
    pub store: Option<BackupStore>,
    /// What this sidecar is.
    pub state_rx: StateReceiver,
}

impl SnapshotHandle {
    async fn send_request<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<Result<T, SnapshotRequestError>>) -> SessionRequest,
    ) -> Result<T, SnapshotRequestError> {
        if self.store.is_none() {
            return Err(SnapshotRequestError::NoStore);
        }
        let line = self.queue.0.borrow().clone();
        let Some(line) = line else {
            let standing = self.state_rx.borrow().role.as_str();
            return Err(SnapshotRequestError::NotLeading { role: standing });
        };
        let (reply, answer) = oneshot::channel();
        line.send(question(reply))
            .await
            .map_err(|_| SnapshotRequestError::Aborted)?;
        answer.await.unwrap_or(Err(SnapshotRequestError::Aborted))
    }
}

#[async_trait]
impl Snapshotter for SnapshotHandle {
    async fn take_full(&self, finality: Finality) -> Result<StoredSnapshot, SnapshotRequestError> {
        self.send_request(|reply| SessionRequest::Full(finality, reply)).await
    }

    async fn take_delta(&self) -> Result<Option<StoredSnapshot>, SnapshotRequestError> {
        self.send_request(SessionRequest::Delta).await
    }

    async fn list_snapshots(&self) -> Result<Catalogue, SnapshotRequestError> {
        let bucket = self.store.as_ref().ok_or(SnapshotRequestError::NoStore)?;
        bucket.list_snapshots().await.map_err(|error| SnapshotRequestError::Failed {
            reason: ErrorChain(&error).to_string(),
        })
    }
}

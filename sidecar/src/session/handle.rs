//! How others ask the session, whichever leads now.

use std::sync::Arc;

use async_trait::async_trait;
use mainstay_archive::catalogue::Catalogue;
use mainstay_telemetry::Chain;
use tokio::sync::{mpsc, oneshot, watch};

use crate::ask::{AskError, Finality, Snapshots};
use crate::bucket::Bucket;
use crate::state::{Stored, View};

/// What the session is asked.
pub enum Ask {
    /// A full snapshot.
    Full(Finality, oneshot::Sender<Result<Stored, AskError>>),
    /// A delta.
    Delta(oneshot::Sender<Result<Option<Stored>, AskError>>),
}

/// Where the session that leads now can be reached; empty while none does.
#[derive(Clone, Default)]
pub struct Line(Arc<watch::Sender<Option<mpsc::Sender<Ask>>>>);

/// Questions that may wait; more are refused by the HTTP server before.
const QUESTIONS: usize = 16;

impl Line {
    /// A session takes questions from now on, until what it gets is dropped.
    pub fn open(&self) -> mpsc::Receiver<Ask> {
        let (send, receive) = mpsc::channel(QUESTIONS);
        self.0.send_replace(Some(send));
        receive
    }

    /// A question one stretch of a session did not come to is left to the next.
    pub(super) async fn ask_again(&self, ask: Ask) {
        let line = self.0.borrow().clone();
        let Some(line) = line else {
            return refuse(ask, AskError::Ended);
        };
        if let Err(mpsc::error::SendError(ask)) = line.send(ask).await {
            refuse(ask, AskError::Ended);
        }
    }

    /// No session takes questions.
    pub fn close(&self) {
        self.0.send_replace(None);
    }
}

/// Answers a question with a reason.
pub(super) fn refuse(ask: Ask, error: AskError) {
    // Whoever asked may have gone.
    match ask {
        Ask::Full(_, reply) => drop(reply.send(Err(error))),
        Ask::Delta(reply) => drop(reply.send(Err(error))),
    }
}

/// Asks whichever session leads.
pub struct Handle {
    /// Where it is reached.
    pub line: Line,
    /// The store; `None` without one.
    pub bucket: Option<Bucket>,
    /// What this sidecar is.
    pub view: View,
}

impl Handle {
    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<Result<T, AskError>>) -> Ask,
    ) -> Result<T, AskError> {
        if self.bucket.is_none() {
            return Err(AskError::NoStore);
        }
        let line = self.line.0.borrow().clone();
        let Some(line) = line else {
            let standing = self.view.borrow().standing.word();
            return Err(AskError::NotLeading { standing });
        };
        let (reply, answer) = oneshot::channel();
        line.send(question(reply))
            .await
            .map_err(|_| AskError::Ended)?;
        answer.await.unwrap_or(Err(AskError::Ended))
    }
}

#[async_trait]
impl Snapshots for Handle {
    async fn full(&self, finality: Finality) -> Result<Stored, AskError> {
        self.ask(|reply| Ask::Full(finality, reply)).await
    }

    async fn delta(&self) -> Result<Option<Stored>, AskError> {
        self.ask(Ask::Delta).await
    }

    async fn list(&self) -> Result<Catalogue, AskError> {
        let bucket = self.bucket.as_ref().ok_or(AskError::NoStore)?;
        bucket.list().await.map_err(|error| AskError::Failed {
            reason: Chain(&error).to_string(),
        })
    }
}

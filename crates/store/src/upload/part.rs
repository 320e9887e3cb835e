//! Sending one part of an upload.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use object_store::multipart::PartId;

use crate::backend::{PartPosition, UploadSession};
use crate::error::{AttemptError, StoreError, StoreOperation};
use crate::retry::RetryState;
use crate::store::StoreInner;

/// A part that the store acknowledged.
pub(super) struct SentPart {
    pub(super) index: usize,
    pub(super) id: PartId,
    /// The bytes sent; their buffer is reused.
    pub(super) bytes: Bytes,
}

/// Sends one part, with retries.
pub(super) struct PartTask {
    store: Arc<StoreInner>,
    key: String,
    session: Arc<UploadSession>,
    position: PartPosition,
    bytes: Bytes,
    first_attempt: BoxFuture<'static, Result<PartId, AttemptError>>,
}

impl PartTask {
    /// Creates the first request immediately: OSS numbers parts by the order of these calls.
    pub(super) fn new(
        store: Arc<StoreInner>,
        key: &str,
        session: Arc<UploadSession>,
        position: PartPosition,
        bytes: Bytes,
    ) -> Self {
        let first_attempt = session.send_part(position, bytes.clone());
        Self {
            store,
            key: key.to_owned(),
            session,
            position,
            bytes,
            first_attempt,
        }
    }

    pub(super) async fn run(self) -> Result<SentPart, StoreError> {
        let Self {
            store,
            key,
            session,
            position,
            bytes,
            first_attempt,
        } = self;
        let mut attempts = RetryState::new(store.retry_policy);
        let mut outcome = attempts.with_request_timeout(first_attempt).await;
        loop {
            let fault = match outcome {
                Ok(id) => {
                    let index = position.index;
                    return Ok(SentPart { index, id, bytes });
                }
                Err(fault) => fault,
            };
            let place = || store.location(&key);
            if !session.can_retry_parts() {
                return Err(attempts
                    .give_up(fault)
                    .into_store_error(StoreOperation::UploadPart, place()));
            }
            attempts
                .wait_before_retry(fault)
                .await
                .map_err(|exhausted| {
                    exhausted.into_store_error(StoreOperation::UploadPart, place())
                })?;
            outcome = attempts
                .with_request_timeout(session.send_part(position, bytes.clone()))
                .await;
        }
    }
}

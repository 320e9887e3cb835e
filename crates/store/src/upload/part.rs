//! One part on its way.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use object_store::multipart::PartId;

use crate::backend::{Session, Slot};
use crate::error::{Fault, Step, StoreError};
use crate::retry::Attempts;
use crate::store::Inner;

/// A part the store has.
pub(super) struct SentPart {
    pub(super) index: usize,
    pub(super) id: PartId,
    /// What was sent, for whoever wants the buffer back.
    pub(super) bytes: Bytes,
}

/// Sends one part until the store has it.
pub(super) struct PartTask {
    store: Arc<Inner>,
    key: String,
    session: Arc<Session>,
    slot: Slot,
    bytes: Bytes,
    first: BoxFuture<'static, Result<PartId, Fault>>,
}

impl PartTask {
    /// Prepares the first attempt at once: some clients number parts by the order of these calls.
    pub(super) fn new(
        store: Arc<Inner>,
        key: &str,
        session: Arc<Session>,
        slot: Slot,
        bytes: Bytes,
    ) -> Self {
        let first = session.send(slot, bytes.clone());
        Self {
            store,
            key: key.to_owned(),
            session,
            slot,
            bytes,
            first,
        }
    }

    pub(super) async fn run(self) -> Result<SentPart, StoreError> {
        let Self {
            store,
            key,
            session,
            slot,
            bytes,
            first,
        } = self;
        let mut attempts = Attempts::new(store.patience);
        let mut outcome = attempts.within(first).await;
        loop {
            let fault = match outcome {
                Ok(id) => {
                    let index = slot.index;
                    return Ok(SentPart { index, id, bytes });
                }
                Err(fault) => fault,
            };
            let place = || store.place(&key);
            if !session.repeats_parts() {
                return Err(attempts.give_up(fault).at(Step::Part, place()));
            }
            attempts
                .pause(fault)
                .await
                .map_err(|gave_up| gave_up.at(Step::Part, place()))?;
            outcome = attempts.within(session.send(slot, bytes.clone())).await;
        }
    }
}

//! Reads the last event of a delta, and keeps no more than that.

use std::error::Error as StdError;
use std::io::{self, Read};
use std::num::NonZeroUsize;

use steward_archive::catalogue::Object;
use steward_archive::compression::{OpenError, decoder};
use steward_archive::delta::{DeltaError, DeltaReader};
use steward_store::{SnapStore, StoreError};
use tokio_util::sync::CancellationToken;

use super::kinship::Witness;

/// Bytes of the delta on their way at once.
const BUDGET_BYTES: u64 = 4 << 20;

/// Why there is no last event.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum WitnessError {
    /// The store does not send the delta.
    #[error("open {key}")]
    Store {
        /// The delta.
        key: String,
        /// What the store said.
        source: StoreError,
    },
    /// Its compression cannot be opened.
    #[error("open the compressed stream of {key}")]
    Compression {
        /// The delta.
        key: String,
        /// Why not.
        source: OpenError,
    },
    /// It does not read to its end.
    #[error("read {key}")]
    Delta {
        /// The delta.
        key: String,
        /// Where and why.
        source: DeltaError,
    },
    /// The reading thread is gone.
    #[error("the task that reads {key} ended early")]
    Task {
        /// The delta.
        key: String,
        /// How it ended.
        source: tokio::task::JoinError,
    },
}

impl WitnessError {
    /// Whether the delta itself is at fault, and not the way to it.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Compression { source, .. } => !is_of_the_store(source),
            Self::Delta { source, .. } => !is_of_the_store(source),
            Self::Store { .. } | Self::Task { .. } => false,
        }
    }
}

fn is_of_the_store(error: &(dyn StdError + 'static)) -> bool {
    if error.is::<StoreError>() {
        return true;
    }
    // An I/O error shows the cause of what it carries, not what it carries.
    let carried = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    match carried {
        Some(carried) => is_of_the_store(carried),
        None => error.source().is_some_and(is_of_the_store),
    }
}

/// The last event of a delta; `None` for one without events. Dropping the future stops the reading.
pub(super) async fn last_event(
    store: &SnapStore,
    delta: &Object,
) -> Result<Option<Witness>, WitnessError> {
    let key = || delta.key.clone();
    let download = store
        .download_within(&delta.key, Some(delta.size), BUDGET_BYTES)
        .await
        .map_err(|source| WitnessError::Store { key: key(), source })?;
    let stop = CancellationToken::new();
    let source = Stoppable {
        reader: download.into_reader(),
        stop: stop.clone(),
    };
    let _stop_when_dropped = stop.drop_guard();
    let object = delta.clone();
    tokio::task::spawn_blocking(move || read(&object, source))
        .await
        .map_err(|source| WitnessError::Task { key: key(), source })?
}

/// Only the events of the last revision are looked at: the name tells which that is.
fn read(
    delta: &Object,
    stored: impl Read + Send + 'static,
) -> Result<Option<Witness>, WitnessError> {
    let key = || delta.key.clone();
    let stream = decoder(&delta.name.compression, stored, NonZeroUsize::MIN)
        .map_err(|source| WitnessError::Compression { key: key(), source })?;
    let mut reader = DeltaReader::new(stream);
    let mut last = None;
    loop {
        match reader.next_event() {
            Ok(Some(event)) if event.mod_revision >= delta.name.last => {
                last = Some(Witness::new(&event));
            }
            Ok(Some(_)) => {}
            Ok(None) => return Ok(last),
            Err(source) => return Err(WitnessError::Delta { key: key(), source }),
        }
    }
}

/// A stream that ends in an error once it is not wanted any more.
struct Stoppable<R> {
    reader: R,
    stop: CancellationToken,
}

impl<R: Read> Read for Stoppable<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_cancelled() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.reader.read(buffer)
    }
}

#[cfg(test)]
mod tests;

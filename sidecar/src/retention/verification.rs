//! Verifies one object by reading it to its last byte and comparing it with its name and hash.
//!
//! Memory is constant: the download buffer, the decoder, and for a delta its largest event.

use std::error::Error as StdError;
use std::io::{self, Read};
use std::num::NonZeroUsize;

use mainstay_archive::catalogue::SnapshotObject;
use mainstay_archive::compression::{OpenStreamError, open_decoder};
use mainstay_archive::delta::{DeltaError, DeltaReader};
use mainstay_archive::full::{FullDamage, FullScanner, HashCheck};
use mainstay_archive::name::SnapshotKind;
use mainstay_ids::Revision;
use mainstay_store::{SnapStore, StoreError};

/// Download buffer in bytes; reading ahead further would only take memory from etcd.
const BUDGET_BYTES: u64 = 4 << 20;
/// Read buffer in bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// Damage of an object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectDamage {
    #[error("open the compressed stream")]
    Compression(#[source] OpenStreamError),
    #[error("read after byte {offset}")]
    Read {
        /// Decompressed bytes read so far.
        offset: u64,
        source: io::Error,
    },
    #[error(transparent)]
    Full(#[from] FullDamage),
    #[error("read the events")]
    Delta(#[source] DeltaError),
    /// A revision is missing inside a delta.
    #[error("revisions missing: {found} follows {previous}")]
    Gap {
        /// Last revision before the gap.
        previous: Revision,
        /// First revision after the gap.
        found: Revision,
    },
    /// A delta that does not cover the revisions in its name.
    #[error("events cover only revisions {first} to {last}")]
    Range {
        /// First revision; 0 if there are no events.
        first: Revision,
        last: Revision,
    },
}

/// The object could not be read; it is not known to be damaged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectReadError {
    #[error("open {key}")]
    Open { key: String, source: StoreError },
    /// The download failed in the middle.
    #[error("read {key}")]
    Read { key: String, source: ObjectDamage },
    #[error("task reading {key} failed")]
    Task {
        key: String,
        source: tokio::task::JoinError,
    },
}

/// Verifies an object. Dropping the future stops the download.
pub(super) async fn verify_object(
    store: &SnapStore,
    object: &SnapshotObject,
) -> Result<Result<(), ObjectDamage>, ObjectReadError> {
    let key = || object.key.clone();
    let download = store
        .download_with_budget(&object.key, Some(object.size), BUDGET_BYTES)
        .await
        .map_err(|source| ObjectReadError::Open { key: key(), source })?;
    let (source, _stop_when_dropped) = download.into_cancellable_reader();
    let examined = object.clone();
    let outcome = tokio::task::spawn_blocking(move || verify_stored(&examined, source))
        .await
        .map_err(|source| ObjectReadError::Task { key: key(), source })?;
    match outcome {
        Err(source) if is_store_error(&source) => Err(ObjectReadError::Read { key: key(), source }),
        outcome => Ok(outcome),
    }
}

/// Verifies the stored bytes of an object.
pub(super) fn verify_stored(
    object: &SnapshotObject,
    stored: impl Read + Send + 'static,
) -> Result<(), ObjectDamage> {
    let stream = open_decoder(&object.name.compression, stored, NonZeroUsize::MIN)
        .map_err(ObjectDamage::Compression)?;
    match object.name.kind {
        SnapshotKind::Full => verify_full(stream),
        SnapshotKind::Delta => verify_delta(stream, object.name.start, object.name.last),
    }
}

/// Whether the cause is the download, not the object.
fn is_store_error(error: &(dyn StdError + 'static)) -> bool {
    if error.is::<StoreError>() {
        return true;
    }
    // `io::Error::source` skips the error it wraps and returns that error's source.
    let carried = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    match carried {
        Some(carried) => is_store_error(carried),
        None => error.source().is_some_and(is_store_error),
    }
}

fn verify_full(mut stream: impl Read) -> Result<(), ObjectDamage> {
    let mut scanner = FullScanner::default();
    let mut piece = vec![0; BUFFER_BYTES];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => scanner.push(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => {
                return Err(ObjectDamage::Read {
                    offset: scanner.received(),
                    source,
                });
            }
        };
    }
    scanner.finish(HashCheck::Required)?;
    Ok(())
}

fn verify_delta(stream: impl Read, start: Revision, last: Revision) -> Result<(), ObjectDamage> {
    let mut reader = DeltaReader::new(stream);
    let mut observed: Option<(Revision, Revision)> = None;
    while let Some(event) = reader.next_event().map_err(ObjectDamage::Delta)? {
        let found = event.mod_revision;
        let (first, previous) = observed.unwrap_or((found, found));
        if found > previous.next() {
            return Err(ObjectDamage::Gap { previous, found });
        }
        observed = Some((first, found));
    }
    // A delta may hold more than its name: overlapping events are skipped by every reader.
    match observed {
        Some((first, end)) if first <= start && end >= last => Ok(()),
        observed => {
            let (first, last) = observed.unwrap_or_default();
            Err(ObjectDamage::Range { first, last })
        }
    }
}

#[cfg(test)]
mod tests;

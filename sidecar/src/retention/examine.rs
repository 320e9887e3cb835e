//! Reads one object to its last byte: is it what its name and its hash say?
//!
//! Memory is a constant: the parts of the download on their way, the decoder, and for a delta its largest event.

use std::error::Error as StdError;
use std::io::{self, Read};
use std::num::NonZeroUsize;

use mainstay_archive::catalogue::SnapshotObject;
use mainstay_archive::compression::{OpenStreamError, open_decoder};
use mainstay_archive::delta::{DeltaError, DeltaReader};
use mainstay_archive::name::SnapshotKind;
use mainstay_ids::Revision;
use mainstay_store::{SnapStore, StoreError};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

/// Bytes of an object on their way at once; reading ahead further would only cost memory beside etcd.
const BUDGET_BYTES: u64 = 4 << 20;
/// Bytes handled at once.
const BUFFER_BYTES: usize = 256 << 10;
/// Length of the hash behind a full snapshot.
const HASH_LEN: usize = 32;
/// A full snapshot is a whole number of these, and the hash.
const SECTOR: u64 = 512;

/// What is wrong with an object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectDamage {
    /// It cannot be opened.
    #[error("open the compressed stream")]
    Compression(#[source] OpenStreamError),
    /// It cannot be read on.
    #[error("read on after byte {offset}")]
    Read {
        /// Bytes read so far, decompressed.
        offset: u64,
        /// What the decoder said.
        source: io::Error,
    },
    /// No database with a hash has this length.
    #[error("{bytes} bytes are no database with a hash behind it")]
    Length {
        /// Bytes inside.
        bytes: u64,
    },
    /// The hash is not that of the content.
    #[error("the hash behind {bytes} bytes is not theirs")]
    Hash {
        /// Bytes inside, without the hash.
        bytes: u64,
    },
    /// A delta that does not read to its end.
    #[error("read the events")]
    Delta(#[source] DeltaError),
    /// A revision is missing inside.
    #[error("revision {found} follows revision {previous}")]
    Gap {
        /// The last one before the hole.
        previous: Revision,
        /// The first one behind it.
        found: Revision,
    },
    /// A delta that holds less than its name says.
    #[error("the events begin with revision {first} and end with {last}")]
    Range {
        /// First revision found; 0 when there is none.
        first: Revision,
        /// Last revision found.
        last: Revision,
    },
}

/// The object could not be read; that says nothing about what it holds.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectReadError {
    /// The store did not begin to send it.
    #[error("open {key}")]
    Open {
        /// The object.
        key: String,
        /// What the store said.
        source: StoreError,
    },
    /// The store did not send all of it.
    #[error("read {key}")]
    Read {
        /// The object.
        key: String,
        /// What was seen of it.
        source: ObjectDamage,
    },
    /// The reading thread is gone.
    #[error("the task that reads {key} ended early")]
    Task {
        /// The object.
        key: String,
        /// How it ended.
        source: tokio::task::JoinError,
    },
}

/// Reads an object. Dropping the future stops the reading.
pub(super) async fn verify_object(
    store: &SnapStore,
    object: &SnapshotObject,
) -> Result<Result<(), ObjectDamage>, ObjectReadError> {
    let key = || object.key.clone();
    let download = store
        .download_with_budget(&object.key, Some(object.size), BUDGET_BYTES)
        .await
        .map_err(|source| ObjectReadError::Open { key: key(), source })?;
    let stop = CancellationToken::new();
    let source = CancellableReader {
        reader: download.into_reader(),
        stop: stop.clone(),
    };
    let _stop_when_dropped = stop.drop_guard();
    let examined = object.clone();
    let outcome = tokio::task::spawn_blocking(move || verify_stored(&examined, source))
        .await
        .map_err(|source| ObjectReadError::Task { key: key(), source })?;
    match outcome {
        Err(source) if is_store_error(&source) => Err(ObjectReadError::Read { key: key(), source }),
        outcome => Ok(outcome),
    }
}

/// Reads the stored bytes of an object.
pub(super) fn verify_stored(object: &SnapshotObject, stored: impl Read + Send + 'static) -> Result<(), ObjectDamage> {
    let stream = open_decoder(&object.name.compression, stored, NonZeroUsize::MIN)
        .map_err(ObjectDamage::Compression)?;
    match object.name.kind {
        SnapshotKind::Full => verify_full(stream),
        SnapshotKind::Delta => verify_delta(stream, object.name.start, object.name.last),
    }
}

/// Whether the cause is the way to the object, not the object.
fn is_store_error(error: &(dyn StdError + 'static)) -> bool {
    if error.is::<StoreError>() {
        return true;
    }
    // An I/O error shows the cause of what it carries, not what it carries.
    let carried = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    match carried {
        Some(carried) => is_store_error(carried),
        None => error.source().is_some_and(is_store_error),
    }
}

fn verify_full(mut stream: impl Read) -> Result<(), ObjectDamage> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; BUFFER_BYTES + HASH_LEN];
    let (mut held, mut bytes) = (0, 0_u64); // the last bytes so far may be the hash
    loop {
        let count = match stream.read(&mut piece[held..]) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => {
                return Err(ObjectDamage::Read {
                    offset: bytes,
                    source,
                });
            }
        };
        bytes += count as u64;
        let filled = held + count;
        let surplus = filled.saturating_sub(HASH_LEN);
        hash.update(&piece[..surplus]);
        piece.copy_within(surplus..filled, 0);
        held = filled - surplus;
    }
    if bytes % SECTOR != HASH_LEN as u64 || bytes == HASH_LEN as u64 {
        return Err(ObjectDamage::Length { bytes });
    }
    if hash.finalize().as_slice() == &piece[..held] {
        Ok(())
    } else {
        let bytes = bytes - HASH_LEN as u64;
        Err(ObjectDamage::Hash { bytes })
    }
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
    match observed {
        Some((first, end)) if first <= start && end >= last => Ok(()),
        observed => {
            let (first, last) = observed.unwrap_or_default();
            Err(ObjectDamage::Range { first, last })
        }
    }
}

/// A stream that ends in an error once it is not wanted any more.
struct CancellableReader<R> {
    reader: R,
    stop: CancellationToken,
}

impl<R: Read> Read for CancellableReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_cancelled() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.reader.read(buffer)
    }
}

#[cfg(test)]
mod tests;

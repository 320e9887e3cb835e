//! Reads the last event of a delta, or of a small full snapshot, and keeps no more than that.

use std::error::Error as StdError;
use std::io::{self, Read};
use std::num::NonZeroUsize;

use mainstay_archive::catalogue::SnapshotObject;
use mainstay_archive::compression::{OpenStreamError, open_decoder};
use mainstay_archive::delta::{DeltaError, DeltaReader};
use mainstay_bbolt::{Cursor, Database, Direction, BboltError as BboltError};
use mainstay_mvcc::{KeyValue, KeyValueError, RevisionKey, RevisionKeyError, schema};
use mainstay_store::{SnapStore, StoreError};
use tokio_util::sync::CancellationToken;

use super::kinship::LastEvent;

/// Bytes of the delta on their way at once.
const BUDGET_BYTES: u64 = 4 << 20;
/// A database that is read into memory to find its last event. A larger one is not looked at.
const MAX_DATABASE_BYTES: u64 = 16 << 20;
/// A database is made of blocks of this size; what is behind the last one is its hash.
const BLOCK_BYTES: usize = 512;

/// Why there is no last event.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum LastEventError {
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
        source: OpenStreamError,
    },
    /// It does not read to its end.
    #[error("read {key}")]
    Delta {
        /// The delta.
        key: String,
        /// Where and why.
        source: DeltaError,
    },
    /// It is no database of etcd.
    #[error("read the database in {key}")]
    Full {
        /// The full snapshot.
        key: String,
        /// What is wrong with it.
        source: FullReadError,
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

/// Why a full snapshot has no last event.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum FullReadError {
    /// It does not arrive.
    #[error("read it to its end")]
    Read(#[source] io::Error),
    /// The file is damaged.
    #[error(transparent)]
    Structure(#[from] BboltError),
    /// The newest row has no revision.
    #[error("its newest row")]
    Revision(#[from] RevisionKeyError),
    /// The newest row has no key.
    #[error("its newest row")]
    Row(#[from] KeyValueError),
}

impl LastEventError {
    /// Whether the delta itself is at fault, and not the way to it.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Compression { source, .. } => !is_store_error(source),
            Self::Delta { source, .. } => !is_store_error(source),
            Self::Full { source, .. } => !is_store_error(source),
            Self::Store { .. } | Self::Task { .. } => false,
        }
    }
}

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

/// The last event of a delta; `None` for one without events. Dropping the future stops the reading.
pub(super) async fn read_last_event(
    store: &SnapStore,
    delta: &SnapshotObject,
) -> Result<Option<LastEvent>, LastEventError> {
    open_and_read(store, delta, read_delta).await
}

/// The last event of a full snapshot; `None` for one that has none, or is not small. Dropping the future stops the
/// reading.
pub(super) async fn read_last_row(
    store: &SnapStore,
    full: &SnapshotObject,
) -> Result<Option<LastEvent>, LastEventError> {
    if full.size > MAX_DATABASE_BYTES {
        return Ok(None);
    }
    open_and_read(store, full, read_database).await
}

async fn open_and_read(
    store: &SnapStore,
    object: &SnapshotObject,
    read: fn(&SnapshotObject, ObjectStream) -> Result<Option<LastEvent>, LastEventError>,
) -> Result<Option<LastEvent>, LastEventError> {
    let key = || object.key.clone();
    let download = store
        .download_with_budget(&object.key, Some(object.size), BUDGET_BYTES)
        .await
        .map_err(|source| LastEventError::Store { key: key(), source })?;
    let stop = CancellationToken::new();
    let stored: ObjectStream = Box::new(CancellableReader {
        reader: download.into_reader(),
        stop: stop.clone(),
    });
    let _stop_when_dropped = stop.drop_guard();
    let object = object.clone();
    let reading = tokio::task::spawn_blocking(move || read_delta(&object, stored));
    reading
        .await
        .map_err(|source| LastEventError::Task { key: key(), source })?
}

/// The bytes of an object as they are in the store.
type ObjectStream = Box<dyn Read + Send>;

/// Of a transaction, the last change is the one with the greatest key.
fn read_database(full: &SnapshotObject, stored: ObjectStream) -> Result<Option<LastEvent>, LastEventError> {
    let key = || full.key.clone();
    let stream = open_decoder(&full.name.compression, stored, NonZeroUsize::MIN)
        .map_err(|source| LastEventError::Compression { key: key(), source })?;
    let newest = read_newest_row(stream);
    newest.map_err(|source| LastEventError::Full { key: key(), source })
}

fn read_newest_row(stream: impl Read) -> Result<Option<LastEvent>, FullReadError> {
    let mut bytes = Vec::new();
    let mut stream = stream.take(MAX_DATABASE_BYTES + 1);
    stream.read_to_end(&mut bytes).map_err(FullReadError::Read)?;
    if bytes.len() as u64 > MAX_DATABASE_BYTES {
        return Ok(None);
    }
    bytes.truncate(bytes.len() - bytes.len() % BLOCK_BYTES);
    let database = Database::open(bytes)?;
    let Some(rows) = database.bucket(schema::KEY)? else {
        return Ok(None);
    };
    let mut rows = Cursor::new(&database, &rows, Direction::Backward)?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let at = RevisionKey::decode(row.key)?;
    let change = KeyValue::decode(row.value)?;
    Ok(Some(LastEvent::from_row(at, &change)))
}

/// Only the events of the last revision are looked at: the name tells which that is.
fn read_delta(delta: &SnapshotObject, stored: ObjectStream) -> Result<Option<LastEvent>, LastEventError> {
    let key = || delta.key.clone();
    let stream = open_decoder(&delta.name.compression, stored, NonZeroUsize::MIN)
        .map_err(|source| LastEventError::Compression { key: key(), source })?;
    let mut reader = DeltaReader::new(stream);
    let mut last = None;
    loop {
        match reader.next_event() {
            Ok(Some(event)) if event.mod_revision >= delta.name.last => {
                last = Some(LastEvent::from_event(&event));
            }
            Ok(Some(_)) => {}
            Ok(None) => return Ok(last),
            Err(source) => return Err(LastEventError::Delta { key: key(), source }),
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

//! Reads the last event of a delta or of a small full snapshot.

use std::io::{self, Read};
use std::num::NonZeroUsize;

use mainstay_archive::catalogue::SnapshotObject;
use mainstay_archive::compression::{OpenStreamError, open_decoder};
use mainstay_archive::delta::{DeltaError, DeltaReader};
use mainstay_archive::full::{FullDamage, FullLayout};
use mainstay_backup::{ReadObjectError, read_object};
use mainstay_bbolt::{BboltError, Cursor, Database, Direction};
use mainstay_mvcc::{KeyValue, KeyValueError, RevisionKey, RevisionKeyError, schema};
use mainstay_store::{SnapStore, is_store_failure};

use super::history_match::LastEvent;

/// Download buffer in bytes.
const BUDGET_BYTES: u64 = 4 << 20;
/// Largest full snapshot read into memory to find its last event.
const MAX_DATABASE_BYTES: u64 = 16 << 20;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum LastEventError {
    #[error(transparent)]
    Unread(#[from] ReadObjectError),
    #[error("open the compressed stream of {key}")]
    Compression {
        key: String,
        source: OpenStreamError,
    },
    #[error("read {key}")]
    Delta { key: String, source: DeltaError },
    #[error("read the database in {key}")]
    Full { key: String, source: FullReadError },
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum FullReadError {
    #[error("read the stream")]
    Read(#[source] io::Error),
    #[error(transparent)]
    Damaged(#[from] FullDamage),
    #[error(transparent)]
    Structure(#[from] BboltError),
    #[error("decode the revision of the newest row")]
    Revision(#[from] RevisionKeyError),
    #[error("decode the newest row")]
    Row(#[from] KeyValueError),
}

impl LastEventError {
    /// Whether the object itself is damaged, as opposed to a failed download.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Compression { source, .. } => !is_store_failure(source),
            Self::Delta { source, .. } => !is_store_failure(source),
            Self::Full { source, .. } => !is_store_failure(source),
            Self::Unread(_) => false,
        }
    }
}

/// Returns the last event of a delta; `None` if it has none. Dropping the future stops the download.
pub(super) async fn read_last_event(
    store: &SnapStore,
    delta: &SnapshotObject,
) -> Result<Option<LastEvent>, LastEventError> {
    read_object(store, delta, BUDGET_BYTES, read_delta).await?
}

/// Returns the last event of a full snapshot; `None` if it has none or is too large. Dropping the future stops the
/// download.
pub(super) async fn read_last_row(
    store: &SnapStore,
    full: &SnapshotObject,
) -> Result<Option<LastEvent>, LastEventError> {
    if full.size > MAX_DATABASE_BYTES {
        return Ok(None);
    }
    read_object(store, full, BUDGET_BYTES, read_database).await?
}

/// The stored (compressed) bytes of an object.
type ObjectStream = Box<dyn Read + Send>;

/// Revision keys sort by revision and position in the transaction, so the last row is the last event.
fn read_database(
    full: &SnapshotObject,
    stored: ObjectStream,
) -> Result<Option<LastEvent>, LastEventError> {
    let key = || full.key.clone();
    let stream = open_decoder(&full.name.compression, stored, NonZeroUsize::MIN)
        .map_err(|source| LastEventError::Compression { key: key(), source })?;
    let newest = read_newest_row(stream);
    newest.map_err(|source| LastEventError::Full { key: key(), source })
}

fn read_newest_row(stream: impl Read) -> Result<Option<LastEvent>, FullReadError> {
    let mut bytes = Vec::new();
    let mut stream = stream.take(MAX_DATABASE_BYTES + 1);
    stream
        .read_to_end(&mut bytes)
        .map_err(FullReadError::Read)?;
    // The size was checked compressed; the database may still be too large.
    if bytes.len() as u64 > MAX_DATABASE_BYTES {
        return Ok(None);
    }
    let layout = FullLayout::of(bytes.len() as u64)?;
    bytes.truncate(usize::try_from(layout.database_bytes).unwrap_or(usize::MAX));
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

/// Keeps only events of the last revision, which the name carries.
fn read_delta(
    delta: &SnapshotObject,
    stored: ObjectStream,
) -> Result<Option<LastEvent>, LastEventError> {
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

#[cfg(test)]
mod tests;

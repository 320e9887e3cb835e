//! Reads events from the objects of a backup: the end of a delta, the newest rows of a full snapshot.

use std::fs::File;
use std::io::{self, Read, Write};
use std::num::NonZeroUsize;

use mainstay_archive::catalogue::SnapshotObject;
use mainstay_archive::compression::{OpenStreamError, open_decoder};
use mainstay_archive::delta::{DeltaError, DeltaReader};
use mainstay_archive::full::{FullDamage, FullLayout, FullScanner, HashCheck};
use mainstay_bbolt::{BboltError, Database, ReadAt};
use mainstay_ids::Revision;
use mainstay_mvcc::{
    DatabaseStatus, DatabaseStatusError, KeyValue, KeyValueError, RevisionKey, RevisionKeyError,
    schema,
};

use crate::event::BackupEvent;

/// Read size in bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// Newest rows of a full snapshot that are compared.
const COMPARED_ROWS: usize = 16;
/// Largest number of events of one revision that are compared: a transaction may have many.
pub(crate) const COMPARED_EVENTS: usize = 1024;

/// The stored (compressed) bytes of an object.
pub type ObjectStream = Box<dyn Read + Send>;

/// Why an object gives no evidence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvidenceError {
    /// The object cannot be opened.
    #[error("open {key}")]
    Open {
        /// Key of the object.
        key: String,
        /// Error of the store.
        source: io::Error,
    },
    /// The codec is unknown, or the first bytes are unreadable.
    #[error("open the compressed stream of {key}")]
    Compression {
        /// Key of the object.
        key: String,
        /// Error of the codec.
        source: OpenStreamError,
    },
    /// The delta is unreadable.
    #[error("read {key}")]
    Delta {
        /// Key of the object.
        key: String,
        /// Error of the reader.
        source: DeltaError,
    },
    /// The full snapshot is unreadable.
    #[error("read the database in {key}")]
    Full {
        /// Key of the object.
        key: String,
        /// Error of the reader.
        source: FullReadError,
    },
}

impl EvidenceError {
    /// Key of the object.
    pub fn key(&self) -> &str {
        match self {
            Self::Open { key, .. }
            | Self::Compression { key, .. }
            | Self::Delta { key, .. }
            | Self::Full { key, .. } => key,
        }
    }
}

/// Why a full snapshot is unreadable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FullReadError {
    /// The stream failed.
    #[error("read the stream")]
    Read(#[source] io::Error),
    /// The local copy failed, which says nothing about the object.
    #[error("write the local copy")]
    Scratch(#[source] io::Error),
    /// The length or the hash is that of no full snapshot.
    #[error(transparent)]
    Damaged(#[from] FullDamage),
    /// The structure is damaged.
    #[error(transparent)]
    Structure(#[from] BboltError),
    /// The status is unreadable.
    #[error(transparent)]
    Status(#[from] DatabaseStatusError),
    /// A row has an invalid key.
    #[error("decode the revision of the newest row")]
    Revision(#[from] RevisionKeyError),
    /// A row has an invalid value.
    #[error("decode the newest row")]
    Row(#[from] KeyValueError),
}

/// Reads a delta to its end, which verifies its hash, and returns its last event; `None` if it has none.
pub fn read_last_event(
    delta: &SnapshotObject,
    stored: ObjectStream,
) -> Result<Option<BackupEvent>, EvidenceError> {
    let end = read_delta(delta, stored, Revision(i64::MAX))?;
    // The name carries the last revision; an earlier event is none of the end.
    Ok(end
        .newest
        .last()
        .filter(|event| event.revision >= delta.name.last)
        .cloned())
}

/// What a delta says about a revision.
#[derive(Debug, Default)]
pub(crate) struct DeltaEvidence {
    /// Events of the newest revision that is not above the limit.
    pub(crate) newest: Vec<BackupEvent>,
    /// First revision above the limit.
    pub(crate) beyond: Option<Revision>,
}

/// Reads a delta to its end, which verifies its hash.
pub(crate) fn read_delta(
    delta: &SnapshotObject,
    stored: ObjectStream,
    limit: Revision,
) -> Result<DeltaEvidence, EvidenceError> {
    let key = || delta.key.clone();
    let stream = open_decoder(&delta.name.compression, stored, NonZeroUsize::MIN)
        .map_err(|source| EvidenceError::Compression { key: key(), source })?;
    let mut reader = DeltaReader::new(stream);
    let mut found = DeltaEvidence::default();
    let mut newest = Revision(0);
    // Hashing values is needed near the limit only.
    let first_useful = limit.min(delta.name.last);
    loop {
        let event = match reader.next_event() {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(found),
            Err(source) => return Err(EvidenceError::Delta { key: key(), source }),
        };
        if event.mod_revision > limit {
            found.beyond = found.beyond.or(Some(event.mod_revision));
        } else if event.mod_revision >= first_useful {
            if event.mod_revision > newest {
                newest = event.mod_revision;
                found.newest.clear();
            }
            if found.newest.len() >= COMPARED_EVENTS {
                found.newest.remove(0);
            }
            found.newest.push(BackupEvent::from_event(&event));
        }
    }
}

/// Returns the newest row of a full snapshot of at most `limit_bytes`; `None` if it has none or is larger.
///
/// Revision keys sort by revision and position in the transaction, so the last row is the last event.
pub fn read_newest_row(
    full: &SnapshotObject,
    stored: ObjectStream,
    limit_bytes: u64,
) -> Result<Option<BackupEvent>, EvidenceError> {
    let key = || full.key.clone();
    let stream = open_decoder(&full.name.compression, stored, NonZeroUsize::MIN)
        .map_err(|source| EvidenceError::Compression { key: key(), source })?;
    let newest = read_small_database(stream, limit_bytes);
    newest.map_err(|source| EvidenceError::Full { key: key(), source })
}

fn read_small_database(
    stream: impl Read,
    limit_bytes: u64,
) -> Result<Option<BackupEvent>, FullReadError> {
    let mut bytes = Vec::new();
    let mut stream = stream.take(limit_bytes.saturating_add(1));
    stream
        .read_to_end(&mut bytes)
        .map_err(FullReadError::Read)?;
    // The size was checked compressed; the database may still be too large.
    if bytes.len() as u64 > limit_bytes {
        return Ok(None);
    }
    let layout = FullLayout::of(bytes.len() as u64)?;
    bytes.truncate(usize::try_from(layout.database_bytes).unwrap_or(usize::MAX));
    let rows = read_rows(&Database::open(bytes)?, Revision(i64::MAX), 1)?;
    Ok(rows.newest.into_iter().next())
}

/// What a full snapshot says about a revision.
#[derive(Debug)]
pub(crate) struct BaseEvidence {
    /// Newest rows that are not above the limit, newest first.
    pub(crate) newest: Vec<BackupEvent>,
    /// Revision of the database, which may be newer than the name.
    pub(crate) revision: Revision,
}

/// Reads a full snapshot into `scratch`, verifies its hash, and returns its newest rows up to the limit.
pub(crate) fn read_base(
    full: &SnapshotObject,
    stored: ObjectStream,
    scratch: &File,
    limit: Revision,
) -> Result<BaseEvidence, EvidenceError> {
    let key = || full.key.clone();
    let stream = open_decoder(&full.name.compression, stored, NonZeroUsize::MIN)
        .map_err(|source| EvidenceError::Compression { key: key(), source })?;
    let read = || {
        copy_database(stream, scratch)?;
        read_rows(&Database::open(scratch)?, limit, COMPARED_ROWS)
    };
    read().map_err(|source| EvidenceError::Full { key: key(), source })
}

/// Copies the database of the stream and verifies the hash at its end, if there is one.
fn copy_database(mut stream: impl Read, mut scratch: &File) -> Result<(), FullReadError> {
    let mut scanner = FullScanner::default();
    let mut chunk = vec![0u8; CHUNK_BYTES];
    loop {
        let count = match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(FullReadError::Read(error)),
        };
        for data in scanner.push(chunk.get(..count).unwrap_or_default()) {
            scratch.write_all(data).map_err(FullReadError::Scratch)?;
        }
    }
    // Without a hash it proves nothing, and a restore refuses it.
    scanner.finish(HashCheck::Required)?;
    Ok(())
}

/// Returns the newest rows up to a revision, newest first.
pub(crate) fn read_rows<S: ReadAt>(
    database: &Database<S>,
    limit: Revision,
    count: usize,
) -> Result<BaseEvidence, FullReadError> {
    let status = DatabaseStatus::read(database)?;
    let mut evidence = BaseEvidence {
        newest: Vec::new(),
        revision: status.revision,
    };
    let Some(root) = database.bucket(schema::KEY)? else {
        return Ok(evidence);
    };
    let mut rows = database.scan_back(&root)?;
    if limit < status.revision {
        rows.seek(&RevisionKey::end_of(limit))?;
    }
    while let Some(item) = rows.next()? {
        let at = RevisionKey::decode(item.key)?;
        if at.main > limit {
            continue;
        }
        evidence
            .newest
            .push(BackupEvent::from_row(at, &KeyValue::decode(item.value)?));
        if evidence.newest.len() >= count {
            break;
        }
    }
    Ok(evidence)
}

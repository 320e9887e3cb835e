//! Revisions, raft position and versions of a database, read from a few pages.

use mainstay_bbolt::{BboltError, BucketRoot, Database, OwnedItem, ReadAt};
use mainstay_ids::{RaftIndex, Revision, Term};

use crate::revision_key::{RevisionKey, RevisionKeyError};
use crate::schema;

/// Largest bucket that is read into memory as a whole, in bytes.
const SMALL_BUCKET_BYTES: usize = 64 << 20;

/// Revisions, raft position and versions of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseStatus {
    /// Revision at which a server that opens this file starts.
    pub revision: Revision,
    /// Revision of the newest row; `None` when the store is empty.
    pub last_row: Option<Revision>,
    /// Revision of the last scheduled compaction; `None` when there was none.
    pub scheduled_compact: Option<Revision>,
    /// Revision of the last finished compaction; `None` when there was none.
    pub finished_compact: Option<Revision>,
    /// Raft index of the last applied entry.
    pub consistent_index: Option<RaftIndex>,
    /// Raft term of that entry; `None` before etcd 3.5.
    pub term: Option<Term>,
    /// Raft membership as JSON; `None` before etcd 3.5.
    pub conf_state: Option<String>,
    /// Schema version; `None` before etcd 3.6.
    pub storage_version: Option<String>,
}

/// Why the status of a database cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseStatusError {
    /// The file is corrupt.
    #[error(transparent)]
    Structure(#[from] BboltError),
    /// The key of the newest row is not a revision.
    #[error("decode the newest row of the key bucket")]
    LastRow {
        /// Why the key is invalid.
        source: RevisionKeyError,
    },
    /// A value in the `meta` bucket has the wrong form.
    #[error("invalid {name} in the meta bucket: {len} bytes, expected {expected}")]
    InvalidPosition {
        /// Key in the `meta` bucket.
        name: &'static str,
        /// Length of the value in bytes.
        len: usize,
        /// The expected form.
        expected: &'static str,
    },
    /// A bucket that etcd keeps small exceeds the limit.
    #[error("bucket {name} exceeds {limit} bytes")]
    BucketTooLarge {
        /// Bucket name, invalid UTF-8 replaced.
        name: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// The `key` bucket is missing.
    #[error("not an etcd database: bucket \"key\" not found")]
    NotEtcd,
}

impl DatabaseStatus {
    /// Reads the status from `database`.
    pub fn read<S: ReadAt>(database: &Database<S>) -> Result<Self, DatabaseStatusError> {
        let key = database
            .bucket(schema::KEY)?
            .ok_or(DatabaseStatusError::NotEtcd)?;
        let last_row = read_last_revision(database, &key)?;
        let meta = read_small_bucket(database, schema::META)?;
        let find = |name: &[u8]| {
            meta.iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.as_slice())
        };
        let text = |name: &[u8]| find(name).map(|v| String::from_utf8_lossy(v).into_owned());
        let scheduled_compact =
            parse_compaction("scheduledCompactRev", find(schema::SCHEDULED_COMPACT))?;
        let finished_compact =
            parse_compaction("finishedCompactRev", find(schema::FINISHED_COMPACT))?;
        // After a compaction of everything there is no row left; the compaction still determines the revision.
        let revision = [last_row, scheduled_compact, finished_compact]
            .into_iter()
            .flatten()
            .fold(Revision::EMPTY, Revision::max);
        Ok(Self {
            revision,
            last_row,
            scheduled_compact,
            finished_compact,
            consistent_index: parse_number("consistent_index", find(schema::CONSISTENT_INDEX))?
                .map(RaftIndex),
            term: parse_number("term", find(schema::TERM))?.map(Term),
            conf_state: text(schema::CONF_STATE),
            storage_version: text(schema::STORAGE_VERSION),
        })
    }

    /// Returns the compacted revision; etcd rejects reads below it. `None` when never compacted.
    pub fn compact_revision(&self) -> Option<Revision> {
        self.scheduled_compact.max(self.finished_compact)
    }

    /// Returns true when no scheduled compaction is unfinished.
    pub fn is_compaction_finished(&self) -> bool {
        self.scheduled_compact <= self.finished_compact
    }
}

/// Reads all entries of a small bucket; empty when the bucket does not exist.
pub fn read_small_bucket<S: ReadAt>(
    database: &Database<S>,
    name: &[u8],
) -> Result<Vec<OwnedItem>, DatabaseStatusError> {
    let Some(root) = database.bucket(name)? else {
        return Ok(Vec::new());
    };
    let mut cursor = database.scan(&root)?;
    let mut items = Vec::new();
    let mut bytes = 0;
    while let Some(item) = cursor.next()? {
        bytes += item.key.len() + item.value.len();
        if bytes > SMALL_BUCKET_BYTES {
            let name = String::from_utf8_lossy(name).into_owned();
            return Err(DatabaseStatusError::BucketTooLarge {
                name,
                limit: SMALL_BUCKET_BYTES,
            });
        }
        items.push((item.key.to_vec(), item.value.to_vec()));
    }
    Ok(items)
}

fn read_last_revision<S: ReadAt>(
    database: &Database<S>,
    key: &BucketRoot,
) -> Result<Option<Revision>, DatabaseStatusError> {
    let mut cursor = database.scan_back(key)?;
    let Some(item) = cursor.next()? else {
        return Ok(None);
    };
    let row =
        RevisionKey::decode(item.key).map_err(|source| DatabaseStatusError::LastRow { source })?;
    Ok(Some(row.main))
}

fn parse_compaction(
    name: &'static str,
    value: Option<&[u8]>,
) -> Result<Option<Revision>, DatabaseStatusError> {
    let Some(bytes) = value else { return Ok(None) };
    match RevisionKey::decode(bytes) {
        Ok(key) => Ok(Some(key.main)),
        Err(_) => Err(DatabaseStatusError::InvalidPosition {
            name,
            len: bytes.len(),
            expected: "revision",
        }),
    }
}

fn parse_number(
    name: &'static str,
    value: Option<&[u8]>,
) -> Result<Option<u64>, DatabaseStatusError> {
    let Some(bytes) = value else { return Ok(None) };
    match <[u8; 8]>::try_from(bytes) {
        Ok(bytes) => Ok(Some(u64::from_be_bytes(bytes))),
        Err(_) => Err(DatabaseStatusError::InvalidPosition {
            name,
            len: bytes.len(),
            expected: "8-byte number",
        }),
    }
}

//! What a database says about itself, read in a handful of pages.

use mainstay_bbolt::{BucketRoot, Database, BboltError as BboltError, OwnedItem, ReadAt};
use mainstay_ids::{RaftIndex, Revision, Term};

use crate::revision_key::{RevisionKey, RevisionKeyError};
use crate::schema;

/// Small buckets are read whole; one with more bytes than this is not small.
const SMALL_BUCKET_BYTES: usize = 64 << 20;

/// Where a database stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseStatus {
    /// The revision a server that opens this file starts with.
    pub revision: Revision,
    /// Revision of the newest row; the store is empty without one.
    pub last_row: Option<Revision>,
    /// Compaction begun last.
    pub scheduled_compact: Option<Revision>,
    /// Compaction finished last.
    pub finished_compact: Option<Revision>,
    /// Raft index of the last entry reflected here.
    pub consistent_index: Option<RaftIndex>,
    /// Term of that entry (since 3.5).
    pub term: Option<Term>,
    /// Raft membership as JSON (since 3.5).
    pub conf_state: Option<String>,
    /// Schema version (since 3.6).
    pub storage_version: Option<String>,
}

/// A database whose facts cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseStatusError {
    /// The file is damaged.
    #[error(transparent)]
    Structure(#[from] BboltError),
    /// The newest row has no revision.
    #[error("newest row of the key bucket")]
    LastRow {
        /// What is wrong with it.
        source: RevisionKeyError,
    },
    /// A position in `meta` has the wrong form.
    #[error("{name} in the meta bucket has {len} bytes that are no {expected}")]
    InvalidPosition {
        /// Which.
        name: &'static str,
        /// Its length.
        len: usize,
        /// What it should be.
        expected: &'static str,
    },
    /// A bucket of a few entries holds far too much.
    #[error("bucket {name} holds more than {limit} bytes")]
    BucketTooLarge {
        /// Which.
        name: String,
        /// The limit.
        limit: usize,
    },
    /// There is no `key` bucket: not a database of etcd.
    #[error("there is no bucket named key: this is not an etcd database")]
    NotEtcd,
}

impl DatabaseStatus {
    /// Reads the facts.
    pub fn read<S: ReadAt>(database: &Database<S>) -> Result<Self, DatabaseStatusError> {
        let key = database.bucket(schema::KEY)?.ok_or(DatabaseStatusError::NotEtcd)?;
        let last_row = read_last_revision(database, &key)?;
        let meta = read_small_bucket(database, schema::META)?;
        let find = |name: &[u8]| {
            meta.iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.as_slice())
        };
        let text = |name: &[u8]| find(name).map(|v| String::from_utf8_lossy(v).into_owned());
        let scheduled_compact = parse_compaction("scheduledCompactRev", find(schema::SCHEDULED_COMPACT))?;
        let finished_compact = parse_compaction("finishedCompactRev", find(schema::FINISHED_COMPACT))?;
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

    /// The revision below which reads are refused.
    pub fn compact_revision(&self) -> Option<Revision> {
        self.scheduled_compact.max(self.finished_compact)
    }

    /// Every compaction begun was finished.
    pub fn is_compaction_finished(&self) -> bool {
        self.scheduled_compact <= self.finished_compact
    }
}

/// All entries of a bucket that has only a few; empty when it is not there.
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
    let row = RevisionKey::decode(item.key).map_err(|source| DatabaseStatusError::LastRow { source })?;
    Ok(Some(row.main))
}

fn parse_compaction(name: &'static str, value: Option<&[u8]>) -> Result<Option<Revision>, DatabaseStatusError> {
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

fn parse_number(name: &'static str, value: Option<&[u8]>) -> Result<Option<u64>, DatabaseStatusError> {
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

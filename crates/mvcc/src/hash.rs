//! Hashes a live etcd would answer, computed from the file alone.

use hashbrown::HashSet;
use mainstay_bbolt::{BucketRoot, Database, BboltError as BboltError, ReadAt};
pub use mainstay_ids::HashKv;
use mainstay_ids::Revision;

use crate::digest::{BuildIdentityHasher, KeyDigest, KeyDigester};
use crate::facts::{DatabaseStatus, DatabaseStatusError};
use crate::key_value::{KeyValue, KeyValueError};
use crate::revision_key::{RevisionKey, RevisionKeyError};
use crate::schema;

/// A hash that cannot be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HashError {
    /// The file is damaged.
    #[error(transparent)]
    Structure(#[from] BboltError),
    /// The file's positions cannot be read.
    #[error(transparent)]
    Status(#[from] DatabaseStatusError),
    /// A row has no revision.
    #[error("row {ordinal} of the key bucket")]
    RowKey {
        /// Ordinal in the bucket.
        ordinal: u64,
        /// What is wrong.
        source: RevisionKeyError,
    },
    /// A row has no readable value.
    #[error("row of revision {revision}")]
    RowValue {
        /// Which row.
        revision: Revision,
        /// What is wrong.
        source: KeyValueError,
    },
    /// Not there yet.
    #[error("revision {asked} is in the future, the database is at {current}")]
    FutureRevision {
        /// Asked for.
        asked: Revision,
        /// Newest.
        current: Revision,
    },
    /// No longer there.
    #[error("revision {asked} has been compacted, the oldest is {oldest}")]
    Compacted {
        /// Asked for.
        asked: Revision,
        /// Oldest readable.
        oldest: Revision,
    },
}

/// Which rows at or below the compaction count: those live at the revision asked for.
struct LiveRows {
    /// One bit per such row, newest first.
    bits: Vec<bool>,
    /// No key at all is live: then every row counts.
    is_empty: bool,
}

/// `HashKV` of the key space at `revision` (the newest when `None`).
pub fn hash_kv<S: ReadAt>(
    database: &Database<S>,
    revision: Option<Revision>,
) -> Result<HashKv, HashError> {
    let facts = DatabaseStatus::read(database)?;
    let revision = revision.unwrap_or(facts.revision);
    compute_hash_kv(
        database,
        (facts.revision, facts.compact_revision()),
        revision,
    )
}

/// `HashKV` at `revision` as a server answers that has compacted up to `compact` by then: from a file that may not have been
/// compacted that far, but no farther.
pub fn hash_kv_compacted<S: ReadAt>(
    database: &Database<S>,
    revision: Revision,
    compact: Option<Revision>,
) -> Result<HashKv, HashError> {
    let facts = DatabaseStatus::read(database)?;
    if let Some(oldest) = facts.compact_revision().filter(|own| Some(*own) > compact) {
        return Err(HashError::Compacted {
            asked: compact.unwrap_or_default(),
            oldest,
        });
    }
    compute_hash_kv(database, (facts.revision, compact), revision)
}

fn compute_hash_kv<S: ReadAt>(
    database: &Database<S>,
    (current, compact): (Revision, Option<Revision>),
    revision: Revision,
) -> Result<HashKv, HashError> {
    if revision > current {
        return Err(HashError::FutureRevision {
            asked: revision,
            current,
        });
    }
    if let Some(oldest) = compact.filter(|compact| revision < *compact) {
        return Err(HashError::Compacted {
            asked: revision,
            oldest,
        });
    }
    let key = database.bucket(schema::KEY)?.ok_or(DatabaseStatusError::NotEtcd)?;
    let mut keep = match compact {
        Some(compact) => Some((compact, find_live_rows(database, &key, revision, compact)?)),
        None => None,
    };
    let mut crc = crc32c::crc32c(schema::KEY);
    let mut cursor = database.scan(&key)?;
    let mut ordinal = 0;
    while let Some(item) = cursor.next()? {
        let row = RevisionKey::decode(item.key)
            .map_err(|source| HashError::RowKey { ordinal, source })?;
        ordinal += 1;
        if row.main > revision {
            break;
        }
        if let Some((compact, keep)) = &mut keep
            && row.main <= *compact
        {
            let is_in_use = keep.bits.pop().unwrap_or_default();
            let is_skipped = !keep.is_empty && !is_in_use;
            if is_skipped || (row.main == *compact && row.is_tombstone) {
                continue;
            }
        }
        crc = crc32c::crc32c_append(crc, item.key);
        crc = crc32c::crc32c_append(crc, item.value);
    }
    Ok(HashKv {
        hash: crc,
        revision,
        compact_revision: compact,
    })
}

/// Walks back from `revision`: the first row met of a key is the live one, if it is a put.
fn find_live_rows<S: ReadAt>(
    database: &Database<S>,
    key: &BucketRoot,
    revision: Revision,
    compact: Revision,
) -> Result<LiveRows, HashError> {
    let digester = KeyDigester::default();
    let mut seen: HashSet<KeyDigest, BuildIdentityHasher> = HashSet::default();
    let mut keep = LiveRows {
        bits: Vec::new(),
        is_empty: true,
    };
    let mut cursor = database.scan_back(key)?;
    let mut ordinal = 0;
    while let Some(item) = cursor.next()? {
        let row = RevisionKey::decode(item.key)
            .map_err(|source| HashError::RowKey { ordinal, source })?;
        ordinal += 1;
        if row.main > revision {
            continue;
        }
        let kv = KeyValue::decode(item.value).map_err(|source| HashError::RowValue {
            revision: row.main,
            source,
        })?;
        let is_in_use = seen.insert(digester.digest(kv.key)) && !row.is_tombstone;
        keep.is_empty &= !is_in_use;
        if row.main <= compact {
            keep.bits.push(is_in_use);
        }
    }
    Ok(keep)
}

/// The hash `etcdutl snapshot status` prints: every bucket, every entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusHash {
    /// The hash.
    pub hash: u32,
    /// Entries of all buckets, as versions up to 3.5 count keys.
    pub entries: u64,
}

/// Computes the [`StatusHash`] of a file.
pub fn compute_status_hash<S: ReadAt>(database: &Database<S>) -> Result<StatusHash, HashError> {
    let mut crc = 0;
    let mut entries = 0;
    for (name, root) in database.buckets()? {
        crc = crc32c::crc32c_append(crc, &name);
        let mut cursor = database.scan(&root)?;
        while let Some(item) = cursor.next()? {
            crc = crc32c::crc32c_append(crc, item.key);
            crc = crc32c::crc32c_append(crc, item.value);
            entries += 1;
        }
    }
    Ok(StatusHash { hash: crc, entries })
}

//! Computes the hashes that a live etcd reports, from the file alone.

use hashbrown::HashSet;
use mainstay_bbolt::{BboltError, BucketRoot, Database, ReadAt};
pub use mainstay_ids::HashKv;
use mainstay_ids::Revision;

use crate::digest::{BuildIdentityHasher, KeyDigest, KeyDigester};
use crate::key_value::{KeyValue, KeyValueError};
use crate::revision_key::{RevisionKey, RevisionKeyError};
use crate::schema;
use crate::status::{DatabaseStatus, DatabaseStatusError};

/// Why a hash cannot be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HashError {
    /// The file is corrupt.
    #[error(transparent)]
    Structure(#[from] BboltError),
    /// The status of the database cannot be read.
    #[error(transparent)]
    Status(#[from] DatabaseStatusError),
    /// The key of a row is not a revision.
    #[error("decode the key of row {ordinal} in the key bucket")]
    RowKey {
        /// Number of the row in the bucket, starting at 0.
        ordinal: u64,
        /// Why the key is invalid.
        source: RevisionKeyError,
    },
    /// The value of a row cannot be decoded.
    #[error("decode the row of revision {revision}")]
    RowValue {
        /// Revision of the row.
        revision: Revision,
        /// Why the value is invalid.
        source: KeyValueError,
    },
    /// The requested revision is newer than the database.
    #[error("revision {asked} is newer than the database, which is at revision {current}")]
    FutureRevision {
        /// The requested revision.
        asked: Revision,
        /// Newest revision of the database.
        current: Revision,
    },
    /// The requested revision is compacted.
    #[error("revision {asked} is compacted, the oldest readable revision is {oldest}")]
    Compacted {
        /// The requested revision.
        asked: Revision,
        /// Oldest readable revision.
        oldest: Revision,
    },
}

/// Which rows at or below the compacted revision are hashed: those live at the requested revision.
struct LiveRows {
    /// One bit per such row, newest first.
    bits: Vec<bool>,
    /// No key is live. etcd then hashes every row.
    is_empty: bool,
}

/// Computes `HashKV` at `revision` (the newest when `None`).
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

/// Computes `HashKV` at `revision` as a server with the compacted revision `compact` reports it. The file itself may
/// be compacted less far, but not further.
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
    (current, compact_revision): (Revision, Option<Revision>),
    revision: Revision,
) -> Result<HashKv, HashError> {
    if revision > current {
        return Err(HashError::FutureRevision {
            asked: revision,
            current,
        });
    }
    if let Some(oldest) = compact_revision.filter(|compact_revision| revision < *compact_revision) {
        return Err(HashError::Compacted {
            asked: revision,
            oldest,
        });
    }
    let key = database
        .bucket(schema::KEY)?
        .ok_or(DatabaseStatusError::NotEtcd)?;
    let mut keep = match compact_revision {
        Some(compact_revision) => Some((
            compact_revision,
            find_live_rows(database, &key, revision, compact_revision)?,
        )),
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
        if let Some((compact_revision, keep)) = &mut keep
            && row.main <= *compact_revision
        {
            let is_in_use = keep.bits.pop().unwrap_or_default();
            let is_skipped = !keep.is_empty && !is_in_use;
            // etcd leaves a tombstone of the compacted revision out of the hash, although the row may still exist.
            if is_skipped || (row.main == *compact_revision && row.is_tombstone) {
                continue;
            }
        }
        crc = crc32c::crc32c_append(crc, item.key);
        crc = crc32c::crc32c_append(crc, item.value);
    }
    Ok(HashKv {
        hash: crc,
        revision,
        compact_revision,
    })
}

/// Scans back from `revision`: the first row of a key is the live one, if it is a put.
fn find_live_rows<S: ReadAt>(
    database: &Database<S>,
    key: &BucketRoot,
    revision: Revision,
    compact: Revision,
) -> Result<LiveRows, HashError> {
    let digester = KeyDigester::default();
    let mut visited: HashSet<KeyDigest, BuildIdentityHasher> = HashSet::default();
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
        let is_in_use = visited.insert(digester.digest(kv.key)) && !row.is_tombstone;
        keep.is_empty &= !is_in_use;
        if row.main <= compact {
            keep.bits.push(is_in_use);
        }
    }
    Ok(keep)
}

/// The hash that `etcdutl snapshot status` prints, over every entry of every bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusHash {
    /// CRC-32C.
    pub hash: u32,
    /// Number of entries of all buckets, which etcdutl up to 3.5 reports as total keys.
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

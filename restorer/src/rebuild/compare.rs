//! Whether a rebuilt database holds what a live etcd held: its `HashKV` at a revision, written down when it was asked.

use std::fs::File;

use mainstay_bbolt::{Database, BboltError as BboltError};
use mainstay_ids::{HashKv, Revision};
use mainstay_mvcc::hash::{HashError, hash_kv_compacted};
use serde::{Serialize, Serializer};

/// What came of a comparison that found no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashComparison {
    /// It is what the live etcd held.
    Equal(HashKv),
    /// The backup keeps less history than the hash covers, so there is nothing to compare.
    Compacted {
        /// The hash that was to be found.
        expected: HashKv,
        /// The oldest revision of the database.
        oldest: Revision,
    },
}

impl Serialize for HashComparison {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (word, hash) = match self {
            Self::Equal(hash) => ("equal", hash),
            Self::Compacted { expected, .. } => ("compacted", expected),
        };
        serializer.collect_str(&format_args!("{word} {hash}"))
    }
}

/// A database that is not what the live etcd held, or cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// The file.
    #[error("open the rebuilt database")]
    Open {
        /// Why.
        source: BboltError,
    },
    /// The hash.
    #[error("compute the HashKV of the rebuilt database")]
    Hash {
        /// Why.
        source: HashError,
    },
    /// Another hash.
    #[error(
        "the backup is not what etcd held: its HashKV at revision {revision} is {found:08x}, that of the live etcd was \
         {expected:08x}"
    )]
    Differs {
        /// Of both.
        revision: Revision,
        /// Of the backup.
        found: u32,
        /// Of the live etcd.
        expected: u32,
    },
}

/// Compares.
pub fn compare_hash_kv(file: &File, expected: HashKv) -> Result<HashComparison, CompareError> {
    let database = Database::open(file).map_err(|source| CompareError::Open { source })?;
    let HashKv {
        revision,
        compact_revision,
        ..
    } = expected;
    match hash_kv_compacted(&database, revision, compact_revision) {
        Ok(found) if found == expected => Ok(HashComparison::Equal(found)),
        Ok(found) => Err(CompareError::Differs {
            revision,
            found: found.hash,
            expected: expected.hash,
        }),
        Err(HashError::Compacted { oldest, .. }) => Ok(HashComparison::Compacted { expected, oldest }),
        Err(source) => Err(CompareError::Hash { source }),
    }
}

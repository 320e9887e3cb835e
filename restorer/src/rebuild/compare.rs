//! Compares a rebuilt database with a live etcd by the `HashKV` that etcd reported at a revision.

use std::fs::File;

use mainstay_bbolt::{BboltError, Database};
use mainstay_ids::{HashKv, Revision};
use mainstay_mvcc::hash::{HashError, hash_kv_compacted};
use serde::{Serialize, Serializer};

/// Result of a comparison that found no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashComparison {
    /// The hashes match.
    Equal(HashKv),
    /// The backup is compacted beyond the history that the hash covers, so they cannot be compared.
    Compacted {
        expected: HashKv,
        /// Oldest revision of the database.
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

/// Error of the comparison.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CompareError {
    #[error("failed to open the rebuilt database")]
    Open { source: BboltError },
    #[error("failed to compute the HashKV of the rebuilt database")]
    Hash { source: HashError },
    #[error(
        "backup does not match the live etcd: HashKV at revision {revision} is {found:08x} in the backup, but was \
         {expected:08x} in etcd"
    )]
    Differs {
        revision: Revision,
        /// Hash of the backup.
        found: u32,
        /// Hash of the live etcd.
        expected: u32,
    },
}

/// Compares the database with the expected hash.
pub(crate) fn compare_hash_kv(
    file: &File,
    expected: HashKv,
) -> Result<HashComparison, CompareError> {
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
        // A compacted backup is not damaged: it only has less history than the hash covers.
        Err(HashError::Compacted { oldest, .. }) => {
            Ok(HashComparison::Compacted { expected, oldest })
        }
        Err(source) => Err(CompareError::Hash { source }),
    }
}

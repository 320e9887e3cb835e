//! Errors of a rebuild, with the object and the offset or revision.

use std::io;

use mainstay_archive::compression::OpenStreamError;
use mainstay_archive::delta::DeltaError;
use mainstay_archive::full::FullDamage;
use mainstay_bbolt::BboltError;
use mainstay_ids::Revision;
use mainstay_mvcc::DatabaseStatusError;
use mainstay_mvcc::hash::HashError;

impl RebuildError {
    /// Names the full snapshot that is damaged.
    pub(crate) fn from_full_damage(object: String, damage: FullDamage) -> Self {
        match damage {
            FullDamage::Length { bytes } => Self::BaseLength { object, bytes },
            FullDamage::Unhashed { .. } => Self::BaseUnhashed { object },
            FullDamage::Hash {
                stored, computed, ..
            } => Self::BaseHash {
                object,
                stored,
                computed,
            },
        }
    }

    /// Returns the name of the unusable object, if one is to blame: another chain may not need it.
    pub(crate) fn failed_object(&self) -> Option<&str> {
        match self {
            Self::Open { object, .. }
            | Self::Compression { object, .. }
            | Self::ReadBase { object, .. }
            | Self::BaseLength { object, .. }
            | Self::BaseUnhashed { object }
            | Self::BaseHash { object, .. }
            | Self::BaseStructure { object, .. }
            | Self::BaseFacts { object, .. }
            | Self::BaseRow { object, .. }
            | Self::Delta { object, .. }
            | Self::RevisionBeforeName { object, .. }
            | Self::Compacted { object, .. } => Some(object),
            _ => None,
        }
    }
}

/// Error of a rebuild. The file must not be used after it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RebuildError {
    #[error("failed to open {object}")]
    Open { object: String, source: io::Error },
    #[error("failed to decompress {object}")]
    Compression {
        object: String,
        source: OpenStreamError,
    },
    #[error("failed to read {object} after {offset} decompressed bytes")]
    ReadBase {
        object: String,
        /// Decompressed bytes read so far.
        offset: u64,
        source: io::Error,
    },
    /// The base is neither a snapshot with a hash nor a database file.
    #[error("{object} is truncated or damaged: {bytes} bytes is not a valid snapshot size")]
    BaseLength { object: String, bytes: u64 },
    #[error(
        "{object} has no hash, so damage cannot be detected; \
         use --skip-hash-check to accept it"
    )]
    BaseUnhashed { object: String },
    #[error("{object} is damaged: SHA-256 mismatch, stored {stored}, computed {computed}")]
    BaseHash {
        object: String,
        stored: String,
        computed: String,
    },
    #[error("{object} does not contain a valid database")]
    BaseStructure { object: String, source: BboltError },
    #[error("{object} does not contain an etcd database")]
    BaseFacts {
        object: String,
        source: DatabaseStatusError,
    },
    #[error("{object} contains an invalid row")]
    BaseRow { object: String, source: HashError },
    /// A write to the file failed.
    #[error("failed to write the database")]
    Write { source: io::Error },
    /// A write through the database engine failed.
    #[error("failed to write the database")]
    Database { source: BboltError },
    #[error("failed to use the scratch directory")]
    Scratch { source: io::Error },
    #[error("failed to read {object}")]
    Delta { object: String, source: DeltaError },
    #[error("{object} has no valid time at revision {revision}, which --to-time needs")]
    MissingTime { object: String, revision: Revision },
    #[error(
        "revisions {from} to {to} are missing: {after} ends at {newest_restorable} and {before} \
         starts at {resumes}; the newest restorable revision is {newest_restorable} \
         (use --to-revision {newest_restorable})"
    )]
    Gap {
        /// First missing revision.
        from: Revision,
        /// Last missing revision.
        to: Revision,
        /// Object before the gap.
        after: String,
        /// Object after the gap.
        before: String,
        /// First revision after the gap.
        resumes: Revision,
        /// Last revision before the gap.
        newest_restorable: Revision,
    },
    /// A delta contains a revision that its name excludes.
    #[error(
        "{object} starts with revision {found}, before {start} in its name: \
         a transaction may be split between objects"
    )]
    RevisionBeforeName {
        object: String,
        found: Revision,
        /// First revision in the name.
        start: Revision,
    },
    #[error("the backup ends at revision {reached}, before revision {target}")]
    ChainTooShort {
        /// Last revision read.
        reached: Revision,
        /// Requested or promised revision.
        target: Revision,
    },
    #[error(
        "{object} contains revision {holds} and is compacted at {compact}: revision {target} is not \
         restorable from it; the oldest restorable revision is {compact}"
    )]
    Compacted {
        object: String,
        /// Newest revision of the object.
        holds: Revision,
        /// Oldest restorable revision.
        compact: Revision,
        /// Requested revision.
        target: Revision,
    },
    /// Another thread failed first; its error is the one to report.
    #[error("cancelled because another thread failed")]
    Cancelled,
    #[error("the {name} thread ended without a result")]
    Thread { name: &'static str },
}

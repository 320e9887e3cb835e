//! Why an object or a chain is not proven, with the object and the offset or revision.

use std::error::Error as StdError;
use std::io;

use mainstay_archive::compression::OpenStreamError;
use mainstay_archive::delta::DeltaError;
use mainstay_archive::full::FullDamage;
use mainstay_bbolt::BboltError;
use mainstay_ids::Revision;
use mainstay_mvcc::DatabaseStatusError;
use mainstay_store::is_store_failure;

/// Why an object, or the chain of several, cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// The object cannot be opened.
    #[error("failed to open {object}")]
    Open {
        /// Name of the object.
        object: String,
        /// Error of the source.
        source: io::Error,
    },
    /// The compressed stream is invalid from its start.
    #[error("failed to decompress {object}")]
    Compression {
        /// Name of the object.
        object: String,
        /// Error of the decoder.
        source: OpenStreamError,
    },
    /// A full snapshot cannot be read or decompressed.
    #[error("failed to read {object} after {offset} decompressed bytes")]
    ReadBase {
        /// Name of the object.
        object: String,
        /// Decompressed bytes read so far.
        offset: u64,
        /// Error of the source or the decoder.
        source: io::Error,
    },
    /// A full snapshot is neither a snapshot with a hash nor a database file.
    #[error("{object} is truncated or damaged: {bytes} bytes is not a valid snapshot size")]
    BaseLength {
        /// Name of the object.
        object: String,
        /// Decompressed bytes.
        bytes: u64,
    },
    /// A full snapshot has no hash, but one is required.
    #[error(
        "{object} has no hash, so damage cannot be detected; \
         use --skip-hash-check to accept it"
    )]
    BaseUnhashed {
        /// Name of the object.
        object: String,
    },
    /// The hash of a full snapshot does not match.
    #[error("{object} is damaged: SHA-256 mismatch, stored {stored}, computed {computed}")]
    BaseHash {
        /// Name of the object.
        object: String,
        /// Hash in the object.
        stored: String,
        /// Hash of the database.
        computed: String,
    },
    /// The content of a full snapshot is no bbolt database.
    #[error("{object} does not contain a valid database")]
    BaseStructure {
        /// Name of the object.
        object: String,
        /// The first damage found.
        source: BboltError,
    },
    /// The content of a full snapshot is a bbolt database, but not of etcd.
    #[error("{object} does not contain an etcd database")]
    BaseFacts {
        /// Name of the object.
        object: String,
        /// What is missing.
        source: DatabaseStatusError,
    },
    /// A delta cannot be read, or its content is invalid.
    #[error("failed to read {object}")]
    Delta {
        /// Name of the object.
        object: String,
        /// The damage, with its offset.
        source: DeltaError,
    },
    /// A revision is missing inside a delta.
    #[error("{object}: revisions missing: {found} follows {previous}")]
    GapInside {
        /// Name of the object.
        object: String,
        /// Last revision before the gap.
        previous: Revision,
        /// First revision after the gap.
        found: Revision,
    },
    /// A delta does not contain every revision in its name.
    #[error("{object}: events cover only revisions {first} to {last}")]
    NameNotCovered {
        /// Name of the object.
        object: String,
        /// First revision; 0 if there are no events.
        first: Revision,
        /// Last revision; 0 if there are no events.
        last: Revision,
    },
    /// An event that decides about the target has no time.
    #[error("{object} has no valid time at revision {revision}, which --to-time needs")]
    MissingTime {
        /// Name of the object.
        object: String,
        /// Revision of the event.
        revision: Revision,
    },
    /// Revisions are missing between two objects.
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
        /// Name of the object.
        object: String,
        /// First revision in the object.
        found: Revision,
        /// First revision in the name.
        start: Revision,
    },
    /// The chain ends before the target.
    #[error("the backup ends at revision {reached}, before revision {target}")]
    ChainTooShort {
        /// Last revision read.
        reached: Revision,
        /// Requested or promised revision.
        target: Revision,
    },
    /// Compaction has removed the target from the full snapshot.
    #[error(
        "{object} contains revision {holds} and is compacted at {compact}: revision {target} is not \
         restorable from it; the oldest restorable revision is {compact}"
    )]
    Compacted {
        /// Name of the object.
        object: String,
        /// Newest revision of the object.
        holds: Revision,
        /// Oldest restorable revision.
        compact: Revision,
        /// Requested revision.
        target: Revision,
    },
}

impl ProofError {
    /// Names the full snapshot that is damaged.
    pub fn from_full_damage(object: String, damage: FullDamage) -> Self {
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
    pub fn failed_object(&self) -> Option<&str> {
        match self {
            Self::Open { object, .. }
            | Self::Compression { object, .. }
            | Self::ReadBase { object, .. }
            | Self::BaseLength { object, .. }
            | Self::BaseUnhashed { object }
            | Self::BaseHash { object, .. }
            | Self::BaseStructure { object, .. }
            | Self::BaseFacts { object, .. }
            | Self::Delta { object, .. }
            | Self::GapInside { object, .. }
            | Self::NameNotCovered { object, .. }
            | Self::RevisionBeforeName { object, .. }
            | Self::Compacted { object, .. } => Some(object),
            Self::MissingTime { .. } | Self::Gap { .. } | Self::ChainTooShort { .. } => None,
        }
    }

    /// Returns whether the store failed: the object is then not known to be damaged.
    pub fn is_store_failure(&self) -> bool {
        self.source().is_some_and(is_store_failure)
    }
}

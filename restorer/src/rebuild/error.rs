//! Why a chain cannot be rebuilt, with the object and the place.

use std::io;

use mainstay_archive::compression::OpenStreamError;
use mainstay_archive::delta::DeltaError;
use mainstay_bbolt::BboltError as BboltError;
use mainstay_ids::Revision;
use mainstay_mvcc::DatabaseStatusError;
use mainstay_mvcc::hash::HashError;

impl RebuildError {
    /// The object that cannot be used, when there is one: another chain may do without it.
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
            | Self::BaseRow { object, .. }
            | Self::Delta { object, .. }
            | Self::RevisionBeforeName { object, .. }
            | Self::Compacted { object, .. } => Some(object),
            _ => None,
        }
    }
}

/// A rebuild that stopped. Nothing of it may be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RebuildError {
    /// The store did not give an object.
    #[error("open {object}")]
    Open {
        /// Its name.
        object: String,
        /// The store's answer.
        source: io::Error,
    },
    /// The object's compression cannot be opened.
    #[error("open {object}")]
    Compression {
        /// Its name.
        object: String,
        /// Why.
        source: OpenStreamError,
    },
    /// The base broke off or its compression is damaged.
    #[error("read {object} after {offset} decompressed bytes")]
    ReadBase {
        /// Its name.
        object: String,
        /// Bytes read so far.
        offset: u64,
        /// Why.
        source: io::Error,
    },
    /// The base is neither a snapshot with a hash nor a database file.
    #[error("{object} has {bytes} bytes, which no snapshot can have: it is truncated or damaged")]
    BaseLength {
        /// Its name.
        object: String,
        /// Its length.
        bytes: u64,
    },
    /// The base carries no hash.
    #[error(
        "{object} carries no hash, so damage cannot be told; \
         give --skip-hash-check to use it all the same"
    )]
    BaseUnhashed {
        /// Its name.
        object: String,
    },
    /// The base was altered.
    #[error("{object} is damaged: its SHA-256 is {computed}, the one it carries is {stored}")]
    BaseHash {
        /// Its name.
        object: String,
        /// Hash behind the data.
        stored: String,
        /// Hash of the data.
        computed: String,
    },
    /// The base is no database.
    #[error("{object} does not hold a sound database")]
    BaseStructure {
        /// Its name.
        object: String,
        /// What is wrong.
        source: BboltError,
    },
    /// The base is no database of etcd.
    #[error("{object} does not hold an etcd database")]
    BaseFacts {
        /// Its name.
        object: String,
        /// What is wrong.
        source: DatabaseStatusError,
    },
    /// A row of the base cannot be read.
    #[error("{object} holds a row that cannot be read")]
    BaseRow {
        /// Its name.
        object: String,
        /// Which, and why.
        source: HashError,
    },
    /// The disk.
    #[error("write the database")]
    Write {
        /// The disk's answer.
        source: io::Error,
    },
    /// The disk, seen by the engine.
    #[error("write the database")]
    Database {
        /// The engine's answer.
        source: BboltError,
    },
    /// The scratch directory.
    #[error("use the scratch directory")]
    Scratch {
        /// The disk's answer.
        source: io::Error,
    },
    /// A delta is damaged or cannot be read.
    #[error("read {object}")]
    Delta {
        /// Its name.
        object: String,
        /// What and where.
        source: DeltaError,
    },
    /// A delta gives no time where one is needed.
    #[error("{object} has no usable time at revision {revision}, so --to-time cannot be answered")]
    MissingTime {
        /// Its name.
        object: String,
        /// Where.
        revision: Revision,
    },
    /// Revisions are missing.
    #[error(
        "revisions {from} to {to} are missing: {after} ends at {newest_restorable} and {before} \
         goes on at {resumes}; the newest restorable revision is {newest_restorable} \
         (--to-revision {newest_restorable} takes it)"
    )]
    Gap {
        /// First missing.
        from: Revision,
        /// Last missing.
        to: Revision,
        /// Object before the gap.
        after: String,
        /// Object behind the gap.
        before: String,
        /// First revision behind the gap.
        resumes: Revision,
        /// Last before the gap.
        newest_restorable: Revision,
    },
    /// A delta holds what its name says it cannot.
    #[error(
        "{object} begins with revision {found}, before the {start} its name promises: \
         a transaction may be split between objects"
    )]
    RevisionBeforeName {
        /// Its name.
        object: String,
        /// Revision found.
        found: Revision,
        /// Revision promised.
        start: Revision,
    },
    /// The chain ends before the revision asked for.
    #[error("the objects end at revision {reached}, revision {target} is not in them")]
    ChainTooShort {
        /// Last revision read.
        reached: Revision,
        /// Asked for.
        target: Revision,
    },
    /// The base is compacted beyond the revision asked for.
    #[error(
        "{object} holds revision {holds} and is compacted at {compact}: revision {target} can no \
         longer be taken from it; the oldest it can give is {compact}"
    )]
    Compacted {
        /// Its name.
        object: String,
        /// What it holds.
        holds: Revision,
        /// Oldest it can give.
        compact: Revision,
        /// Asked for.
        target: Revision,
    },
    /// Another thread failed first.
    #[error("stopped because another part failed")]
    Cancelled,
    /// A thread ended without a result.
    #[error("the {name} thread ended without a result")]
    Thread {
        /// Which.
        name: &'static str,
    },
}

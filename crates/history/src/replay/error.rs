//! Why a log cannot be replayed.

use mainstay_bbolt::BboltError;
use mainstay_ids::RaftIndex;
use mainstay_mvcc::{DatabaseStatusError, KeyValueError, RevisionKeyError, WireError};
use mainstay_wal::rpc::RequestDecodeError;
use mainstay_wal::{ListError, LogError};

/// Why a log cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The log cannot be listed.
    #[error("list the WAL")]
    List(#[from] ListError),
    /// The log cannot be read.
    #[error("read the WAL")]
    Log(#[from] LogError),
    /// An entry contains no request.
    #[error(transparent)]
    Request(#[from] RequestDecodeError),
    /// The database cannot be read, or a row cannot be written.
    #[error(transparent)]
    Structure(#[from] BboltError),
    /// The status or a small bucket cannot be read.
    #[error(transparent)]
    Status(#[from] DatabaseStatusError),
    /// A row has an invalid key.
    #[error("decode the key of a row")]
    RowKey(#[from] RevisionKeyError),
    /// A row has an invalid value.
    #[error("decode a row")]
    Row(#[from] KeyValueError),
    /// A lease cannot be decoded.
    #[error("decode a lease")]
    Lease {
        /// Error of the decoder.
        source: WireError,
    },
    /// Entries between the database and the log are missing.
    #[error("WAL entries {expected} to {} are missing", found.0 - 1)]
    MissingEntries {
        /// Index after the last applied entry.
        expected: RaftIndex,
        /// Index of the next entry in the log.
        found: RaftIndex,
    },
    /// A request has an effect that only etcd can apply.
    #[error("WAL entry {index} is an {what}, which only etcd can apply")]
    Unsupported {
        /// Kind of the request.
        what: &'static str,
        /// Index of the entry.
        index: RaftIndex,
    },
    /// Each write depends on the roles of its user.
    #[error("authentication is enabled: only etcd can apply the WAL entries")]
    AuthenticationEnabled,
    /// Writes fail while an alarm is active.
    #[error("an alarm is active: only etcd can apply the WAL entries")]
    AlarmActive,
    /// The value of a live key is not in the database.
    #[error("row of revision {revision} is missing")]
    MissingRow {
        /// Revision of the row.
        revision: mainstay_ids::Revision,
    },
}

//! Errors of the protocol. The front maps each to the code and text of etcd.

use mainstay_ids::Revision;

use crate::row_store::StorageError;

/// Why an engine did not do what was requested. Unless noted, nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The revision is older than what is retained.
    #[error("revision is compacted, the oldest readable revision is {oldest}")]
    Compacted {
        /// Oldest readable revision.
        oldest: Revision,
    },
    /// The revision is newer than the store.
    #[error("revision is newer than the store, which is at revision {current}")]
    FutureRevision {
        /// Current revision.
        current: Revision,
    },
    /// The lease does not exist.
    #[error("lease does not exist")]
    LeaseNotFound,
    /// A lease with this ID exists.
    #[error("lease exists")]
    LeaseExists,
    /// The TTL is above etcd's maximum.
    #[error("lease TTL is too large")]
    LeaseTtlTooLarge,
    /// A put that keeps the value or the lease needs an existing key.
    #[error("key does not exist")]
    KeyNotFound,
    /// The write would exceed the quota.
    #[error("quota of {quota_bytes} bytes is used up")]
    NoSpace {
        /// The quota.
        quota_bytes: u64,
    },
    /// The engine serves reads only.
    #[error("engine is read-only")]
    ReadOnly,
    /// The engine does not implement the request.
    #[error("engine does not support {what}")]
    Unsupported {
        /// What was requested.
        what: &'static str,
    },
    /// The store failed in this request.
    #[error("storage failed")]
    Storage(#[source] StorageError),
    /// The store failed while it committed the write. After a restart the write is there or not.
    #[error("the commit failed, the outcome of the write is unknown")]
    OutcomeUnknown,
    /// The store failed in an earlier write. The engine accepts no writes until it is restarted.
    #[error("an earlier write failed, restart the server")]
    Poisoned,
    /// The engine is shutting down.
    #[error("engine is shutting down")]
    Closed,
}

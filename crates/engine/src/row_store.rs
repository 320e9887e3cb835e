//! Where rows are kept. Synchronous: an implementation is a map, a database file, or a layer over another.

use std::ops::ControlFlow;

use mainstay_ids::{LeaseId, Revision};

use crate::row::{Position, Row};

/// The store below an engine failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation}")]
pub struct StorageError {
    /// What failed.
    pub operation: &'static str,
    /// Why.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl StorageError {
    /// Names the operation that failed.
    pub fn new(
        operation: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            operation,
            source: source.into(),
        }
    }
}

/// Changes that become durable together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Rows to add. Their positions are new.
    pub rows: Vec<Row>,
    /// Rows to delete, of a compaction.
    pub deleted: Vec<Position>,
    /// The compacted revision, when it changes.
    pub compacted: Option<Revision>,
    /// Leases granted, with their TTL in seconds.
    pub granted: Vec<(LeaseId, i64)>,
    /// Leases revoked.
    pub revoked: Vec<LeaseId>,
}

impl Batch {
    /// Returns true when there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
            && self.deleted.is_empty()
            && self.compacted.is_none()
            && self.granted.is_empty()
            && self.revoked.is_empty()
    }
}

/// State of a store beside its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredState {
    /// Newest revision ever committed, which a compaction of deleted keys can leave without a row.
    pub revision: Option<Revision>,
    /// The compacted revision.
    pub compacted: Option<Revision>,
    /// Leases with their TTL in seconds.
    pub leases: Vec<(LeaseId, i64)>,
}

/// Keeps rows in the order of their positions.
///
/// One batch is committed at a time; readers run beside it.
pub trait RowStore: Send + Sync + 'static {
    /// Returns the state beside the rows.
    fn stored_state(&self) -> Result<StoredState, StorageError>;

    /// Returns a reader. It may observe later commits.
    fn reader(&self) -> Result<Box<dyn RowReader + '_>, StorageError>;

    /// Commits a batch. When it returns, the batch survives a crash, if the store is durable at all.
    fn commit(&self, batch: &Batch) -> Result<(), StorageError>;

    /// Returns the bytes allocated; `None` when they are those of the rows.
    fn allocated_bytes(&self) -> Result<Option<u64>, StorageError>;

    /// Returns free space to the operating system, where the store can.
    fn defragment(&self) -> Result<(), StorageError>;

    /// Returns true when calls wait for a disk, and must not run on a thread of the runtime.
    fn is_blocking(&self) -> bool;
}

/// Reads rows.
pub trait RowReader {
    /// Reads one row. `None` when a compaction deleted it.
    fn row(&self, at: Position) -> Result<Option<Row>, StorageError>;

    /// Passes rows from `from` on, in order, until `visit` breaks.
    fn scan(
        &self,
        from: Position,
        visit: &mut dyn FnMut(Row) -> ControlFlow<()>,
    ) -> Result<(), StorageError>;
}

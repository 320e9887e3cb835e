//! What an engine answers. Every answer carries the revision of the store, read together with the data.

use bytes::Bytes;
use mainstay_ids::{LeaseId, Revision};

/// One version of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyVersion {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// Revision that created the key.
    pub create_revision: Revision,
    /// Revision of this version.
    pub mod_revision: Revision,
    /// Number of writes since the key was created, from 1.
    pub version: i64,
    /// Lease of the key; [`LeaseId::NONE`] for none.
    pub lease: LeaseId,
}

/// Answer to a read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeAnswer {
    /// Revision of the store, also when an older one was read.
    pub revision: Revision,
    /// The keys in byte order, up to the limit.
    pub keys: Vec<KeyVersion>,
    /// Number of keys in the range, whatever the limit.
    pub count: usize,
}

/// Answer to a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutAnswer {
    /// Revision of the write.
    pub revision: Revision,
    /// The version replaced, if requested and there was one.
    pub previous: Option<KeyVersion>,
}

/// Answer to a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteAnswer {
    /// Revision of the write, or of the store when nothing was deleted.
    pub revision: Revision,
    /// Number of deleted keys.
    pub deleted: usize,
    /// The versions deleted, if requested.
    pub previous: Vec<KeyVersion>,
}

/// Answer to one operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpAnswer {
    /// To a read.
    Range(RangeAnswer),
    /// To a put.
    Put(PutAnswer),
    /// To a delete.
    DeleteRange(DeleteAnswer),
    /// To a nested transaction.
    Txn(TxnAnswer),
}

/// Answer to a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnAnswer {
    /// Revision of the store after it.
    pub revision: Revision,
    /// All compares held.
    pub succeeded: bool,
    /// One for each operation of the branch taken.
    pub answers: Vec<OpAnswer>,
}

/// One change, as a watch reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeEvent {
    /// The key is deleted: `version` has only the key and the revision.
    pub is_delete: bool,
    /// The new version.
    pub version: KeyVersion,
    /// The version before it, if requested, there was one, and it is not compacted.
    pub previous: Option<KeyVersion>,
}

impl ChangeEvent {
    /// Returns true when the event creates its key.
    pub fn is_create(&self) -> bool {
        !self.is_delete && self.version.create_revision == self.version.mod_revision
    }

    /// Approximate size on the wire.
    pub fn size(&self) -> usize {
        let of = |version: &KeyVersion| version.key.len() + version.value.len() + 32;
        of(&self.version) + self.previous.as_ref().map_or(0, of)
    }
}

/// Events of consecutive revisions. The events of one revision are never divided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryPage {
    /// The events, in the order of the writes.
    pub events: Vec<ChangeEvent>,
    /// Every event up to this revision is in the page.
    pub reached: Revision,
}

/// How far the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Current revision: durable and visible.
    pub current: Revision,
    /// The compacted revision; `None` before the first compaction.
    pub compacted: Option<Revision>,
}

/// State of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseStatus {
    /// The lease.
    pub id: LeaseId,
    /// TTL it was granted with, in seconds.
    pub granted_ttl: i64,
    /// Seconds left.
    pub remaining_ttl: i64,
    /// Its keys, in byte order.
    pub keys: Vec<Bytes>,
}

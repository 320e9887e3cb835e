//! One change of one key, as it identifies a history.

use mainstay_archive::delta::{Event, EventKind};
use mainstay_ids::Revision;
use mainstay_mvcc::{KeyValue, RevisionKey};
use sha2::{Digest, Sha256};

/// A change in a delta, or a row of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupEvent {
    /// The changed key.
    pub key: Vec<u8>,
    /// Revision of the change.
    pub revision: Revision,
    /// `None` for a delete.
    pub put: Option<WrittenKey>,
}

/// Metadata of a put. The value may be large, so only its SHA-256 is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenKey {
    /// Revision that created the key.
    pub create_revision: Revision,
    /// Revision of the put.
    pub mod_revision: Revision,
    /// Number of writes since the key was created.
    pub version: i64,
    /// SHA-256 of the value.
    pub value_hash: [u8; 32],
}

impl WrittenKey {
    /// Hashes the value of a put.
    pub fn new(
        create_revision: Revision,
        mod_revision: Revision,
        version: i64,
        value: &[u8],
    ) -> Self {
        Self {
            create_revision,
            mod_revision,
            version,
            value_hash: Sha256::digest(value).into(),
        }
    }
}

impl BackupEvent {
    /// Converts an event of a delta.
    pub fn from_event(event: &Event<'_>) -> Self {
        let (created, modified) = (event.create_revision, event.mod_revision);
        let put = (event.kind == EventKind::Put)
            .then(|| WrittenKey::new(created, modified, event.version, event.value));
        Self {
            key: event.key.to_vec(),
            revision: modified,
            put,
        }
    }

    /// Converts a row of the `key` bucket.
    pub fn from_row(at: RevisionKey, row: &KeyValue<'_>) -> Self {
        let (created, modified) = (row.create_revision, row.mod_revision);
        let put =
            (!at.is_tombstone).then(|| WrittenKey::new(created, modified, row.version, row.value));
        Self {
            key: row.key.to_vec(),
            revision: at.main,
            put,
        }
    }
}

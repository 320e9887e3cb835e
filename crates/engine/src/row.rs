//! Rows: one for each change of a key, in the order of the writes, with the bytes that etcd stores.

use bytes::Bytes;
use mainstay_ids::{LeaseId, Revision};
use mainstay_mvcc::{KeyValue, RevisionKey};

use crate::answer::KeyVersion;

/// Place of a change in the history: the revision of its transaction and its number within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The revision.
    pub main: Revision,
    /// Number within the transaction, from 0.
    pub sub: i64,
}

impl Position {
    /// First position of a revision.
    pub fn first_of(main: Revision) -> Self {
        Self { main, sub: 0 }
    }
}

/// What a row does to its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Writes this version.
    Put(KeyVersion),
    /// Deletes the key.
    Delete(Bytes),
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where in the history.
    pub at: Position,
    /// What.
    pub change: Change,
}

impl Row {
    /// The key that is changed.
    pub fn key(&self) -> &Bytes {
        match &self.change {
            Change::Put(version) => &version.key,
            Change::Delete(key) => key,
        }
    }

    /// Returns true when the row deletes its key.
    pub fn is_delete(&self) -> bool {
        matches!(self.change, Change::Delete(_))
    }

    /// Bytes counted against the quota: key, value, and what surrounds them.
    pub fn size(&self) -> u64 {
        const AROUND: usize = 48; // revision key, five small fields
        let bytes = match &self.change {
            Change::Put(version) => version.key.len() + version.value.len() + AROUND,
            Change::Delete(key) => key.len() + AROUND,
        };
        bytes as u64
    }

    /// The key of the row in etcd's `key` bucket.
    pub fn bucket_key(&self) -> RevisionKey {
        RevisionKey {
            main: self.at.main,
            sub: self.at.sub,
            is_tombstone: self.is_delete(),
        }
    }

    /// Appends the value of the row in etcd's `key` bucket.
    pub fn encode_value(&self, out: &mut Vec<u8>) {
        match &self.change {
            Change::Put(version) => KeyValue {
                key: &version.key,
                create_revision: version.create_revision,
                mod_revision: version.mod_revision,
                version: version.version,
                value: &version.value,
                lease: version.lease,
            }
            .encode(out),
            Change::Delete(key) => KeyValue {
                key,
                ..KeyValue::default()
            }
            .encode(out),
        }
    }

    /// Decodes a row of etcd's `key` bucket.
    pub fn decode(key: RevisionKey, value: &[u8]) -> Result<Self, mainstay_mvcc::KeyValueError> {
        let decoded = KeyValue::decode(value)?;
        let name = Bytes::copy_from_slice(decoded.key);
        let change = if key.is_tombstone {
            Change::Delete(name)
        } else {
            Change::Put(KeyVersion {
                key: name,
                value: Bytes::copy_from_slice(decoded.value),
                create_revision: decoded.create_revision,
                mod_revision: decoded.mod_revision,
                version: decoded.version,
                lease: decoded.lease,
            })
        };
        let at = Position {
            main: key.main,
            sub: key.sub,
        };
        Ok(Self { at, change })
    }

    /// The lease a put attaches its key to.
    pub fn lease(&self) -> LeaseId {
        match &self.change {
            Change::Put(version) => version.lease,
            Change::Delete(_) => LeaseId::NONE,
        }
    }
}

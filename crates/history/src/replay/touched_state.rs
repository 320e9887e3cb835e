//! The live keys that the pending requests touch, and where their values are.

use std::collections::BTreeMap;

use bytes::Bytes;
use mainstay_bbolt::{BucketRoot, Database, ReadAt};
use mainstay_ids::{LeaseId, Revision};
use mainstay_mvcc::{DatabaseStatusError, KeyValue, RevisionKey, schema};

use super::error::ReplayError;
use super::touched::{KeyRange, TouchedKeys};

/// Where the value of a live key is.
#[derive(Clone, Debug)]
pub(super) enum ValueSource {
    /// In this row of the database.
    Database(RevisionKey),
    /// In an entry of the log.
    Log(Bytes),
}

/// The current state of a key.
#[derive(Clone, Debug)]
pub(super) struct LiveKey {
    pub(super) create_revision: Revision,
    pub(super) mod_revision: Revision,
    pub(super) version: i64,
    pub(super) lease: LeaseId,
    pub(super) value: ValueSource,
}

/// The live keys that matter.
pub(super) struct TouchedState<'d, S> {
    database: &'d Database<S>,
    root: BucketRoot,
    pub(super) live: BTreeMap<Vec<u8>, LiveKey>,
}

impl<'d, S: ReadAt> TouchedState<'d, S> {
    /// Reads the current state of every touched key in one scan.
    pub(super) fn load(
        database: &'d Database<S>,
        touched: &TouchedKeys,
    ) -> Result<Self, ReplayError> {
        let root = database
            .bucket(schema::KEY)?
            .ok_or(DatabaseStatusError::NotEtcd)?;
        let mut live: BTreeMap<Vec<u8>, LiveKey> = BTreeMap::new();
        let mut rows = database.scan(&root)?;
        while let Some(item) = rows.next()? {
            let at = RevisionKey::decode(item.key)?;
            let row = KeyValue::decode(item.value)?;
            // A key that entered by its lease stays, also if later rows have another one.
            let matters = touched.contains(row.key, row.lease) || live.contains_key(row.key);
            if !matters {
                continue;
            }
            if at.is_tombstone {
                live.remove(row.key);
                continue;
            }
            let state = LiveKey {
                create_revision: row.create_revision,
                mod_revision: row.mod_revision,
                version: row.version,
                lease: row.lease,
                value: ValueSource::Database(at),
            };
            live.insert(row.key.to_vec(), state);
        }
        Ok(Self {
            database,
            root,
            live,
        })
    }

    /// The live keys in a range, in order.
    pub(super) fn keys_in(&self, range: &KeyRange) -> Vec<Vec<u8>> {
        let first = match range {
            KeyRange::Single(key) | KeyRange::From(key) | KeyRange::Between(key, _) => key.to_vec(),
        };
        self.live
            .range(first..)
            .map(|(key, _)| key)
            .take_while(|key| range.contains(key))
            .cloned()
            .collect()
    }

    /// Reads the value of a live key.
    pub(super) fn read_value(&self, value: &ValueSource) -> Result<Bytes, ReplayError> {
        let at = match value {
            ValueSource::Log(bytes) => return Ok(bytes.clone()),
            ValueSource::Database(at) => *at,
        };
        let encoded = at.encode();
        let mut rows = self.database.scan(&self.root)?;
        rows.seek(&encoded)?;
        match rows.next()? {
            Some(item) if item.key == encoded.as_slice() => {
                Ok(Bytes::copy_from_slice(KeyValue::decode(item.value)?.value))
            }
            _ => Err(ReplayError::MissingRow { revision: at.main }),
        }
    }
}

//! Verifies that the store belongs to this etcd's history. Revision numbers alone prove nothing: an etcd that started
//! empty passes any revision after a while.
//!
//! ```text
//! newest delta ─read to its end─► its last event ──────────┐
//!   (or full)                                              │
//! etcd ─ the key at that revision ─► key history ──────────┴─► judge (pure) ─► match
//! ```
//!
//! The last event of the store exists in its own history and in no other: a key that was put has that version and value
//! at exactly that revision; a key that was deleted exists one revision earlier and not at that revision. If etcd has
//! compacted the revision, only the current state of the key can be compared. If the store holds full snapshots only,
//! the event comes from the newest one, if it is small. **Limits**: a large full snapshot is not read; a new full snapshot
//! then comes first, so that no delta builds on a different history.

use std::time::Duration;

use etcd_client::{GetOptions, KeyValue};
use mainstay_archive::delta::{Event, EventKind};
use mainstay_ids::Revision;
use mainstay_mvcc::{KeyValue as KeyValueRow, RevisionKey};
use sha2::{Digest, Sha256};

use crate::etcd::{EtcdCall, EtcdClient, EtcdError, with_timeout};

/// etcd's value for "the current revision" in a range request.
const LATEST: Revision = Revision(0);

/// The last event of the newest delta, or of the newest full snapshot if there is no delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LastEvent {
    pub(super) key: Vec<u8>,
    pub(super) revision: Revision,
    /// `None` for a delete.
    pub(super) put: Option<WrittenKey>,
}

/// Metadata of a put. The value may be large, so only its SHA-256 is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WrittenKey {
    pub(super) create_revision: Revision,
    pub(super) mod_revision: Revision,
    pub(super) version: i64,
    pub(super) value_hash: [u8; 32],
}

impl LastEvent {
    pub(super) fn from_event(event: &Event<'_>) -> Self {
        let put = (event.kind == EventKind::Put).then(|| WrittenKey {
            create_revision: event.create_revision,
            mod_revision: event.mod_revision,
            version: event.version,
            value_hash: Sha256::digest(event.value).into(),
        });
        Self {
            key: event.key.to_vec(),
            revision: event.mod_revision,
            put,
        }
    }

    /// Reads the event from a row of the `key` bucket.
    pub(super) fn from_row(at: RevisionKey, change: &KeyValueRow<'_>) -> Self {
        let put = (!at.is_tombstone).then(|| WrittenKey {
            create_revision: change.create_revision,
            mod_revision: change.mod_revision,
            version: change.version,
            value_hash: Sha256::digest(change.value).into(),
        });
        Self {
            key: change.key.to_vec(),
            revision: at.main,
            put,
        }
    }
}

impl From<&KeyValue> for WrittenKey {
    fn from(kv: &KeyValue) -> Self {
        Self {
            create_revision: Revision(kv.create_revision()),
            mod_revision: Revision(kv.mod_revision()),
            version: kv.version(),
            value_hash: Sha256::digest(kv.value()).into(),
        }
    }
}

/// A key at a revision, as etcd returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyLookup {
    Present(WrittenKey),
    Absent,
    /// etcd has compacted the revision, or it was not read.
    Unavailable,
}

/// The key of the event in etcd's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyHistory {
    /// The key at the revision of the event.
    AtRevision {
        /// One revision earlier; read for a delete only.
        before: KeyLookup,
        at: Option<WrittenKey>,
    },
    /// The revision is compacted: the key at the current revision.
    Current(Option<WrittenKey>),
}

/// Relation of the store's history to etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistoryMatch {
    /// The same history.
    Same,
    /// A different history: etcd still has the revision, with another event.
    Foreign,
    /// A different history, concluded from the current state: etcd has compacted the revision.
    Diverged,
    /// Neither provable nor refutable after compaction.
    Unknown,
}

/// Compares the event with what etcd has.
pub(super) fn match_history(witness: &LastEvent, key_history: &KeyHistory) -> HistoryMatch {
    let own_if = |is_history_verified, otherwise| {
        if is_history_verified {
            HistoryMatch::Same
        } else {
            otherwise
        }
    };
    match (&witness.put, key_history) {
        (Some(put), KeyHistory::AtRevision { at, .. }) => {
            own_if(at.as_ref() == Some(put), HistoryMatch::Foreign)
        }
        (None, KeyHistory::AtRevision { at: Some(_), .. }) => HistoryMatch::Foreign,
        (None, KeyHistory::AtRevision { before, at: None }) => match before {
            KeyLookup::Present(_) => HistoryMatch::Same,
            KeyLookup::Absent => HistoryMatch::Foreign,
            KeyLookup::Unavailable => HistoryMatch::Unknown,
        },
        (_, KeyHistory::Current(None)) => HistoryMatch::Unknown,
        // Deleted and created again since: the key proves nothing about the older revision.
        (_, KeyHistory::Current(Some(now))) if now.create_revision > witness.revision => {
            HistoryMatch::Unknown
        }
        // A key older than its delete in the store was never deleted in etcd.
        (None, KeyHistory::Current(Some(_))) => HistoryMatch::Diverged,
        (Some(put), KeyHistory::Current(Some(now))) if now.mod_revision <= put.mod_revision => {
            own_if(now == put, HistoryMatch::Diverged)
        }
        (Some(put), KeyHistory::Current(Some(now))) => {
            // Every later put of the same key keeps its create revision and raises its version.
            let has_grown = now.create_revision == put.create_revision && now.version > put.version;
            own_if(has_grown, HistoryMatch::Diverged)
        }
    }
}

impl EtcdClient {
    /// Reads the key of the event from the own member, which must have been confirmed to have reached the revision.
    pub(super) async fn read_key_history(
        &self,
        witness: &LastEvent,
        limit: Duration,
    ) -> Result<KeyHistory, EtcdError> {
        let at = match self.get_key_at(witness, witness.revision, limit).await? {
            KeyLookup::Present(at) => Some(at),
            KeyLookup::Absent => None,
            KeyLookup::Unavailable => {
                let now = self.get_key_at(witness, LATEST, limit).await?;
                return Ok(KeyHistory::Current(match now {
                    KeyLookup::Present(now) => Some(now),
                    KeyLookup::Absent | KeyLookup::Unavailable => None,
                }));
            }
        };
        let before = if witness.put.is_some() {
            KeyLookup::Unavailable
        } else {
            let before = witness.revision.previous();
            self.get_key_at(witness, before, limit).await?
        };
        Ok(KeyHistory::AtRevision { before, at })
    }

    async fn get_key_at(
        &self,
        witness: &LastEvent,
        revision: Revision,
        limit: Duration,
    ) -> Result<KeyLookup, EtcdError> {
        let client = self.own_client().await?;
        let mut kv = client.kv_client().max_decoding_message_size(usize::MAX);
        // A serializable read suffices: the caller confirmed that the member has reached the revision.
        let options = GetOptions::new()
            .with_serializable()
            .with_revision(revision.0);
        let answer = kv.get(witness.key.as_slice(), Some(options));
        match with_timeout(limit, EtcdCall::Read, answer).await {
            Ok(answer) => {
                let kv = answer.kvs().first();
                Ok(kv.map_or(KeyLookup::Absent, |kv| KeyLookup::Present(kv.into())))
            }
            Err(error) if error.is_compacted() => Ok(KeyLookup::Unavailable),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;

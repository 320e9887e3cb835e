//! Whether the store is the past of this etcd. Numbers do not tell: an etcd that came up empty has passed any revision
//! after a while.
//!
//! ```text
//! newest delta ─read to its end─► Witness: its last event ─┐
//!   (or full)                                              │
//! etcd ─ the key at that revision ─► Testimony ────────────┴─► judge (pure) ─► Kinship
//! ```
//!
//! An event is found again in the history it comes from, and in no other: a key that was put has that version and that
//! value at that very revision; one that was deleted was there the revision before and then not. When etcd has compacted
//! the revision, what became of the key since is all there is to go by. A store of full snapshots alone has its witness
//! in the newest one, if that is small. **Does not do**: larger ones, which would have to be read whole; behind such a one
//! a full snapshot comes first, so that no delta stands on what may be another history.

use std::time::Duration;

use etcd_client::{GetOptions, KeyValue};
use mainstay_archive::delta::{Event, EventKind};
use mainstay_ids::Revision;
use mainstay_mvcc::{KeyValue as KeyValueRow, RevisionKey};
use sha2::{Digest, Sha256};

use crate::etcd::{EtcdClient, EtcdError, EtcdCall, with_timeout};

/// The revision that stands for the newest one.
const LATEST: Revision = Revision(0);

/// The last event of the newest delta, or of the newest full snapshot when there is no delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LastEvent {
    pub(super) key: Vec<u8>,
    pub(super) revision: Revision,
    /// What was put; `None` for a delete.
    pub(super) put: Option<WrittenKey>,
}

/// A key as it was written. The value may be large, so only its hash is kept.
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

    /// A row of a database.
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

/// A key at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyLookup {
    /// It was there.
    Present(WrittenKey),
    /// It was not.
    Absent,
    /// etcd has compacted the revision, or was not asked.
    Unavailable,
}

/// What etcd has to say about a witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyHistory {
    /// The key at the revision of the event.
    AtRevision {
        /// The revision before; only a delete needs it.
        before: KeyLookup,
        /// At the revision.
        at: Option<WrittenKey>,
    },
    /// The revision is compacted: the key as it is now.
    Current(Option<WrittenKey>),
}

/// What the store is to etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistoryMatch {
    /// Its past.
    Same,
    /// Another history, that goes on differently at a revision etcd still has.
    Foreign,
    /// Another history, as far as etcd, which has compacted the revision, can tell.
    Diverged,
    /// Nobody can tell any more.
    Unknown,
}

/// Compares the event with what etcd has.
pub(super) fn match_history(witness: &LastEvent, testimony: &KeyHistory) -> HistoryMatch {
    let own_if = |is_history_verified, otherwise| if is_history_verified { HistoryMatch::Same } else { otherwise };
    match (&witness.put, testimony) {
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
        // Deleted and made again since, which says nothing about before.
        (_, KeyHistory::Current(Some(now))) if now.create_revision > witness.revision => HistoryMatch::Unknown,
        (None, KeyHistory::Current(Some(_))) => HistoryMatch::Diverged,
        (Some(put), KeyHistory::Current(Some(now))) if now.mod_revision <= put.mod_revision => {
            own_if(now == put, HistoryMatch::Diverged)
        }
        (Some(put), KeyHistory::Current(Some(now))) => {
            let has_grown = now.create_revision == put.create_revision && now.version > put.version;
            own_if(has_grown, HistoryMatch::Diverged)
        }
    }
}

impl EtcdClient {
    /// What the own member has to say about a witness. It must have been confirmed to be as far as the revision.
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

    /// The key of a witness at a revision.
    async fn get_key_at(
        &self,
        witness: &LastEvent,
        revision: Revision,
        limit: Duration,
    ) -> Result<KeyLookup, EtcdError> {
        let client = self.own_client().await?;
        let mut kv = client.kv_client().max_decoding_message_size(usize::MAX);
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

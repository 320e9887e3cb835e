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

use crate::etcd::{Etcd, EtcdError, Step, within};

/// The revision that stands for the newest one.
const NOW: Revision = Revision(0);

/// The last event of the newest delta, or of the newest full snapshot when there is no delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) key: Vec<u8>,
    pub(super) revision: Revision,
    /// What was put; `None` for a delete.
    pub(super) put: Option<Written>,
}

/// A key as it was written. The value may be large, so only its hash is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) created: Revision,
    pub(super) modified: Revision,
    pub(super) version: i64,
    pub(super) value: [u8; 32],
}

impl Witness {
    pub(super) fn new(event: &Event<'_>) -> Self {
        let put = (event.kind == EventKind::Put).then(|| Written {
            created: event.create_revision,
            modified: event.mod_revision,
            version: event.version,
            value: Sha256::digest(event.value).into(),
        });
        Self {
            key: event.key.to_vec(),
            revision: event.mod_revision,
            put,
        }
    }

    /// A row of a database.
    pub(super) fn of_row(at: RevisionKey, change: &KeyValueRow<'_>) -> Self {
        let put = (!at.is_tombstone).then(|| Written {
            created: change.create_revision,
            modified: change.mod_revision,
            version: change.version,
            value: Sha256::digest(change.value).into(),
        });
        Self {
            key: change.key.to_vec(),
            revision: at.main,
            put,
        }
    }
}

impl From<&KeyValue> for Written {
    fn from(kv: &KeyValue) -> Self {
        Self {
            created: Revision(kv.create_revision()),
            modified: Revision(kv.mod_revision()),
            version: kv.version(),
            value: Sha256::digest(kv.value()).into(),
        }
    }
}

/// A key at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It was there.
    There(Written),
    /// It was not.
    Nothing,
    /// etcd has compacted the revision, or was not asked.
    Untold,
}

/// What etcd has to say about a witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Testimony {
    /// The key at the revision of the event.
    Then {
        /// The revision before; only a delete needs it.
        before: Found,
        /// At the revision.
        at: Option<Written>,
    },
    /// The revision is compacted: the key as it is now.
    Now(Option<Written>),
}

/// What the store is to etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kinship {
    /// Its past.
    Own,
    /// Another history, that goes on differently at a revision etcd still has.
    Foreign,
    /// Another history, as far as etcd, which has compacted the revision, can tell.
    Parted,
    /// Nobody can tell any more.
    Unknown,
}

/// Compares the event with what etcd has.
pub(super) fn judge(witness: &Witness, testimony: &Testimony) -> Kinship {
    let own_if = |is_own, otherwise| if is_own { Kinship::Own } else { otherwise };
    match (&witness.put, testimony) {
        (Some(put), Testimony::Then { at, .. }) => {
            own_if(at.as_ref() == Some(put), Kinship::Foreign)
        }
        (None, Testimony::Then { at: Some(_), .. }) => Kinship::Foreign,
        (None, Testimony::Then { before, at: None }) => match before {
            Found::There(_) => Kinship::Own,
            Found::Nothing => Kinship::Foreign,
            Found::Untold => Kinship::Unknown,
        },
        (_, Testimony::Now(None)) => Kinship::Unknown,
        // Deleted and made again since, which says nothing about before.
        (_, Testimony::Now(Some(now))) if now.created > witness.revision => Kinship::Unknown,
        (None, Testimony::Now(Some(_))) => Kinship::Parted,
        (Some(put), Testimony::Now(Some(now))) if now.modified <= put.modified => {
            own_if(now == put, Kinship::Parted)
        }
        (Some(put), Testimony::Now(Some(now))) => {
            let has_grown = now.created == put.created && now.version > put.version;
            own_if(has_grown, Kinship::Parted)
        }
    }
}

impl Etcd {
    /// What the own member has to say about a witness. It must have been confirmed to be as far as the revision.
    pub(super) async fn testify(
        &self,
        witness: &Witness,
        limit: Duration,
    ) -> Result<Testimony, EtcdError> {
        let at = match self.key_at(witness, witness.revision, limit).await? {
            Found::There(at) => Some(at),
            Found::Nothing => None,
            Found::Untold => {
                let now = self.key_at(witness, NOW, limit).await?;
                return Ok(Testimony::Now(match now {
                    Found::There(now) => Some(now),
                    Found::Nothing | Found::Untold => None,
                }));
            }
        };
        let before = if witness.put.is_some() {
            Found::Untold
        } else {
            let before = witness.revision.previous();
            self.key_at(witness, before, limit).await?
        };
        Ok(Testimony::Then { before, at })
    }

    /// The key of a witness at a revision.
    async fn key_at(
        &self,
        witness: &Witness,
        revision: Revision,
        limit: Duration,
    ) -> Result<Found, EtcdError> {
        let client = self.own().await?;
        let mut kv = client.kv_client().max_decoding_message_size(usize::MAX);
        let options = GetOptions::new()
            .with_serializable()
            .with_revision(revision.0);
        let answer = kv.get(witness.key.as_slice(), Some(options));
        match within(limit, Step::Read, answer).await {
            Ok(answer) => {
                let kv = answer.kvs().first();
                Ok(kv.map_or(Found::Nothing, |kv| Found::There(kv.into())))
            }
            Err(error) if error.is_compacted() => Ok(Found::Untold),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;

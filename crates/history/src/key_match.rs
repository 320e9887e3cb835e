//! Compares one event of a backup with what a live etcd has for its key.
//!
//! The event exists in its own history and in no other: a key that was put has that version and value at exactly that
//! revision; a key that was deleted exists one revision earlier and not at that revision. If etcd has compacted the
//! revision, only the current state of the key can be compared.

use mainstay_ids::Revision;

use crate::event::{BackupEvent, WrittenKey};

/// A key at a revision, as etcd returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyLookup {
    /// The key exists.
    Present(WrittenKey),
    /// The key does not exist.
    Absent,
    /// etcd has compacted the revision, or it was not read.
    Unavailable,
}

/// The key of the event in etcd's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyHistory {
    /// The key at the revision of the event.
    AtRevision {
        /// One revision earlier; read for a delete only.
        before: KeyLookup,
        /// The key at the revision.
        at: Option<WrittenKey>,
    },
    /// The revision is compacted: the key at the current revision.
    Current(Option<WrittenKey>),
}

/// Relation of the store's history to etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryMatch {
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
pub fn match_history(witness: &BackupEvent, key_history: &KeyHistory) -> HistoryMatch {
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

/// Reads single keys of a live etcd, which must have reached the revisions that are read.
pub trait LiveHistory {
    /// Error of a read.
    type Error;

    /// Returns the key at a revision; `None` for the current one.
    fn key_at(
        &self,
        key: &[u8],
        revision: Option<Revision>,
    ) -> impl Future<Output = Result<KeyLookup, Self::Error>> + Send;
}

/// Reads what [`match_history`] needs about an event: one to three reads of its key.
pub async fn read_key_history<H: LiveHistory>(
    data: &H,
    event: &BackupEvent,
) -> Result<KeyHistory, H::Error> {
    let at = match data.key_at(&event.key, Some(event.revision)).await? {
        KeyLookup::Present(at) => Some(at),
        KeyLookup::Absent => None,
        KeyLookup::Unavailable => {
            let now = data.key_at(&event.key, None).await?;
            return Ok(KeyHistory::Current(match now {
                KeyLookup::Present(now) => Some(now),
                KeyLookup::Absent | KeyLookup::Unavailable => None,
            }));
        }
    };
    let before = if event.put.is_some() {
        KeyLookup::Unavailable
    } else {
        let before = event.revision.previous();
        data.key_at(&event.key, Some(before)).await?
    };
    Ok(KeyHistory::AtRevision { before, at })
}

#[cfg(test)]
mod tests;

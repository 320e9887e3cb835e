//! Gives a rebuilt database its new members, and takes away what must not survive a restore.
//!
//! Alarms, the cluster version, a downgrade under way, removed members and the old raft membership
//! belong to the cluster that is gone. A stale alarm would refuse writes; a stale version or
//! downgrade would keep etcd from starting.

use std::collections::BTreeMap;
use std::fs::File;

use mainstay_bbolt::{Database, BboltError as BboltError, OwnedItem, Update};
use mainstay_ids::{RaftIndex, Revision, Term};
use mainstay_mvcc::{DatabaseStatus, DatabaseStatusError, RevisionKey, schema, read_small_bucket};

/// What the database must say about the new cluster.
#[derive(Clone, Debug)]
pub struct NewClusterIdentity {
    /// Rows of the `members` bucket, ascending.
    pub members: Vec<OwnedItem>,
    /// Raft index the new log begins with.
    pub index: RaftIndex,
    /// Its term.
    pub term: Term,
    /// Raft membership as JSON.
    pub conf_state: String,
}

/// Moves revisions on, so that clients of the lost cluster notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RevisionBump {
    /// Added to the newest revision there is; 0 leaves revisions as they are.
    pub by: u64,
    /// The newest revision of the backup: clients may know it, also when an earlier state is restored.
    pub newest: Revision,
    /// Declares everything before compacted: watches from before the restore are told to start over.
    pub mark_compacted: bool,
}

/// A database that could not be finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FinishError {
    /// The engine.
    #[error("give the database its members")]
    Database {
        /// Why.
        source: BboltError,
    },
    /// The database cannot be read.
    #[error("read the rebuilt database")]
    Facts {
        /// Why.
        source: DatabaseStatusError,
    },
    /// The bump leaves the range of revisions.
    #[error("revision {revision} plus {by} is not a revision")]
    RevisionOverflow {
        /// Before.
        revision: Revision,
        /// Asked for.
        by: u64,
    },
}

/// Writes the identity and the bump in one commit. Returns the revision etcd will start with.
pub fn write_identity(file: &File, identity: &NewClusterIdentity, bump: RevisionBump) -> Result<Revision, FinishError> {
    let failed = |source| FinishError::Database { source };
    let (facts, mut meta) = {
        let database = Database::open(file).map_err(failed)?;
        let facts = DatabaseStatus::read(&database).map_err(|source| FinishError::Facts { source })?;
        let meta = read_small_bucket(&database, schema::META)
            .map_err(|source| FinishError::Facts { source })?;
        (facts, meta.into_iter().collect::<BTreeMap<_, _>>())
    };
    let revision = bump_revision(facts.revision, bump)?;
    meta.remove(schema::STORAGE_VERSION); // 3.6 and later migrate by themselves; older ones refuse
    meta.insert(
        schema::CONSISTENT_INDEX.to_vec(),
        identity.index.0.to_be_bytes().to_vec(),
    );
    meta.insert(
        schema::TERM.to_vec(),
        identity.term.0.to_be_bytes().to_vec(),
    );
    meta.insert(
        schema::CONF_STATE.to_vec(),
        identity.conf_state.clone().into_bytes(),
    );
    if bump.mark_compacted {
        let position = RevisionKey::first_of(revision).encode();
        meta.insert(schema::SCHEDULED_COMPACT.to_vec(), position.clone());
        meta.insert(schema::FINISHED_COMPACT.to_vec(), position);
    }
    let mut update = Update::open(file).map_err(failed)?;
    rewrite_bucket(&mut update, schema::META, meta.iter()).map_err(failed)?;
    let members = identity.members.iter().map(|(key, value)| (key, value));
    rewrite_bucket(&mut update, schema::MEMBERS, members).map_err(failed)?;
    for emptied in [schema::MEMBERS_REMOVED, schema::ALARM, schema::CLUSTER] {
        rewrite_bucket(&mut update, emptied, std::iter::empty()).map_err(failed)?;
    }
    update.commit().map_err(failed)?;
    Ok(revision)
}

fn bump_revision(revision: Revision, bump: RevisionBump) -> Result<Revision, FinishError> {
    let RevisionBump { by, newest, .. } = bump;
    if by == 0 {
        return Ok(revision);
    }
    let revision = revision.max(newest);
    i64::try_from(by)
        .ok()
        .and_then(|by| revision.0.checked_add(by))
        .map(Revision)
        .ok_or(FinishError::RevisionOverflow { revision, by })
}

fn rewrite_bucket<'a>(
    update: &mut Update<&File>,
    name: &[u8],
    items: impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)>,
) -> Result<(), BboltError> {
    let mut bucket = update.rewrite_bucket(name);
    for (key, value) in items {
        bucket.add(key, value)?;
    }
    bucket.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bump(by: u64, newest: i64) -> RevisionBump {
        RevisionBump {
            by,
            newest: Revision(newest),
            mark_compacted: true,
        }
    }

    #[test]
    fn a_bump_begins_behind_everything_clients_may_have_seen() {
        let start = |bump| bump_revision(Revision(70), bump).unwrap().0;
        assert_eq!(start(bump(0, 100)), 70, "nobody asked for one");
        assert_eq!(start(bump(10, 70)), 80);
        assert_eq!(start(bump(10, 60)), 80, "the backup may be older");
        assert_eq!(start(bump(10, 100)), 110, "an earlier state of it");
    }

    #[test]
    fn a_bump_beyond_the_numbers_is_refused() {
        for (by, newest) in [(u64::MAX, 0), (10, i64::MAX)] {
            assert!(bump_revision(Revision(70), bump(by, newest)).is_err());
        }
    }
}

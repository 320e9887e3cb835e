//! Writes the new members into a rebuilt database and removes the state of the old cluster.
//!
//! Alarms, the cluster version, a running downgrade, removed members and the old raft membership belong to the old
//! cluster. A stale alarm would refuse writes; a stale version or downgrade would keep etcd from starting.

use std::collections::BTreeMap;
use std::fs::File;

use mainstay_bbolt::{BboltError, Database, OwnedItem, Update};
use mainstay_ids::{RaftIndex, Revision, Term};
use mainstay_mvcc::{DatabaseStatus, DatabaseStatusError, RevisionKey, read_small_bucket, schema};

/// Identity of the new cluster in the database.
#[derive(Clone, Debug)]
pub(crate) struct NewClusterIdentity {
    /// Rows of the `members` bucket, in ascending order.
    pub(crate) members: Vec<OwnedItem>,
    /// Raft index at which the new WAL starts.
    pub(crate) index: RaftIndex,
    /// Raft term at which the new WAL starts.
    pub(crate) term: Term,
    /// Raft membership as JSON.
    pub(crate) conf_state: String,
}

/// Raises the revision, so that clients of the old cluster notice the restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RevisionBump {
    /// Added to the newest revision; 0 leaves revisions unchanged.
    pub(crate) by: u64,
    /// Newest revision of the backup: clients may have seen it, also if an earlier state is restored.
    pub(crate) newest: Revision,
    /// Marks all earlier revisions as compacted: watches from before the restore fail, and clients list again.
    pub(crate) mark_compacted: bool,
}

/// Error of finishing a database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum FinishError {
    #[error("failed to write the members into the database")]
    Database { source: BboltError },
    #[error("failed to read the rebuilt database")]
    Facts { source: DatabaseStatusError },
    #[error("--bump-revision {by} is too large: revision {revision} plus {by} overflows")]
    RevisionOverflow {
        /// Revision before the bump.
        revision: Revision,
        by: u64,
    },
}

/// Writes the identity and the bump in one commit, and returns the revision etcd starts with.
pub(crate) fn write_identity(
    file: &File,
    identity: &NewClusterIdentity,
    bump: RevisionBump,
) -> Result<Revision, FinishError> {
    let failed = |source| FinishError::Database { source };
    let (facts, mut meta) = {
        let database = Database::open(file).map_err(failed)?;
        let facts =
            DatabaseStatus::read(&database).map_err(|source| FinishError::Facts { source })?;
        let meta = read_small_bucket(&database, schema::META)
            .map_err(|source| FinishError::Facts { source })?;
        (facts, meta.into_iter().collect::<BTreeMap<_, _>>())
    };
    let revision = bump_revision(facts.revision, bump)?;
    meta.remove(schema::STORAGE_VERSION); // etcd 3.6 and later set it again; older versions refuse to start with it
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
    fn bumped_revision_is_above_every_revision_clients_may_have_seen() {
        let start = |bump| bump_revision(Revision(70), bump).unwrap().0;
        assert_eq!(start(bump(0, 100)), 70, "no bump requested");
        assert_eq!(start(bump(10, 70)), 80);
        assert_eq!(start(bump(10, 60)), 80, "the backup may be older");
        assert_eq!(start(bump(10, 100)), 110, "an earlier state of it");
    }

    #[test]
    fn revision_bump_that_overflows_is_refused() {
        for (by, newest) in [(u64::MAX, 0), (10, i64::MAX)] {
            assert!(bump_revision(Revision(70), bump(by, newest)).is_err());
        }
    }
}

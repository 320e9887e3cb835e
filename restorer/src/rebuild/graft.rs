//! Grafts the leaves of the deltas into the tree of the base once both are written.

use std::collections::BTreeMap;

use std::iter::Peekable;

use mainstay_backup::ProofError;
use mainstay_bbolt::{BboltError, Database, Update, WrittenLeaf};
use mainstay_ids::{LeaseId, Revision};
use mainstay_mvcc::{DatabaseStatus, DatabaseStatusError, RevisionKey, schema};

use super::error::RebuildError;
use super::leases::NewLease;
use super::rows::DeltaLeaves;
use super::spool::SpooledLeaves;
use super::{DatabaseFile, RebuildContext, RebuildSummary, StopPoint, truncate};

/// Grafts the rows of the deltas into the base and commits.
pub(crate) fn graft_deltas(
    job: &RebuildContext<'_>,
    rows: DeltaLeaves,
) -> Result<RebuildSummary, RebuildError> {
    let base = job.chain.base.name.to_string();
    let facts = {
        let database = Database::open(job.file).map_err(|source| ProofError::BaseStructure {
            object: base.clone(),
            source,
        })?;
        DatabaseStatus::read(&database).map_err(|source| ProofError::BaseFacts {
            object: base.clone(),
            source,
        })?
    };
    let holds = facts.revision;
    let target = match job.options.stop {
        StopPoint::Revision(wanted) => Some(wanted),
        StopPoint::Time(_) => rows.stopped_before.map(Revision::previous),
        StopPoint::End => None,
    };
    let mut rebuilt = RebuildSummary {
        revision: holds,
        base_revision: holds,
        compact_revision: facts.compact_revision(),
        revisions_applied: 0,
        events_applied: rows.rows,
        events_skipped: rows.skipped,
        new_leases: Vec::new(),
    };
    // The base is newer than its name and than the target: take it back instead of adding deltas.
    if let Some(wanted) = target.filter(|wanted| *wanted < holds) {
        drop_unused_pages(job.file)?;
        rebuilt.revision = wanted;
        rebuilt.new_leases = truncate::truncate_to_revision(job, &facts, wanted, &rows.leases)?;
        return Ok(rebuilt);
    }
    let (stopped_before, stopped_in_object) = (rows.stopped_before, rows.stopped_in_object.clone());
    let newer = rows.revisions.filter(|(_, last)| *last > holds);
    if let Some((first, last)) = newer {
        check_base_gap(&base, holds, first, &rows.first_object)?;
        rebuilt.revision = last;
        rebuilt.revisions_applied = last.0.abs_diff(holds.0);
        rebuilt.new_leases = graft_leaves(job.file, rows, holds)?;
    } else {
        drop_unused_pages(job.file)?;
    }
    check_target_reached(job, &rebuilt, stopped_before.zip(stopped_in_object))?;
    Ok(rebuilt)
}

/// Checks that the result reaches the requested revision, the last one before the requested time, or the revision in the
/// names of the objects.
fn check_target_reached(
    job: &RebuildContext<'_>,
    rebuilt: &RebuildSummary,
    stopped: Option<(Revision, String)>,
) -> Result<(), ProofError> {
    let reached = rebuilt.revision;
    match (job.options.stop, stopped) {
        (StopPoint::Revision(target), _) if reached < target => {
            Err(ProofError::ChainTooShort { reached, target })
        }
        (StopPoint::Time(_), Some((later, object))) if reached < later.previous() => {
            Err(ProofError::Gap {
                from: reached.next(),
                to: later.previous(),
                after: job.chain.base.name.to_string(),
                before: object,
                resumes: later,
                newest_restorable: reached,
            })
        }
        (StopPoint::End | StopPoint::Time(_), None) if reached < job.chain.last_revision => {
            Err(ProofError::ChainTooShort {
                reached,
                target: job.chain.last_revision,
            })
        }
        _ => Ok(()),
    }
}

/// Truncates leaves of deltas that turned out to be in the base already.
fn drop_unused_pages(file: DatabaseFile<'_>) -> Result<(), RebuildError> {
    let database = Database::open(file).map_err(|source| RebuildError::Database { source })?;
    let used = database.meta().bytes_in_use().unwrap_or(u64::MAX);
    file.file
        .set_len(used)
        .map_err(|source| RebuildError::Write { source })
}

/// Checks that the deltas continue the base without a gap.
fn check_base_gap(
    base: &str,
    holds: Revision,
    first: Revision,
    first_object: &str,
) -> Result<(), ProofError> {
    if first <= holds.next() {
        return Ok(());
    }
    Err(ProofError::Gap {
        from: holds.next(),
        to: first.previous(),
        after: base.to_owned(),
        before: first_object.to_owned(),
        resumes: first,
        newest_restorable: holds,
    })
}

fn graft_leaves(
    file: DatabaseFile<'_>,
    rows: DeltaLeaves,
    holds: Revision,
) -> Result<Vec<NewLease>, RebuildError> {
    let failed = |source| RebuildError::Database { source };
    let mut update = Update::open_after(file, rows.next_page).map_err(failed)?;
    let bound = RevisionKey::end_of(holds).to_vec();
    let leaves = NewLeaves {
        leaves: rows.leaves.peekable(),
        bound,
    };
    update.attach_leaves(schema::KEY, leaves).map_err(failed)?;
    let new = add_leases(file, &mut update, rows.leases)?;
    update.commit().map_err(failed)?;
    Ok(new)
}

/// Iterates over the leaves, or parts of leaves, whose rows the base does not have.
struct NewLeaves {
    leaves: Peekable<SpooledLeaves>,
    bound: Vec<u8>,
}

impl Iterator for NewLeaves {
    type Item = Result<WrittenLeaf, BboltError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (first_key, page) = match self.leaves.next()? {
                Ok(leaf) => leaf,
                Err(source) => {
                    return Some(Err(BboltError::Read {
                        offset: 0,
                        len: 0,
                        source,
                    }));
                }
            };
            // The next leaf still starts inside the base, so all rows of this one are in the base.
            let is_passed = matches!(self.leaves.peek(), Some(Ok((key, _))) if *key <= self.bound);
            if is_passed {
                continue;
            }
            return Some(Ok(if first_key <= self.bound {
                WrittenLeaf::Tail {
                    page,
                    bound: self.bound.clone(),
                }
            } else {
                WrittenLeaf::Page { first_key, page }
            }));
        }
    }
}

/// Adds the leases that the base does not have, and returns them.
pub(crate) fn add_leases(
    file: DatabaseFile<'_>,
    update: &mut Update<DatabaseFile<'_>>,
    mut wanted: BTreeMap<LeaseId, NewLease>,
) -> Result<Vec<NewLease>, RebuildError> {
    let failed = |source| RebuildError::Database { source };
    let known = {
        let database = Database::open(file).map_err(failed)?;
        mainstay_mvcc::read_small_bucket(&database, schema::LEASE).map_err(|error| match error {
            DatabaseStatusError::Structure(source) => RebuildError::Database { source },
            source => RebuildError::Proof(ProofError::BaseFacts {
                object: "the full snapshot".into(),
                source,
            }),
        })?
    };
    let mut rows: BTreeMap<Vec<u8>, Vec<u8>> = known.into_iter().collect();
    wanted.retain(|id, _| !rows.contains_key(id.0.to_be_bytes().as_slice()));
    let new: Vec<NewLease> = wanted.into_values().collect();
    for lease in &new {
        let row = schema::Lease {
            id: lease.id,
            ttl_seconds: lease.ttl_seconds,
            remaining_seconds: 0, // etcd starts a lease without it with its full TTL
        };
        let (key, value) = row.encode();
        rows.insert(key.to_vec(), value);
    }
    if !new.is_empty() {
        // A rewrite replaces the bucket, so the known leases are written again.
        let mut bucket = update.rewrite_bucket(schema::LEASE);
        for (key, value) in &rows {
            bucket.add(key, value).map_err(failed)?;
        }
        bucket.finish().map_err(failed)?;
    }
    Ok(new)
}

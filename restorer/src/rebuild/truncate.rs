//! Truncates a base to an earlier revision of its history.

use std::collections::{BTreeMap, HashSet};

use mainstay_backup::ProofError;
use mainstay_bbolt::{Database, Update};
use mainstay_ids::{LeaseId, Revision};
use mainstay_mvcc::hash::HashError;
use mainstay_mvcc::{DatabaseStatus, KeyDigester, KeyValue, RevisionKey, schema};

use super::RebuildContext;
use super::error::RebuildError;
use super::graft::add_leases;
use super::leases::{NewLease, new_lease};

/// Removes every row newer than `wanted`, and creates leases again that were revoked since. Memory: 16 bytes per key, to
/// find the leases.
pub(crate) fn truncate_to_revision(
    job: &RebuildContext<'_>,
    facts: &DatabaseStatus,
    target: Revision,
    reported: &BTreeMap<LeaseId, NewLease>,
) -> Result<Vec<NewLease>, RebuildError> {
    let object = || job.chain.base.name.to_string();
    // Compaction has removed rows that were still live at an older revision.
    if let Some(compact) = facts.compact_revision().filter(|compact| target < *compact) {
        let holds = facts.revision;
        return Err(ProofError::Compacted {
            object: object(),
            holds,
            compact,
            target,
        }
        .into());
    }
    let failed = |source| RebuildError::Database { source };
    let leases =
        find_live_leases(job, target, reported).map_err(|source| RebuildError::BaseRow {
            object: object(),
            source,
        })?;
    let mut update = Update::open(job.file).map_err(failed)?;
    let bound = RevisionKey::end_of(target);
    update
        .append_after_key(schema::KEY, Some(&bound))
        .map_err(failed)?
        .finish()
        .map_err(failed)?;
    let new = add_leases(job.file, &mut update, leases)?;
    update.commit().map_err(failed)?;
    Ok(new)
}

/// Returns the leases of the keys that are live at `wanted`. `reported` has the TTLs found in deltas.
fn find_live_leases(
    job: &RebuildContext<'_>,
    wanted: Revision,
    reported: &BTreeMap<LeaseId, NewLease>,
) -> Result<BTreeMap<LeaseId, NewLease>, HashError> {
    let database = Database::open(job.file)?;
    let root = database
        .bucket(schema::KEY)?
        .ok_or(mainstay_mvcc::DatabaseStatusError::NotEtcd)?;
    let digester = KeyDigester::default();
    let mut seen = HashSet::new();
    let mut leases = BTreeMap::new();
    let mut cursor = database.scan_back(&root)?;
    let mut ordinal = 0;
    while let Some(item) = cursor.next()? {
        let row = RevisionKey::decode(item.key)
            .map_err(|source| HashError::RowKey { ordinal, source })?;
        ordinal += 1;
        if row.main > wanted {
            continue;
        }
        let kv = KeyValue::decode(item.value).map_err(|source| HashError::RowValue {
            revision: row.main,
            source,
        })?;
        // The scan goes backwards, so the first row of a key is its state at `wanted`.
        let is_newest = seen.insert(digester.digest(kv.key));
        if is_newest && !row.is_tombstone && kv.lease != LeaseId::NONE {
            let known = reported.get(&kv.lease).filter(|lease| lease.is_ttl_known);
            let ttl = known.map(|lease| lease.ttl_seconds);
            let lease = new_lease(kv.lease, ttl, job.options.default_lease_seconds);
            leases.insert(kv.lease, lease);
        }
    }
    Ok(leases)
}

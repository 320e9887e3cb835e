//! Applies one request after the other, as `applyV3` of etcd does.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use bytes::Bytes;
use mainstay_bbolt::ReadAt;
use mainstay_ids::{LeaseId, RaftIndex, Revision};
use mainstay_mvcc::schema::Lease;
use mainstay_mvcc::{DatabaseStatus, KeyValue, RevisionKey};
use mainstay_wal::rpc::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RaftRequest, RequestOp, TxnRequest,
};

use super::error::ReplayError;
use super::touched::KeyRange;
use super::touched_state::{LiveKey, TouchedState, ValueSource};
use super::{ReplaySummary, ReplayedRow, RowSink};

/// TTL above which etcd rejects a grant.
const MAX_LEASE_TTL: i64 = 9_000_000_000;

/// The state while requests are applied.
pub(super) struct Applier<'a, S> {
    keys: TouchedState<'a, S>,
    leases: BTreeMap<LeaseId, Lease>,
    revision: Revision,
    compacted: Option<Revision>,
    scheduled_compact: Option<Revision>,
    sink: RowSink<'a>,
    rows: u64,
    /// Rows of the transaction that is being applied.
    changes: i64,
}

impl<'a, S: ReadAt> Applier<'a, S> {
    pub(super) fn new(
        keys: TouchedState<'a, S>,
        leases: BTreeMap<LeaseId, Lease>,
        status: &DatabaseStatus,
        sink: RowSink<'a>,
    ) -> Self {
        Self {
            keys,
            leases,
            revision: status.revision,
            compacted: status.compact_revision(),
            scheduled_compact: None,
            sink,
            rows: 0,
            changes: 0,
        }
    }

    pub(super) fn finish(self, entries: u64, database_revision: Revision) -> ReplaySummary {
        ReplaySummary {
            entries,
            rows: self.rows,
            database_revision,
            revision: self.revision,
            leases: self.leases.into_values().collect(),
            scheduled_compact: self.scheduled_compact,
        }
    }

    pub(super) fn apply(
        &mut self,
        index: RaftIndex,
        request: &RaftRequest,
    ) -> Result<(), ReplayError> {
        match request {
            RaftRequest::Put(put) if self.can_put(put) => self.put(put)?,
            // To a put that it cannot apply, etcd answered with an error.
            RaftRequest::NoEffect | RaftRequest::Put(_) => {}
            RaftRequest::DeleteRange(delete) => self.delete_range(delete)?,
            RaftRequest::Txn(txn) => self.apply_txn(txn)?,
            RaftRequest::Compaction(compaction) => self.compact(Revision(compaction.revision)),
            RaftRequest::LeaseGrant(grant) => self.grant(grant),
            RaftRequest::LeaseRevoke(revoke) => self.revoke(LeaseId::from_signed(revoke.id))?,
            RaftRequest::Unsupported(what) => {
                return Err(ReplayError::Unsupported { what, index });
            }
        }
        self.end_transaction();
        Ok(())
    }

    /// A request is one revision if it changed anything.
    fn end_transaction(&mut self) {
        if self.changes > 0 {
            self.revision = self.revision.next();
            self.changes = 0;
        }
    }

    fn can_put(&self, put: &PutRequest) -> bool {
        let lease = LeaseId::from_signed(put.lease);
        let is_lease_known = lease == LeaseId::NONE || self.leases.contains_key(&lease);
        let needs_key = put.ignore_value || put.ignore_lease;
        is_lease_known && (!needs_key || self.keys.live.contains_key(put.key.as_ref()))
    }

    fn put(&mut self, put: &PutRequest) -> Result<(), ReplayError> {
        let current = self.keys.live.get(put.key.as_ref());
        let value = match current {
            Some(current) if put.ignore_value => self.keys.read_value(&current.value)?,
            _ => put.value.clone(),
        };
        let lease = match current {
            Some(current) if put.ignore_lease => current.lease,
            _ => LeaseId::from_signed(put.lease),
        };
        let main = self.revision.next();
        let state = LiveKey {
            create_revision: current.map_or(main, |current| current.create_revision),
            mod_revision: main,
            version: current.map_or(1, |current| current.version.saturating_add(1)),
            lease,
            value: ValueSource::Log(value.clone()),
        };
        let row = KeyValue {
            key: &put.key,
            create_revision: state.create_revision,
            mod_revision: main,
            version: state.version,
            value: &value,
            lease,
        };
        self.emit(false, row)?;
        self.keys.live.insert(put.key.to_vec(), state);
        Ok(())
    }

    fn delete_range(&mut self, delete: &DeleteRangeRequest) -> Result<(), ReplayError> {
        let range = KeyRange::new(&delete.key, &delete.range_end);
        self.delete_keys(self.keys.keys_in(&range))
    }

    fn delete_keys(&mut self, keys: Vec<Vec<u8>>) -> Result<(), ReplayError> {
        for key in keys {
            let row = KeyValue {
                key: &key,
                ..KeyValue::default()
            };
            self.emit(true, row)?;
            self.keys.live.remove(&key);
        }
        Ok(())
    }

    fn emit(&mut self, is_tombstone: bool, row: KeyValue<'_>) -> Result<(), ReplayError> {
        let at = RevisionKey {
            main: self.revision.next(),
            sub: self.changes,
            is_tombstone,
        };
        (self.sink)(&ReplayedRow { at, row })?;
        self.changes += 1;
        self.rows += 1;
        Ok(())
    }

    /// All conditions, also those of nested transactions, are checked before the first operation.
    fn apply_txn(&mut self, txn: &TxnRequest) -> Result<(), ReplayError> {
        let mut chosen = Vec::new();
        self.choose_ops(txn, &mut chosen)?;
        if !chosen.iter().all(|op| self.can_execute(op)) {
            return Ok(()); // etcd answered with an error before it changed anything
        }
        for op in chosen {
            if let Some(put) = &op.put {
                self.put(put)?;
            } else if let Some(delete) = &op.delete_range {
                self.delete_range(delete)?;
            }
        }
        Ok(())
    }

    fn choose_ops<'t>(
        &self,
        txn: &'t TxnRequest,
        chosen: &mut Vec<&'t RequestOp>,
    ) -> Result<(), ReplayError> {
        let mut is_met = true;
        for compare in &txn.compare {
            is_met = is_met && self.is_met(compare)?;
        }
        for op in if is_met { &txn.success } else { &txn.failure } {
            match &op.txn {
                Some(nested) => self.choose_ops(nested, chosen)?,
                None => chosen.push(op),
            }
        }
        Ok(())
    }

    fn can_execute(&self, op: &RequestOp) -> bool {
        if let Some(put) = &op.put {
            return self.can_put(put);
        }
        let read = op.range.as_ref().map_or(0, |range| range.revision);
        // etcd counts an uncompacted history from -1.
        let oldest = self.compacted.map_or(-1, |compacted| compacted.0);
        read == 0 || (oldest..=self.revision.0).contains(&read)
    }

    fn is_met(&self, compare: &Compare) -> Result<bool, ReplayError> {
        const VALUE: i32 = 3;
        let keys = self
            .keys
            .keys_in(&KeyRange::new(&compare.key, &compare.range_end));
        if keys.is_empty() {
            // A missing key compares as zero, but a missing value as nothing.
            return Ok(compare.target != VALUE && is_ordered(compare, number(compare, None)));
        }
        for state in keys.iter().filter_map(|key| self.keys.live.get(key)) {
            let ordering = if compare.target == VALUE {
                let value: Bytes = self.keys.read_value(&state.value)?;
                value.cmp(&compare.value)
            } else {
                number(compare, Some(state))
            };
            if !is_ordered(compare, ordering) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Schedules a compaction; etcd removes the rows at its next start.
    fn compact(&mut self, revision: Revision) {
        if Some(revision) > self.compacted && revision <= self.revision && revision.0 > 0 {
            self.compacted = Some(revision);
            self.scheduled_compact = Some(revision);
        }
    }

    fn grant(&mut self, grant: &LeaseGrantRequest) {
        let id = LeaseId::from_signed(grant.id);
        if id == LeaseId::NONE || grant.ttl > MAX_LEASE_TTL {
            return;
        }
        // An existing lease stays as it is: etcd answers with an error.
        self.leases.entry(id).or_insert(Lease {
            id,
            ttl_seconds: grant.ttl,
            remaining_seconds: 0,
        });
    }

    fn revoke(&mut self, id: LeaseId) -> Result<(), ReplayError> {
        if self.leases.remove(&id).is_none() {
            return Ok(());
        }
        let attached = self.keys.live.iter().filter(|(_, key)| key.lease == id);
        let keys = attached.map(|(key, _)| key.clone()).collect();
        self.delete_keys(keys)
    }
}

/// Compares a number of a key with the operand.
fn number(compare: &Compare, state: Option<&LiveKey>) -> Ordering {
    let (found, operand) = match compare.target {
        1 => (
            state.map_or(0, |key| key.create_revision.0),
            compare.create_revision,
        ),
        2 => (
            state.map_or(0, |key| key.mod_revision.0),
            compare.mod_revision,
        ),
        4 => (state.map_or(0, |key| key.lease.to_signed()), compare.lease),
        _ => (state.map_or(0, |key| key.version), compare.version),
    };
    found.cmp(&operand)
}

fn is_ordered(compare: &Compare, ordering: Ordering) -> bool {
    match compare.result {
        1 => ordering == Ordering::Greater,
        2 => ordering == Ordering::Less,
        3 => ordering != Ordering::Equal,
        _ => ordering == Ordering::Equal,
    }
}

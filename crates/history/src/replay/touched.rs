//! The keys that the pending requests read or write: only their current state is loaded.

use std::collections::BTreeSet;

use bytes::Bytes;
use mainstay_ids::LeaseId;
use mainstay_wal::rpc::{RaftRequest, RequestOp, TxnRequest};

/// A range of keys as etcd reads it from a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyRange {
    /// One key.
    Single(Bytes),
    /// All keys from the first on.
    From(Bytes),
    /// The end is excluded.
    Between(Bytes, Bytes),
}

impl KeyRange {
    /// An empty end means one key, a zero byte means no end.
    pub(super) fn new(key: &Bytes, range_end: &Bytes) -> Self {
        match range_end.as_ref() {
            [] => Self::Single(key.clone()),
            [0] => Self::From(key.clone()),
            _ => Self::Between(key.clone(), range_end.clone()),
        }
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::Single(only) => only == key,
            Self::From(first) => key >= first.as_ref(),
            Self::Between(first, end) => key >= first.as_ref() && key < end.as_ref(),
        }
    }
}

/// What the pending requests touch.
#[derive(Debug, Default)]
pub(super) struct TouchedKeys {
    keys: BTreeSet<Bytes>,
    ranges: Vec<KeyRange>,
    /// Leases whose revocation deletes their keys.
    revoked: BTreeSet<LeaseId>,
    has_effect: bool,
}

impl TouchedKeys {
    pub(super) fn is_empty(&self) -> bool {
        !self.has_effect
    }

    pub(super) fn add(&mut self, request: &RaftRequest) {
        self.has_effect |= *request != RaftRequest::NoEffect;
        match request {
            RaftRequest::Put(put) => self.add_key(&put.key),
            RaftRequest::DeleteRange(delete) => self.add_range(&delete.key, &delete.range_end),
            RaftRequest::Txn(txn) => self.add_txn(txn),
            RaftRequest::LeaseRevoke(revoke) => {
                self.revoked.insert(LeaseId::from_signed(revoke.id));
            }
            RaftRequest::NoEffect
            | RaftRequest::Compaction(_)
            | RaftRequest::LeaseGrant(_)
            | RaftRequest::Unsupported(_) => {}
        }
    }

    /// Whether the state of a key matters; `lease` is that of one of its rows.
    pub(super) fn contains(&self, key: &[u8], lease: LeaseId) -> bool {
        self.keys.contains(key)
            || self.revoked.contains(&lease)
            || self.ranges.iter().any(|range| range.contains(key))
    }

    fn add_key(&mut self, key: &Bytes) {
        self.keys.insert(key.clone());
    }

    fn add_range(&mut self, key: &Bytes, range_end: &Bytes) {
        match KeyRange::new(key, range_end) {
            KeyRange::Single(key) => self.add_key(&key),
            range if self.ranges.contains(&range) => {}
            range => self.ranges.push(range),
        }
    }

    fn add_txn(&mut self, txn: &TxnRequest) {
        for compare in &txn.compare {
            self.add_range(&compare.key, &compare.range_end);
        }
        for op in txn.success.iter().chain(&txn.failure) {
            self.add_op(op);
        }
    }

    fn add_op(&mut self, op: &RequestOp) {
        if let Some(put) = &op.put {
            self.add_key(&put.key);
        }
        if let Some(delete) = &op.delete_range {
            self.add_range(&delete.key, &delete.range_end);
        }
        if let Some(txn) = &op.txn {
            self.add_txn(txn);
        }
    }
}

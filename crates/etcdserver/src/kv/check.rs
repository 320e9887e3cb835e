//! Checks of requests, in the order in which etcd makes them.

use std::collections::HashSet;

use bytes::Bytes;
use mainstay_engine::KeyRange;

use crate::error::EtcdError;
use crate::front::MAX_TXN_OPS;
use crate::proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::proto::etcdserverpb::request_op::Request;
use crate::proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};

/// Deepest nesting of transactions, below what the protobuf decoder allows.
const MAX_DEPTH: usize = 32;

pub(super) fn range(request: &RangeRequest) -> Result<(), EtcdError> {
    has_key(&request.key)?;
    let order = SortOrder::try_from(request.sort_order);
    let target = SortTarget::try_from(request.sort_target);
    if order.is_err() || target.is_err() {
        return Err(EtcdError::INVALID_SORT);
    }
    Ok(())
}

pub(super) fn put(request: &PutRequest) -> Result<(), EtcdError> {
    has_key(&request.key)?;
    if request.ignore_value && !request.value.is_empty() {
        return Err(EtcdError::VALUE_PROVIDED);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(EtcdError::LEASE_PROVIDED);
    }
    Ok(())
}

pub(super) fn delete_range(request: &DeleteRangeRequest) -> Result<(), EtcdError> {
    has_key(&request.key)
}

fn has_key(key: &Bytes) -> Result<(), EtcdError> {
    if key.is_empty() {
        return Err(EtcdError::EMPTY_KEY);
    }
    Ok(())
}

pub(super) fn txn(request: &TxnRequest) -> Result<(), EtcdError> {
    operations(request, MAX_TXN_OPS, MAX_DEPTH)?;
    written(&request.success)?;
    written(&request.failure)?;
    Ok(())
}

fn operations(request: &TxnRequest, allowed: usize, depth: usize) -> Result<(), EtcdError> {
    let branches = [
        request.compare.len(),
        request.success.len(),
        request.failure.len(),
    ];
    let count = branches.into_iter().max().unwrap_or(0);
    if count > allowed || depth == 0 {
        return Err(EtcdError::TOO_MANY_OPS);
    }
    for compare in &request.compare {
        has_key(&compare.key)?;
    }
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(Request::RequestRange(inner)) => range(inner)?,
            Some(Request::RequestPut(inner)) => put(inner)?,
            Some(Request::RequestDeleteRange(inner)) => delete_range(inner)?,
            Some(Request::RequestTxn(inner)) => operations(inner, allowed - count, depth - 1)?,
            None => return Err(EtcdError::KEY_NOT_FOUND),
        }
    }
    Ok(())
}

/// Keys that a branch puts, and ranges it deletes.
#[derive(Default)]
struct Written {
    puts: HashSet<Bytes>,
    deletes: Vec<KeyRange>,
}

impl Written {
    fn deletes_key(&self, key: &[u8]) -> bool {
        self.deletes.iter().any(|range| range.contains(key))
    }
}

/// Collects the writes of a branch. A key may not be written twice in one revision; the two branches of a nested
/// transaction exclude each other.
fn written(ops: &[RequestOp]) -> Result<Written, EtcdError> {
    let mut all = Written::default();
    for op in ops {
        if let Some(Request::RequestDeleteRange(delete)) = &op.request {
            let range = KeyRange::from_wire(delete.key.clone(), delete.range_end.clone());
            all.deletes.push(range);
        }
    }
    for op in ops {
        if let Some(Request::RequestTxn(nested)) = &op.request {
            add_nested(&mut all, nested)?;
        }
    }
    for op in ops {
        if let Some(Request::RequestPut(put)) = &op.request
            && (all.deletes_key(&put.key) || !all.puts.insert(put.key.clone()))
        {
            return Err(EtcdError::DUPLICATE_KEY);
        }
    }
    Ok(all)
}

fn add_nested(all: &mut Written, nested: &TxnRequest) -> Result<(), EtcdError> {
    let success = written(&nested.success)?;
    let failure = written(&nested.failure)?;
    for key in &success.puts {
        if all.deletes_key(key) || !all.puts.insert(key.clone()) {
            return Err(EtcdError::DUPLICATE_KEY);
        }
    }
    for key in failure.puts {
        let is_new = all.puts.insert(key.clone());
        if all.deletes_key(&key) || (!is_new && !success.puts.contains(&key)) {
            return Err(EtcdError::DUPLICATE_KEY);
        }
    }
    all.deletes.extend(success.deletes);
    all.deletes.extend(failure.deletes);
    Ok(())
}

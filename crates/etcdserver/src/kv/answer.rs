//! Answers of an engine as responses to clients.

use std::cmp::Ordering;

use bytes::Bytes;
use mainstay_engine::{DeleteAnswer, KeyVersion, OpAnswer, RangeAnswer, TxnAnswer};
use mainstay_ids::Revision;

use crate::proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::proto::etcdserverpb::request_op::Request;
use crate::proto::etcdserverpb::response_op::Response;
use crate::proto::etcdserverpb::{
    DeleteRangeResponse, PutResponse, RangeRequest, RangeResponse, ResponseHeader, ResponseOp,
    TxnRequest, TxnResponse,
};
use crate::proto::mvccpb::KeyValue;

/// One version of a key on the wire.
pub(crate) fn key_value(version: KeyVersion) -> KeyValue {
    KeyValue {
        key: version.key,
        create_revision: version.create_revision.0,
        mod_revision: version.mod_revision.0,
        version: version.version,
        value: version.value,
        lease: version.lease.to_signed(),
    }
}

/// Filters, sorts and cuts what was read. `count` is of the range, whatever is filtered.
pub(super) fn range(request: &RangeRequest, found: RangeAnswer) -> RangeResponse {
    let mut keys = found.keys;
    keys.retain(|version| is_within(request, version));
    sort(request, &mut keys);
    let limit = usize::try_from(request.limit).unwrap_or(0);
    let more = limit > 0 && keys.len() > limit;
    if more {
        keys.truncate(limit);
    }
    let mut kvs: Vec<KeyValue> = keys.into_iter().map(key_value).collect();
    if request.keys_only {
        for kv in &mut kvs {
            kv.value = Bytes::new();
        }
    }
    RangeResponse {
        header: None,
        kvs,
        more,
        count: i64::try_from(found.count).unwrap_or(i64::MAX),
    }
}

fn is_within(request: &RangeRequest, version: &KeyVersion) -> bool {
    let within = |revision: Revision, min: i64, max: i64| {
        (min == 0 || revision.0 >= min) && (max == 0 || revision.0 <= max)
    };
    within(
        version.mod_revision,
        request.min_mod_revision,
        request.max_mod_revision,
    ) && within(
        version.create_revision,
        request.min_create_revision,
        request.max_create_revision,
    )
}

fn sort(request: &RangeRequest, keys: &mut [KeyVersion]) {
    let target = request.sort_target();
    // Keys come in their order. Another target without an order is sorted ascending.
    if request.sort_order() == SortOrder::None && target == SortTarget::Key {
        return;
    }
    let order = |a: &KeyVersion, b: &KeyVersion| -> Ordering {
        match target {
            SortTarget::Key => a.key.cmp(&b.key),
            SortTarget::Version => a.version.cmp(&b.version),
            SortTarget::Create => a.create_revision.cmp(&b.create_revision),
            SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
            SortTarget::Value => a.value.cmp(&b.value),
        }
    };
    match request.sort_order() {
        SortOrder::None | SortOrder::Ascend => keys.sort_by(order),
        SortOrder::Descend => keys.sort_by(|a, b| order(b, a)),
    }
}

pub(super) fn delete_range(done: DeleteAnswer) -> DeleteRangeResponse {
    DeleteRangeResponse {
        header: None,
        deleted: i64::try_from(done.deleted).unwrap_or(i64::MAX),
        prev_kvs: done.previous.into_iter().map(key_value).collect(),
    }
}

pub(super) fn txn(request: &TxnRequest, done: TxnAnswer) -> TxnResponse {
    let ops = if done.succeeded {
        &request.success
    } else {
        &request.failure
    };
    let responses = ops
        .iter()
        .zip(done.answers)
        .map(|(op, answer)| ResponseOp {
            response: Some(response(op.request.as_ref(), answer)),
        })
        .collect();
    TxnResponse {
        header: inner_header(Revision(0)),
        succeeded: done.succeeded,
        responses,
    }
}

fn response(request: Option<&Request>, answer: OpAnswer) -> Response {
    match (request, answer) {
        (Some(Request::RequestRange(request)), OpAnswer::Range(found)) => {
            let header = inner_header(found.revision);
            let mut response = range(request, found);
            response.header = header;
            Response::ResponseRange(response)
        }
        (Some(Request::RequestTxn(request)), OpAnswer::Txn(done)) => {
            Response::ResponseTxn(txn(request, done))
        }
        (_, OpAnswer::Put(done)) => Response::ResponsePut(PutResponse {
            header: inner_header(done.revision),
            prev_kv: done.previous.map(key_value),
        }),
        (_, OpAnswer::DeleteRange(done)) => {
            let header = inner_header(done.revision);
            let mut response = delete_range(done);
            response.header = header;
            Response::ResponseDeleteRange(response)
        }
        // The engine answers each operation in its kind; an empty answer keeps the others in their places.
        (_, OpAnswer::Range(_) | OpAnswer::Txn(_)) => {
            Response::ResponseRange(RangeResponse::default())
        }
    }
}

/// Responses within a transaction carry only the revision.
#[expect(
    clippy::unnecessary_wraps,
    reason = "every response has an optional header"
)]
fn inner_header(revision: Revision) -> Option<ResponseHeader> {
    Some(ResponseHeader {
        revision: revision.0,
        ..ResponseHeader::default()
    })
}

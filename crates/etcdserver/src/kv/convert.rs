//! Requests of clients as requests to an engine.

use mainstay_engine::{
    Compare, CompareResult, CompareTarget, DeleteRange, KeyRange, Op, Projection, Put, PutLease,
    RangeQuery, Txn,
};
use mainstay_ids::{LeaseId, Revision};

use crate::proto::etcdserverpb::range_request::SortOrder;
use crate::proto::etcdserverpb::request_op::Request;
use crate::proto::etcdserverpb::{
    self as pb, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};

pub(super) fn range(request: &RangeRequest) -> RangeQuery {
    // Sorted and filtered results are cut afterwards; one more key than the limit shows that there are more.
    let is_cut_later = request.sort_order != SortOrder::None as i32
        || [
            request.min_mod_revision,
            request.max_mod_revision,
            request.min_create_revision,
            request.max_create_revision,
        ]
        .iter()
        .any(|bound| *bound != 0);
    let limit = usize::try_from(request.limit)
        .ok()
        .filter(|limit| *limit > 0 && !is_cut_later);
    RangeQuery {
        range: KeyRange::from_wire(request.key.clone(), request.range_end.clone()),
        at: (request.revision > 0).then_some(Revision(request.revision)),
        limit: limit.map(|limit| limit.saturating_add(1)),
        projection: if request.count_only {
            Projection::CountOnly
        } else {
            Projection::Full
        },
    }
}

pub(super) fn put(request: &PutRequest) -> Put {
    Put {
        key: request.key.clone(),
        value: (!request.ignore_value).then(|| request.value.clone()),
        lease: if request.ignore_lease {
            PutLease::Keep
        } else {
            PutLease::Set(LeaseId::from_signed(request.lease))
        },
        wants_previous: request.prev_kv,
    }
}

pub(super) fn delete_range(request: &DeleteRangeRequest) -> DeleteRange {
    DeleteRange {
        range: KeyRange::from_wire(request.key.clone(), request.range_end.clone()),
        wants_previous: request.prev_kv,
    }
}

pub(super) fn txn(request: &TxnRequest) -> Txn {
    Txn {
        compare: request.compare.iter().map(compare).collect(),
        success: ops(&request.success),
        failure: ops(&request.failure),
    }
}

fn ops(requests: &[RequestOp]) -> Vec<Op> {
    let op = |request: &RequestOp| {
        Some(match request.request.as_ref()? {
            Request::RequestRange(inner) => Op::Range(range(inner)),
            Request::RequestPut(inner) => Op::Put(put(inner)),
            Request::RequestDeleteRange(inner) => Op::DeleteRange(delete_range(inner)),
            Request::RequestTxn(inner) => Op::Txn(txn(inner)),
        })
    };
    // An operation without a request was refused.
    requests.iter().filter_map(op).collect()
}

fn compare(request: &pb::Compare) -> Compare {
    use pb::compare::{CompareResult as Result, CompareTarget as Target, TargetUnion as Value};
    let value = request.target_union.as_ref();
    let target = match request.target() {
        Target::Version => CompareTarget::Version(match value {
            Some(Value::Version(n)) => *n,
            _ => 0,
        }),
        Target::Create => CompareTarget::CreateRevision(match value {
            Some(Value::CreateRevision(n)) => *n,
            _ => 0,
        }),
        Target::Mod => CompareTarget::ModRevision(match value {
            Some(Value::ModRevision(n)) => *n,
            _ => 0,
        }),
        Target::Value => CompareTarget::Value(match value {
            Some(Value::Value(bytes)) => bytes.clone(),
            _ => bytes::Bytes::new(),
        }),
        Target::Lease => CompareTarget::Lease(match value {
            Some(Value::Lease(id)) => LeaseId::from_signed(*id),
            _ => LeaseId::NONE,
        }),
    };
    Compare {
        range: KeyRange::from_wire(request.key.clone(), request.range_end.clone()),
        target,
        result: match request.result() {
            Result::Equal => CompareResult::Equal,
            Result::Greater => CompareResult::Greater,
            Result::Less => CompareResult::Less,
            Result::NotEqual => CompareResult::NotEqual,
        },
    }
}

//! The requests of entries, decoded completely, for a replay of the log without etcd.
//!
//! Field numbers are those of etcd's `rpc.proto` and `raft_internal.proto`, from 3.4 to 3.7. Only fields that influence
//! the key space or the leases are declared.

use std::collections::BTreeMap;

use bytes::{Buf as _, Bytes};
use prost::Message as _;
use prost::encoding::{DecodeContext, WireType, decode_key, skip_field};

use crate::message::V2Request;
use crate::raft::{Entry, EntryKind};

/// A put.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PutRequest {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The value; empty with `ignore_value`.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    /// Lease to attach; 0 for none.
    #[prost(int64, tag = "3")]
    pub lease: i64,
    /// Keeps the current value; the key must exist.
    #[prost(bool, tag = "5")]
    pub ignore_value: bool,
    /// Keeps the current lease; the key must exist.
    #[prost(bool, tag = "6")]
    pub ignore_lease: bool,
}

/// A read inside a transaction. Its revision can make the transaction fail.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RangeRequest {
    /// First key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// End of the range, excluded.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// Revision to read at; 0 or negative for the current one.
    #[prost(int64, tag = "4")]
    pub revision: i64,
}

/// Deletes one key, or all keys of a range.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeleteRangeRequest {
    /// First key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// End of the range, excluded; empty for one key, a zero byte for all keys from `key` on.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
}

/// A condition of a transaction.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Compare {
    /// 0 equal, 1 greater, 2 less, 3 not equal.
    #[prost(int32, tag = "1")]
    pub result: i32,
    /// 0 version, 1 creation revision, 2 modification revision, 3 value, 4 lease.
    #[prost(int32, tag = "2")]
    pub target: i32,
    /// First key.
    #[prost(bytes = "bytes", tag = "3")]
    pub key: Bytes,
    /// Operand of target 0.
    #[prost(int64, tag = "4")]
    pub version: i64,
    /// Operand of target 1.
    #[prost(int64, tag = "5")]
    pub create_revision: i64,
    /// Operand of target 2.
    #[prost(int64, tag = "6")]
    pub mod_revision: i64,
    /// Operand of target 3.
    #[prost(bytes = "bytes", tag = "7")]
    pub value: Bytes,
    /// Operand of target 4.
    #[prost(int64, tag = "8")]
    pub lease: i64,
    /// End of the range, excluded: every key in it must meet the condition.
    #[prost(bytes = "bytes", tag = "64")]
    pub range_end: Bytes,
}

/// An operation of a transaction: exactly one field is set.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RequestOp {
    /// A read.
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeRequest>,
    /// A put.
    #[prost(message, optional, tag = "2")]
    pub put: Option<PutRequest>,
    /// A deletion.
    #[prost(message, optional, tag = "3")]
    pub delete_range: Option<DeleteRangeRequest>,
    /// A nested transaction.
    #[prost(message, optional, boxed, tag = "4")]
    pub txn: Option<Box<TxnRequest>>,
}

/// A transaction.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TxnRequest {
    /// Conditions; all must be met.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    /// Operations if all are met.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    /// Operations otherwise.
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

/// A compaction.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CompactionRequest {
    /// Revision to compact at.
    #[prost(int64, tag = "1")]
    pub revision: i64,
}

/// A lease grant.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LeaseGrantRequest {
    /// TTL in seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
    /// Lease id, which the server has chosen before the proposal.
    #[prost(int64, tag = "2")]
    pub id: i64,
}

/// A lease revocation.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LeaseRevokeRequest {
    /// Lease id.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// An alarm request; also reads of alarms are proposed.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AlarmRequest {
    /// 0 get, 1 activate, 2 deactivate.
    #[prost(int32, tag = "1")]
    pub action: i32,
}

/// A decoded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RaftRequest {
    /// Neither key space nor leases change: the entry of a new leader, a membership change, cluster attributes, a read.
    NoEffect,
    /// A put.
    Put(PutRequest),
    /// A deletion.
    DeleteRange(DeleteRangeRequest),
    /// A transaction.
    Txn(TxnRequest),
    /// A compaction.
    Compaction(CompactionRequest),
    /// A lease grant.
    LeaseGrant(LeaseGrantRequest),
    /// A lease revocation.
    LeaseRevoke(LeaseRevokeRequest),
    /// A request with an effect that a replay does not know.
    Unsupported(&'static str),
}

/// The bytes of an entry are no request; etcd panics on them.
#[derive(Debug, thiserror::Error)]
#[error("invalid {what} in entry {index}")]
pub struct RequestDecodeError {
    /// Message that cannot be decoded.
    pub what: &'static str,
    /// Index of the entry.
    pub index: u64,
    /// Error of the protobuf decoder.
    #[source]
    pub source: prost::DecodeError,
}

/// Parts of `InternalRaftRequest`: field number and what a replay does with it.
const HEADER: u32 = 100;
const ID: u32 = 1;
const V2: u32 = 2;
/// Read, authentication tokens and status, cluster version, member attributes, downgrade: not in the key space.
const WITHOUT_EFFECT: [u32; 6] = [3, 1012, 1013, 1300, 1301, 1302];

impl RaftRequest {
    /// Decodes the request in `entry`.
    pub fn from_entry(entry: &Entry) -> Result<Self, RequestDecodeError> {
        match entry.kind {
            EntryKind::ConfChange | EntryKind::ConfChangeV2 => Ok(Self::NoEffect),
            EntryKind::Normal if entry.data.is_empty() => Ok(Self::NoEffect),
            EntryKind::Normal => {
                let failed = |(what, source)| RequestDecodeError {
                    what,
                    index: entry.index.0,
                    source,
                };
                decode_request(&entry.data).map_err(failed)
            }
        }
    }
}

type Failed = (&'static str, prost::DecodeError);

fn decode_request(data: &Bytes) -> Result<RaftRequest, Failed> {
    let parts = match collect_parts(data) {
        Ok(parts) => parts,
        Err(source) => return decode_v2(data).ok_or(("request", source)),
    };
    // The method of a bare v2 request has the field number of an internal request's v2 part; etcd applies it either way.
    if parts.contains_key(&V2) {
        return Ok(RaftRequest::NoEffect);
    }
    for (number, part) in &parts {
        let request = match number {
            4 => RaftRequest::Put(decode_part("put", part)?),
            5 => RaftRequest::DeleteRange(decode_part("delete range", part)?),
            6 => RaftRequest::Txn(decode_part("transaction", part)?),
            7 => RaftRequest::Compaction(decode_part("compaction", part)?),
            8 => RaftRequest::LeaseGrant(decode_part("lease grant", part)?),
            9 => RaftRequest::LeaseRevoke(decode_part("lease revocation", part)?),
            10 => match decode_part::<AlarmRequest>("alarm", part)?.action {
                // Removing an alarm that was not active, or reading: the replay starts without alarms.
                0 | 2 => RaftRequest::NoEffect,
                _ => RaftRequest::Unsupported("alarm"),
            },
            11 => RaftRequest::Unsupported("lease checkpoint"),
            number if WITHOUT_EFFECT.contains(number) => RaftRequest::NoEffect,
            1000..1300 => RaftRequest::Unsupported("authentication change"),
            &ID | &HEADER => continue,
            _ => RaftRequest::Unsupported("request of an unknown kind"),
        };
        return Ok(request);
    }
    Ok(RaftRequest::NoEffect)
}

fn decode_part<M: prost::Message + Default>(what: &'static str, part: &Bytes) -> Result<M, Failed> {
    M::decode(part.clone()).map_err(|source| (what, source))
}

fn decode_v2(data: &Bytes) -> Option<RaftRequest> {
    let request = V2Request::decode(data.clone()).ok()?;
    (request.method.is_some() && request.path.is_some()).then_some(RaftRequest::NoEffect)
}

/// The fields of a message; scalars have empty bytes.
fn collect_parts(data: &Bytes) -> Result<BTreeMap<u32, Bytes>, prost::DecodeError> {
    let mut rest = data.clone();
    let mut parts = BTreeMap::new();
    while rest.has_remaining() {
        let (number, wire) = decode_key(&mut rest)?;
        if wire == WireType::LengthDelimited {
            let mut part = Bytes::new();
            prost::encoding::bytes::merge(wire, &mut part, &mut rest, DecodeContext::default())?;
            parts.insert(number, part);
        } else {
            skip_field(wire, number, &mut rest, DecodeContext::default())?;
            parts.insert(number, Bytes::new());
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use mainstay_ids::{RaftIndex, Term};

    use super::*;

    fn decode(kind: EntryKind, data: &[u8]) -> Result<RaftRequest, RequestDecodeError> {
        RaftRequest::from_entry(&Entry {
            index: RaftIndex(5),
            term: Term(2),
            kind,
            data: Bytes::copy_from_slice(data),
        })
    }

    fn decode_normal(data: &[u8]) -> RaftRequest {
        decode(EntryKind::Normal, data).unwrap()
    }

    #[test]
    fn put_is_decoded_with_its_header_skipped() {
        // header {ID 7}, put {key "k", value "v", lease 5}
        let request = decode_normal(b"\xa2\x06\x02\x08\x07\x22\x08\x0a\x01k\x12\x01v\x18\x05");
        let put = PutRequest {
            key: Bytes::from_static(b"k"),
            value: Bytes::from_static(b"v"),
            lease: 5,
            ignore_value: false,
            ignore_lease: false,
        };
        assert_eq!(request, RaftRequest::Put(put));
    }

    #[test]
    fn request_with_an_unknown_effect_is_unsupported() {
        let unsupported = |what| RaftRequest::Unsupported(what);
        // Activation of an alarm, a lease checkpoint, auth_enable (1000), a field of a later etcd (2000).
        assert_eq!(decode_normal(b"\x52\x02\x08\x01"), unsupported("alarm"));
        assert_eq!(decode_normal(b"\x5a\x00"), unsupported("lease checkpoint"));
        assert_eq!(
            decode_normal(b"\xc2\x3e\x00"),
            unsupported("authentication change")
        );
        assert_eq!(
            decode_normal(b"\x82\x7d\x00"),
            unsupported("request of an unknown kind")
        );
    }

    #[test]
    fn entries_without_a_change_of_keys_have_no_effect() {
        // A read of alarms, the cluster version of etcd 3.6 (1300), an empty entry.
        for data in [b"\x52\x00".as_slice(), b"\xa2\x51\x00", b""] {
            assert_eq!(decode_normal(data), RaftRequest::NoEffect, "{data:?}");
        }
        let change = decode(EntryKind::ConfChange, b"\x08\x01").unwrap();
        assert_eq!(change, RaftRequest::NoEffect);
    }

    #[test]
    fn bytes_that_are_no_request_are_an_error() {
        let error = decode(EntryKind::Normal, b"\x22\x09\x0a\x01k").unwrap_err();
        assert_eq!(error.index, 5);
    }
}

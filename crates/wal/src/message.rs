//! The protobuf messages as stored on disk.
//!
//! etcd up to 3.6 writes every scalar even when it is zero, so the fields are `required`: always written, and zero
//! when missing (3.7 omits zeros). Unknown fields are skipped. Byte fields share the frame's buffer without a copy.

use bytes::Bytes;

/// `walpb.Record`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Record {
    #[prost(int64, required, tag = "1")]
    pub(crate) kind: i64,
    #[prost(uint32, required, tag = "2")]
    pub(crate) crc: u32,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(crate) data: Option<Bytes>,
}

/// `etcdserverpb.Metadata`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Metadata {
    #[prost(uint64, required, tag = "1")]
    pub(crate) node: u64,
    #[prost(uint64, required, tag = "2")]
    pub(crate) cluster: u64,
}

/// `raftpb.Entry`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Entry {
    #[prost(int32, required, tag = "1")]
    pub(crate) kind: i32,
    #[prost(uint64, required, tag = "2")]
    pub(crate) term: u64,
    #[prost(uint64, required, tag = "3")]
    pub(crate) index: u64,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(crate) data: Option<Bytes>,
}

/// `raftpb.HardState`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HardState {
    #[prost(uint64, required, tag = "1")]
    pub(crate) term: u64,
    #[prost(uint64, required, tag = "2")]
    pub(crate) vote: u64,
    #[prost(uint64, required, tag = "3")]
    pub(crate) commit: u64,
    /// Not a field of this message but of [`Entry`], which otherwise has the same shape. The checksum does not cover
    /// the record type, so only this field reveals an entry whose type was corrupted to "state".
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(crate) entry_data: Option<Bytes>,
}

/// `raftpb.ConfState`. The lists are written unpacked, one key per number.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ConfState {
    #[prost(uint64, repeated, packed = "false", tag = "1")]
    pub(crate) voters: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub(crate) learners: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub(crate) voters_outgoing: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "4")]
    pub(crate) learners_next: Vec<u64>,
    #[prost(bool, required, tag = "5")]
    pub(crate) auto_leave: bool,
}

/// `walpb.Snapshot`: the record of a raft snapshot in the log.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SnapshotMark {
    #[prost(uint64, required, tag = "1")]
    pub(crate) index: u64,
    #[prost(uint64, required, tag = "2")]
    pub(crate) term: u64,
    #[prost(message, optional, tag = "3")]
    pub(crate) conf_state: Option<ConfState>,
}

/// `raftpb.ConfChange`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ConfChange {
    #[prost(uint64, required, tag = "1")]
    pub(crate) id: u64,
    #[prost(int32, required, tag = "2")]
    pub(crate) kind: i32,
    #[prost(uint64, required, tag = "3")]
    pub(crate) node: u64,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(crate) context: Option<Bytes>,
}

/// `raftpb.SnapshotMetadata`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SnapshotMetadata {
    #[prost(message, required, tag = "1")]
    pub(crate) conf_state: ConfState,
    #[prost(uint64, required, tag = "2")]
    pub(crate) index: u64,
    #[prost(uint64, required, tag = "3")]
    pub(crate) term: u64,
}

/// `raftpb.Snapshot`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Snapshot {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub(crate) data: Option<Bytes>,
    #[prost(message, required, tag = "2")]
    pub(crate) metadata: SnapshotMetadata,
}

/// `snappb.snapshot`: the envelope of a `.snap` file.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SnapEnvelope {
    #[prost(uint32, required, tag = "1")]
    pub(crate) crc: u32,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(crate) data: Option<Bytes>,
}

/// `etcdserverpb.Request`, the v2 request; only the fields needed to recognise it.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct V2Request {
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(crate) method: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(crate) path: Option<Bytes>,
}

/// `etcdserverpb.InternalRaftRequest`; only the fields needed to classify a request. The parts stay undecoded: a
/// message and a byte string have the same encoding.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct InternalRaftRequest {
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(crate) v2: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(crate) put: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub(crate) delete_range: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub(crate) txn: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "7")]
    pub(crate) compaction: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "8")]
    pub(crate) lease_grant: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub(crate) lease_revoke: Option<Bytes>,
}

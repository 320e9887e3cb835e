//! Reads and verifies the WAL segments and raft snapshots of an etcd member, and writes them.
//!
//! ```text
//! names → segments → frames → records → (metadata | snapshot | hard state | entry) → LogSummary
//! order   contiguity  length    crc                                                        entries
//! ```
//!
//! **Input**: the `wal/` folder of a member ([`Log`]), a raft snapshot file ([`SnapFile`]), or the bytes of either.
//! **Output**: the member's identity, the snapshots in the log, the commit index, the entries in index order, and the
//! state of the tail ([`LogSummary`]). For writing, [`Encoder`], [`SnapFile::encode`] and [`v2store::build_bootstrap_store`]
//! produce the same bytes as `etcdutl snapshot restore`.
//!
//! **Invariants**: every length is checked against the rest of the file before allocating. Memory is one read buffer
//! plus the largest record. The checksum chain spans segments. Corruption is an error with file and offset, except
//! for the torn tail that a crash leaves, which is a [`LogTail`].
//!
//! **Out of scope**: writing while reading (truncating a torn tail is a separate call, [`repair()`]), applying
//! entries, and the database.
//!
//! **After a crash** of the writer, reading returns the longest prefix that is provably intact.
//!
//! Layout: `docs/internals/format/wal.md`.

#![deny(clippy::indexing_slicing, clippy::cast_possible_truncation)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, reason = "a test may fail by panicking")
)]

mod decoder;
mod encoder;
mod frame;
pub mod go_json;
mod log;
mod message;
mod raft;
mod record;
mod repair;
mod request;
pub mod rpc;
mod segment;
mod snapfile;
pub mod v2store;

pub use decoder::{
    DecodeError, Decoder, MAX_RECORD_BYTES, NextRecord, SegmentPosition, SegmentRole, TornReason,
};
pub use encoder::Encoder;
pub use log::{Entries, Log, LogError, LogSummary, LogTail, WalIdentity};
pub use raft::{ConfChange, ConfChangeKind, ConfState, Entry, EntryKind, HardState, SnapshotMark};
pub use record::{Record, RecordKind};
pub use repair::{RepairError, RepairReport, repair};
pub use request::{RaftRequestKind, count_possible_writes};
pub use segment::{ListError, Segment, SegmentName};
pub use snapfile::{
    MAX_SNAP_BYTES, ReadSnapError, SnapError, SnapFile, SnapName, parse_snap_db_index,
};

//! Turns a directory of etcd WAL segments into checked records, and raft state back into those bytes.
//!
//! ```text
//! names → segments → frames → records → (metadata | snapshot mark | hard state | entry) → LogSummary
//! order   contiguity  length    crc                                                        entries
//! ```
//!
//! **Comes in**: the `wal/` folder of a member ([`Log`]), a raft snapshot file ([`SnapFile`]), or the bytes
//! of either. **Goes out**: who the member is, which snapshots the log knows, how far it is committed, its
//! entries in index order, and how its tail looks ([`LogSummary`]). The other way round, [`Encoder`],
//! [`SnapFile::encode`] and [`v2store::bootstrap`] write byte for byte what `etcdutl snapshot restore` writes.
//!
//! **Holds**: every length is checked against what remains of the file before a byte is allocated for it;
//! memory is one read buffer plus the largest record; the checksum chain spans segments; damage is an error
//! with file and offset, except the one kind a crash leaves behind, a torn tail, which is a [`Tail`].
//! **Does not do**: write while reading (cutting a torn tail is [`repair()`], a verb of its own), apply
//! entries, or look at the database.
//!
//! **After a crash** of whoever wrote the log, reading gives the longest prefix that is provably intact.
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
mod segment;
mod snapfile;
pub mod v2store;

pub use decoder::{At, DecodeError, Decoded, Decoder, MAX_RECORD_BYTES, Place, TornReason};
pub use encoder::Encoder;
pub use log::{Entries, Identity, Log, LogError, LogSummary, Tail};
pub use raft::{ConfChange, ConfChangeKind, ConfState, Entry, EntryKind, HardState, SnapshotMark};
pub use record::{Record, RecordKind};
pub use repair::{RepairError, RepairReport, repair};
pub use request::{Request, possible_writes};
pub use segment::{ListError, Segment, SegmentName};
pub use snapfile::{MAX_SNAP_BYTES, ReadSnapError, SnapError, SnapFile, SnapName, snap_db_index};

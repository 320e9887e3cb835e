//! Interprets the buckets of an etcd database.
//!
//! ```text
//! bbolt items → revision key + key-value → history (checked) → current and compact revision
//!                                        → HashKV, `snapshot status` hash
//!                                        → survivors of a compaction → a smaller database
//! ```
//!
//! **Input**: a [`mainstay_bbolt::Database`]. **Output**: the status of the key space, errors in its rows, hashes
//! equal to those of a live etcd, and encoded rows.
//!
//! **Invariants**: every row is decoded and bounds-checked before use. The memory of a scan depends on the number of
//! *keys*, never on their values. **Out of scope**: raft (see `wal`), files (see `datadir`).
//!
//! Layout: `docs/internals/format/mvcc.md`.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::cast_possible_truncation)
)]

pub mod compact;
mod digest;
pub mod hash;
mod history;
mod key_value;
mod proto;
mod revision_key;
pub mod schema;
mod status;

pub use digest::{KeyDigest, KeyDigester};
pub use history::{HistoryChecker, HistorySummary, HistoryWarning, RowFault};
pub use key_value::{KeyValue, KeyValueError};
pub use proto::WireError;
pub use revision_key::{RevisionKey, RevisionKeyError};
pub use status::{DatabaseStatus, DatabaseStatusError, read_small_bucket};

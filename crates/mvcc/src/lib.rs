//! Gives meaning to the buckets of an etcd database.
//!
//! ```text
//! bbolt items → revision key + key-value → history (checked) → current and compact revision
//!                                        → HashKV, `snapshot status` hash
//!                                        → survivors of a compaction → a smaller database
//! ```
//!
//! **Comes in**: a [`mainstay_bbolt::Database`]. **Goes out**: facts about the key space, verdicts
//! about its rows, hashes equal to those a live etcd would answer, rows ready to be written.
//!
//! **Holds**: no row is believed before it is decoded and bounds-checked; a walk needs memory for
//! the number of *keys*, never for their values. **Does not do**: raft (see `wal`), files (see
//! `datadir`).
//!
//! Layout: `docs/internals/format/mvcc.md`.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::cast_possible_truncation)
)]

pub mod compact;
mod digest;
mod facts;
pub mod hash;
mod history;
mod key_value;
mod proto;
mod revision_key;
pub mod schema;

pub use digest::{Digest, Digester};
pub use facts::{Facts, FactsError, small_bucket};
pub use history::{History, HistorySummary, RowFault, Warning};
pub use key_value::{KeyValue, KeyValueError};
pub use proto::WireError;
pub use revision_key::{RevisionKey, RevisionKeyError};

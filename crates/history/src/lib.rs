//! Decides whether etcd data and a backup have the same history, by comparing rows and never by revision numbers alone.
//!
//! ```text
//! backup chain ─ newest events or rows ──┐
//! data directory ─ rows, replayed log ───┼─► compare at the newest common revision ─► equal | behind | ahead
//! live etcd ─ key at a revision ─────────┘                                            diverged | unknown
//! ```
//!
//! **Comes in**: objects of a backup as streams; a database with its log ([`DataDirHistory`]), or a live etcd behind the
//! trait [`LiveHistory`]. **Goes out**: a [`HistoryRelation`] for the data, or a [`HistoryMatch`] for one event.
//!
//! **Holds**: two histories count as the same only if a row with the same key, revisions, version and value is found in
//! both at the same revision. Anything else is diverged or unknown. One delta, or one full snapshot, is read.
//! **Does not do**: open a store, change data, decide what to do.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::cast_possible_truncation)
)]

mod chain;
mod data_dir;
mod event;
mod key_match;
mod object;
pub mod replay;

pub use chain::{ChainFinding, ChainReader, CompareHistoryError, HistoryRelation, relate_to_chain};
pub use data_dir::DataDirHistory;
pub use event::{BackupEvent, WrittenKey};
pub use key_match::{
    HistoryMatch, KeyHistory, KeyLookup, LiveHistory, match_history, read_key_history,
};
pub use object::{EvidenceError, FullReadError, ObjectStream, read_last_event, read_newest_row};

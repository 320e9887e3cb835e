//! Captures etcd's history without gaps and stores it as delta snapshots.
//!
//! ```text
//! follow: watch, resumed after the last whole revision ───► gapless: dense? ─► batch: text, hash, compression
//!                                                              │ gap                  │ period, size, on demand
//!                                                              ▼                      ▼
//!                                                     a full snapshot          ship: fence ─► create ─► stored
//! ```
//!
//! **Input**: the revision to continue after. **Output**: delta objects, each starting where the previous one ended, and
//! a `TailEvent` for everything the session must handle.
//!
//! **Invariants**: every revision is captured whole and exactly once; a transaction is never split. Memory is bounded by
//! two compressed batches, one being filled and one being uploaded. While the store is too slow, the watch is not read and
//! etcd keeps the history; if etcd compacts it meanwhile, a gap is logged, counted and reported. **Not done here**: full
//! snapshots, and the decision where to start (see `session`).

mod batch;
mod handle;
mod lease_ttls;
mod sequence;
mod stall_detector;
mod upload;
mod watcher;
mod worker;

pub use batch::{BatchError, DeltaBatch, SealedDelta};
pub(crate) use handle::{DeltaFlusher, DeltaTail, PendingFlush, TailConfig, TailEvent, TailParts};
pub use lease_ttls::LeaseTtls;
pub(crate) use upload::DeltaUploader;
pub(crate) use upload::newest_revision;
pub use watcher::{EtcdWatcher, WatchItem};

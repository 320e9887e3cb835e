//! Follows etcd's history without a gap and turns it into deltas.
//!
//! ```text
//! follow: watch, reopened behind the last whole revision ─► gapless: dense? ─► batch: text, hash, compression
//!                                                              │ hole                 │ period, size, on demand
//!                                                              ▼                      ▼
//!                                                     a full snapshot          ship: fence ─► create ─► stored
//! ```
//!
//! **Comes in**: the revision to go on after. **Goes out**: delta objects, each beginning where the one before
//! ended, and a [`TailEvent`] for everything the session must know.
//!
//! **Holds**: every revision is there, whole, exactly once; a transaction is never split; one batch being
//! filled and one being stored are all the memory used, each of the limit once compressed, however slow the store:
//! then the watch is not read, etcd keeps the history, and when etcd compacts it away that is a gap, which is said
//! aloud. **Does not do**: full
//! snapshots, or deciding where to begin (see `session`).

mod batch;
mod follow;
mod gapless;
mod handle;
mod leases;
mod ship;
mod silence;
mod task;

pub use batch::{DeltaBatch, BatchError, SealedDelta};
pub use follow::{EtcdWatcher, WatchItem};
pub use gapless::{CaptureGap, GapCause, RevisionSequence, RevisionCheck};
pub use handle::{DeltaFlusher, PendingFlush, TailEvent, TailParts, DeltaTail, TailConfig};
pub use leases::LeaseTtls;
pub(crate) use ship::newest_revision;
pub use ship::{DeltaUploadError, DeltaUploader};

//! Turns a chain of snapshots into a database file, in one pass, at the speed of the disk.
//!
//! ```text
//!            ┌ base object ─ inflate ─ hash ─────────────► pages 0 … high-water mark
//! chain ─────┤                                                        │ revision, spine
//!            └ deltas ─ inflate ─ hash ─ parse ─ rows ─► leaves behind it ─► graft ─► commit
//!               ahead of need      dense?   leases         spool
//! ```
//!
//! The rows of a delta need nothing from the base: an event carries the version and creation
//! revision of its key, so base and deltas are read at the same time and the leaves of the deltas
//! are hung into the tree of the base at the end.
//!
//! **Comes in**: a [`Chain`] and a way to open its objects. **Goes out**: a file that etcd can open
//! once it is given members ([`finish`]).
//!
//! **Holds**: every hash is compared; every revision between base and target is there, or nothing is
//! kept; an event whose revision is already present is skipped, so that overlapping deltas of two
//! leaders, and a base newer than its name, are harmless; memory does not depend on the size of the
//! backup.
//!
//! **After a crash**: the file is not one yet (its meta pages are the base's at best); the caller
//! works in a staging directory and starts over.

mod ahead;
mod base;
pub mod compare;
mod cut;
mod error;
mod file;
pub mod finish;
mod flush;
mod join;
mod leases;
mod meter;
mod rows;
mod spool;

use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use jiff::Timestamp;
use mainstay_archive::catalogue::SnapshotObject;
use mainstay_archive::chain::SnapshotChain;
use mainstay_ids::Revision;

pub use error::RebuildError;
pub use file::{DatabaseFile, Durability};
pub use flush::FileFlusher;
pub use leases::NewLease;
pub use meter::{Meter, MeteredRead, MeterReading};

/// Opens the objects of a chain as they are stored, compressed.
pub trait ObjectSource: Sync {
    /// Starts reading an object from its first byte.
    fn open(&self, object: &SnapshotObject) -> io::Result<Box<dyn Read + Send>>;
}

/// Where to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopPoint {
    /// At the end of the chain.
    End,
    /// After this revision.
    Revision(Revision),
    /// Before the first event later than this.
    Time(Timestamp),
}

/// What to do about a base without a hash behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashCheck {
    /// Refuse it.
    Required,
    /// Take it: it was copied out of a data directory.
    Skipped,
}

/// How to rebuild.
#[derive(Clone, Copy, Debug)]
pub struct RebuildOptions {
    /// Where to stop.
    pub stop: StopPoint,
    /// What to do about a base without a hash.
    pub hash_check: HashCheck,
    /// Seconds given to a lease whose life no object tells.
    pub default_lease_seconds: i64,
    /// Threads that may inflate.
    pub threads: NonZeroUsize,
}

/// What was rebuilt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildSummary {
    /// The revision reached.
    pub revision: Revision,
    /// The revision the base really held.
    pub base_revision: Revision,
    /// Compaction of the key space, if any: older revisions cannot be read.
    pub compact_revision: Option<Revision>,
    /// Revisions taken from deltas.
    pub revisions_applied: u64,
    /// Events taken from deltas.
    pub events_applied: u64,
    /// Events that were already there.
    pub events_skipped: u64,
    /// Leases that live keys hang on and that the base did not know.
    pub new_leases: Vec<NewLease>,
}

/// Shared between the threads of one rebuild.
pub(crate) struct RebuildContext<'a> {
    pub(crate) chain: &'a SnapshotChain,
    pub(crate) sources: &'a dyn ObjectSource,
    pub(crate) file: DatabaseFile<'a>,
    pub(crate) options: &'a RebuildOptions,
    pub(crate) meter: &'a Meter,
    pub(crate) flusher: &'a FileFlusher,
    cancelled: AtomicBool,
}

impl RebuildContext<'_> {
    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// Rebuilds the database of `chain` into `file`, which is empty; `scratch` is a directory for a
/// spool of one part in a hundred of the deltas' size.
///
/// The result is complete but has the base's members: see [`finish`].
pub fn rebuild(
    chain: &SnapshotChain,
    sources: &dyn ObjectSource,
    file: DatabaseFile<'_>,
    scratch: &Path,
    settings: (&RebuildOptions, &Meter),
) -> Result<RebuildSummary, RebuildError> {
    let (options, meter) = settings;
    let cancelled = AtomicBool::new(false);
    let flusher = FileFlusher::new(file)?;
    let job = RebuildContext {
        chain,
        sources,
        file,
        options,
        meter,
        flusher: &flusher,
        cancelled,
    };
    let (announce, announced) = mpsc::sync_channel(1);
    let (base, rows) = thread::scope(|scope| {
        let base = scope.spawn(|| {
            let received = base::receive_base(&job, &announce);
            drop(announce);
            if received.is_err() {
                job.cancel();
            }
            received
        });
        // A base that fails before its first page leaves nothing to write behind.
        let rows = announced
            .recv()
            .ok()
            .map(|meta| rows::write_deltas(&job, &meta, scratch));
        if matches!(rows, Some(Err(_))) {
            job.cancel();
        }
        (
            base.join()
                .unwrap_or(Err(RebuildError::Thread { name: "base" })),
            rows,
        )
    });
    match (base, rows) {
        // Whoever was merely cancelled has nothing to say.
        (Err(RebuildError::Cancelled) | Ok(()), Some(Err(error))) | (Err(error), _) => Err(error),
        (Ok(()), None) => Err(RebuildError::Thread { name: "base" }),
        (Ok(()), Some(Ok(rows))) => {
            let rebuilt = join::graft_deltas(&job, rows)?;
            flusher.finish()?;
            Ok(rebuilt)
        }
    }
}

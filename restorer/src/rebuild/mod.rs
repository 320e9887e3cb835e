//! Rebuilds a database file from a chain of snapshots in one pass.
//!
//! ```text
//!            ┌ base object ─ inflate ─ hash ─────────────► pages 0 … high-water mark
//! chain ─────┤                                                        │ revision, spine
//!            └ deltas ─ inflate ─ hash ─ parse ─ rows ─► leaves after it ─► graft ─► commit
//!               prefetched         dense?   leases        spool
//! ```
//!
//! The rows of a delta need nothing from the base, because an event contains the version and the creation revision of
//! its key. So base and deltas are read in parallel, and the leaves of the deltas are grafted into the tree of the base
//! at the end. etcd can open the file once its members are written (`finish`).
//!
//! Invariants:
//! * Every hash is compared.
//! * Every revision between base and target is present, or the rebuild fails.
//! * An event whose revision is already present is skipped: overlapping deltas of two leaders, and a base newer
//!   than its name, are harmless.
//! * Memory does not depend on the size of the backup.
//! * After a crash the file is unusable (it has at best the meta pages of the base). The caller works in a staging
//!   directory and starts over.

mod base;
pub(crate) mod compare;
mod error;
mod file;
pub(crate) mod finish;
mod flush;
mod graft;
mod leases;
mod meter;
mod prefetch;
mod rows;
mod spool;
mod truncate;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use mainstay_archive::chain::SnapshotChain;
use mainstay_ids::Revision;

pub use error::RebuildError;
pub use file::{DatabaseFile, Durability};
pub(crate) use flush::FileFlusher;
pub(crate) use leases::NewLease;
pub use mainstay_archive::full::HashCheck;
pub use mainstay_backup::{ObjectSource, ProofError, StopPoint};
pub use meter::{Meter, MeterReading, MeteredRead};

/// Options of a rebuild.
#[derive(Clone, Copy, Debug)]
pub struct RebuildOptions {
    pub stop: StopPoint,
    pub hash_check: HashCheck,
    /// TTL of a lease whose granted TTL is not in the backup.
    pub default_lease_seconds: i64,
    /// Maximum number of threads that decompress.
    pub threads: NonZeroUsize,
}

/// The result of a rebuild.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildSummary {
    /// Revision reached.
    pub revision: Revision,
    /// Revision of the database in the base, which may be newer than its name.
    pub base_revision: Revision,
    /// Oldest readable revision; `None` if the database was never compacted.
    pub(crate) compact_revision: Option<Revision>,
    pub(crate) revisions_applied: u64,
    pub(crate) events_applied: u64,
    /// Events whose revision was already present.
    pub(crate) events_skipped: u64,
    /// Leases of live keys that the base does not have.
    pub new_leases: Vec<NewLease>,
}

/// State shared by the threads of one rebuild.
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

/// Rebuilds the database of `chain` into `file`, which must be empty. `scratch` is a directory for a spool of about 1 % of
/// the size of the deltas.
///
/// The result is complete but still has the members of the base: see `finish`.
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
            drop(announce); // ends recv() below if the base failed before its first page
            if received.is_err() {
                job.cancel();
            }
            received
        });
        // If the base fails before its first page, there is no position to write the deltas to.
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
        // A cancelled thread only followed the failure of the other one.
        (Err(RebuildError::Cancelled) | Ok(()), Some(Err(error))) | (Err(error), _) => Err(error),
        (Ok(()), None) => Err(RebuildError::Thread { name: "base" }),
        (Ok(()), Some(Ok(rows))) => {
            let rebuilt = graft::graft_deltas(&job, rows)?;
            flusher.finish()?;
            Ok(rebuilt)
        }
    }
}

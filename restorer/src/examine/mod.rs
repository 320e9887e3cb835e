//! Reads whole objects of a backup and proves them, with no disk for what is inside.
//!
//! ```text
//! stored bytes ─ inflate ─┬ full  ─ hash ─ outline ─► where its database stands
//!                         └ delta ─ hash ─ events ──► the revisions it really holds
//! facts of all objects of a chain ─► judge ─► the revision reached, or what is missing
//! ```
//!
//! **Comes in**: an object and its stored bytes. **Goes out**: what it proved to hold, or the same
//! [`RebuildError`](crate::rebuild::RebuildError) a restore of it would end with.
//!
//! **Holds**: an object is read to its last byte; compression, length and hash are right, or it is an
//! error that names object and place. Memory is a constant for a delta, and six thousandths of the
//! database for a full snapshot ([`Outline`]).

mod delta;
mod full;
mod judge;
mod outline;

pub use delta::{DeltaSpan, check_delta};
pub use full::{CheckedFull, check_full, check_full_with_facts};
pub use judge::{ReachedState, check_chain};
pub use outline::{Outline, OutlineError};

use std::num::NonZeroUsize;

use crate::rebuild::{HashCheck, StopPoint};

/// How objects are read.
#[derive(Clone, Copy, Debug)]
pub struct ObjectReadOptions {
    /// What to do about a full snapshot without a hash.
    pub hash_check: HashCheck,
    /// Where the chain is to stop; a moment makes deltas look at the times of their events.
    pub stop: StopPoint,
    /// Threads that may inflate one full snapshot.
    pub threads: NonZeroUsize,
}

//! Reads and verifies whole objects of a backup without storing their content on disk.
//!
//! ```text
//! stored bytes ─ inflate ─┬ full  ─ hash ─ outline ─► revision of its database
//!                         └ delta ─ hash ─ events ──► revisions it contains
//! facts of all objects of a chain ─► judge ─► the revision reached, or what is missing
//! ```
//!
//! The result is the verified content, or the same [`RebuildError`](crate::rebuild::RebuildError) that a restore of the
//! object ends with.
//!
//! Invariants: an object is read to its last byte. An error in compression, length or hash names object and
//! offset. Memory is constant for a delta, and 0.6 % of the database for a full snapshot ([`outline::Outline`]).

mod chain_check;
mod delta;
mod full;
mod outline;

pub(crate) use chain_check::{ReachedState, check_chain};
pub(crate) use delta::{DeltaSpan, check_delta};
pub(crate) use full::{check_full, check_full_with_facts};

use std::num::NonZeroUsize;

use crate::rebuild::{HashCheck, StopPoint};

/// Options of reading objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectReadOptions {
    /// Whether a full snapshot without a hash is accepted.
    pub(crate) hash_check: HashCheck,
    /// Where the chain stops; only with a time are the times of events parsed.
    pub(crate) stop: StopPoint,
    /// Threads that decompress one full snapshot.
    pub(crate) threads: NonZeroUsize,
}

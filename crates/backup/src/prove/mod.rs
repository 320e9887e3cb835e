//! Reads whole objects of a backup without storing their content, and follows their revisions through a chain.
//!
//! ```text
//! stored bytes ─ inflate ─┬ full  ─ hash ─ outline ─► revision of its database
//!                         └ delta ─ hash ─ events ──► revisions it contains
//! proofs of all objects of a chain ─► check_chain ─► the revision reached, or what is missing
//! ```
//!
//! The result is the verified content, or the same [`ProofError`] that a restore of the object ends with.

mod chain;
mod delta;
mod error;
mod full;
mod outline;

use std::io::Read;
use std::num::NonZeroUsize;

use jiff::Timestamp;
use mainstay_archive::catalogue::SnapshotObject;
use mainstay_archive::full::{FullLayout, HashCheck};
use mainstay_archive::name::SnapshotKind;
use mainstay_ids::Revision;
use mainstay_mvcc::DatabaseStatus;
use mainstay_store::SnapStore;

pub use chain::{ReachedState, check_chain};
pub use delta::{DeltaSpan, prove_delta};
pub use error::ProofError;
pub use full::{FullDepth, prove_full};

use crate::{ObjectSource, ReadObjectError, read_object};

/// Download buffer of [`prove_in_store`] in bytes: reading ahead further would only take memory from etcd.
const BUDGET_BYTES: u64 = 4 << 20;

/// Where a restore stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopPoint {
    /// At the end of the chain.
    End,
    /// After this revision.
    Revision(Revision),
    /// Before the first event later than this time.
    Time(Timestamp),
}

/// Options of reading objects.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Whether a full snapshot without a hash is accepted.
    pub hash_check: HashCheck,
    /// Where the chain stops; only with a time are the times of events parsed.
    pub stop: StopPoint,
    /// Threads that decompress one full snapshot.
    pub threads: NonZeroUsize,
}

impl ReadOptions {
    /// The strictest check of a whole object, on one thread.
    pub const STRICT: Self = Self {
        hash_check: HashCheck::Required,
        stop: StopPoint::End,
        threads: NonZeroUsize::MIN,
    };
}

/// Verified content of an object.
#[derive(Debug)]
pub enum ObjectProof {
    /// A full snapshot.
    Full {
        /// What its database contains.
        facts: Box<DatabaseStatus>,
        /// Size of the database, and whether a hash was compared.
        layout: FullLayout,
    },
    /// A delta.
    Delta(DeltaSpan),
}

/// Proves everything a restore needs from an object, except its neighbours in the chain.
///
/// # Errors
/// The object cannot be read, or is damaged.
pub fn prove_object(
    object: &SnapshotObject,
    source: &dyn ObjectSource,
    options: &ReadOptions,
) -> Result<ObjectProof, ProofError> {
    match object.name.kind {
        SnapshotKind::Full => {
            let (layout, facts) = full::prove_full_with_facts(object, source, options)?;
            let facts = Box::new(facts);
            Ok(ObjectProof::Full { facts, layout })
        }
        SnapshotKind::Delta => {
            let stored = source.open(object).map_err(|source| ProofError::Open {
                object: object.name.to_string(),
                source,
            })?;
            prove_delta(object, stored, options).map(ObjectProof::Delta)
        }
    }
}

/// Proves in constant memory that an object is intact and contains what its name promises, from its stored bytes.
///
/// # Errors
/// The object cannot be read, or is damaged.
pub fn prove_intact(
    object: &SnapshotObject,
    stored: Box<dyn Read + Send>,
) -> Result<(), ProofError> {
    let options = &ReadOptions::STRICT;
    match object.name.kind {
        SnapshotKind::Full => prove_full(object, stored, options, FullDepth::Hash).map(drop),
        SnapshotKind::Delta => prove_delta(object, stored, options)?.check_name(&object.name),
    }
}

/// Runs [`prove_intact`] on an object of the store. Dropping the future stops the download.
///
/// # Errors
/// The download failed: the object is not known to be damaged.
pub async fn prove_in_store(
    store: &SnapStore,
    object: &SnapshotObject,
) -> Result<Result<(), ProofError>, ReadObjectError> {
    match read_object(store, object, BUDGET_BYTES, prove_intact).await? {
        Err(source) if source.is_store_failure() => Err(ReadObjectError::Read {
            key: object.key.clone(),
            source,
        }),
        proof => Ok(proof),
    }
}

#[cfg(test)]
mod tests;

//! Selects the objects that restore a target state: one base, then the deltas that follow it.
//!
//! ```text
//! catalogue + target ─► bases, newest first ─► cover by deltas ─► Chain
//!                                                   └ gap ─► error that names it
//! ```
//!
//! All functions here are pure and use object names only. By its name, a delta holds its whole range, and a base
//! holds at least its revision (it may be newer, see [`SnapshotChain::gap_after_base`]). Only reading the objects proves it.

mod choose;
mod cover;
mod listing;

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use mainstay_ids::Revision;

pub use choose::{choose, choose_deltas};
pub use listing::{ChainInfo, RevisionGap, list_chains, restorable_revisions};

use crate::catalogue::SnapshotObject;
use crate::name::SnapshotName;

/// State to restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainTarget {
    /// The newest state in the backup.
    Latest,
    /// The state right after this revision was committed.
    Revision(Revision),
    /// The state at this time: the caller applies events until the first one that is later.
    Time(Timestamp),
}

/// Input of a selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRequest {
    /// State to restore.
    pub target: ChainTarget,
    /// Use only this full snapshot as base; `None` allows every one.
    pub base: Option<SnapshotName>,
    /// Keys of objects to skip: damaged, or newer than the target once read.
    pub excluded: BTreeSet<String>,
}

impl ChainRequest {
    /// Requests a target with any base and no object skipped.
    pub fn new(target: ChainTarget) -> Self {
        Self {
            target,
            base: None,
            excluded: BTreeSet::new(),
        }
    }
}

/// A delta of a chain, with its replacements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The delta to apply.
    pub object: SnapshotObject,
    /// Other deltas that cover the same needed range, best first.
    pub alternates: Vec<SnapshotObject>,
}

/// The objects that restore a target, in the order to apply them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotChain {
    /// The full snapshot to restore first.
    pub base: SnapshotObject,
    /// The fewest deltas that cover the range, oldest first. Neighbours may overlap: the caller skips events whose
    /// revision is already applied.
    pub deltas: Vec<Link>,
    /// Last revision according to the names; for [`ChainTarget::Revision`] at least the requested one.
    pub last_revision: Revision,
    /// Revisions (first, last) directly after the base that no delta holds. The base may hold them, since its
    /// content can be newer than its name: read it, then call [`choose_deltas`].
    pub gap_after_base: Option<(Revision, Revision)>,
}

/// Ranges of revisions or times, both ends included, sorted and disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges<T>(pub Vec<(T, T)>);

impl<T: fmt::Display> fmt::Display for Ranges<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (position, (from, to)) in self.0.iter().enumerate() {
            let comma = if position == 0 { "" } else { ", " };
            write!(f, "{comma}{from} to {to}")?;
        }
        Ok(())
    }
}

/// Why no chain reaches the target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChooseError {
    /// The prefix holds no snapshot.
    #[error("no snapshot found")]
    NoSnapshots,
    /// There are deltas, but no usable full snapshot to apply them to.
    #[error("no full snapshot to start from; found {deltas} deltas up to revision {newest}")]
    NoBase {
        /// Number of deltas.
        deltas: usize,
        /// Last revision of the deltas.
        newest: Revision,
    },
    /// The requested base is not in the catalogue, is skipped, or is not a full snapshot.
    #[error("full snapshot {name} not found or not usable")]
    BaseNotFound {
        /// The requested name.
        name: String,
    },
    /// The base is newer than the target.
    #[error("base {base} holds revision {holds}, newer than the target revision {wanted}")]
    BasePastTarget {
        /// Name of the base.
        base: String,
        /// Revision the base holds at least.
        holds: Revision,
        /// The requested target.
        wanted: Revision,
    },
    /// Revisions are missing between the base and the target.
    #[error(
        "revisions {from} to {to} are missing between {after} and {before}; \
         newest restorable revision before the gap: {newest_restorable}"
    )]
    MissingRevisions {
        /// First missing revision.
        from: Revision,
        /// Last missing revision.
        to: Revision,
        /// Name of the object before the gap.
        after: String,
        /// Name of the object after the gap.
        before: String,
        /// Newest revision before the gap.
        newest_restorable: Revision,
    },
    /// No chain holds the requested revision.
    #[error("revision {wanted} is not restorable; restorable revisions: {restorable}")]
    RevisionUnreachable {
        /// The requested target.
        wanted: Revision,
        /// What can be restored instead.
        restorable: Ranges<Revision>,
    },
    /// No chain covers the requested time.
    #[error("the state at {wanted} is not restorable; restorable times: {restorable}")]
    TimeUnreachable {
        /// The requested target.
        wanted: Timestamp,
        /// What can be restored instead.
        restorable: Ranges<Timestamp>,
    },
}

#[cfg(test)]
mod tests;

//! Which objects lead to a wanted state: one base, then the deltas that carry it forward.
//!
//! ```text
//! catalogue + target ─► bases, newest first ─► cover by deltas ─► Chain
//!                                                   └ hole ─► refusal that names it
//! ```
//!
//! Everything here is a pure function of names. Names promise: a delta holds its whole range, a base holds
//! at least its revision (it may be newer, see [`Chain::gap_after_base`]). Reading the objects proves it.

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

/// The state asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainTarget {
    /// The newest state there is.
    Latest,
    /// The state right after this revision was written.
    Revision(Revision),
    /// The state at this moment: the caller applies events until the first one later than it.
    Time(Timestamp),
}

/// What to choose for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRequest {
    /// The state asked for.
    pub target: ChainTarget,
    /// Start from this full snapshot and no other.
    pub base: Option<SnapshotName>,
    /// Keys of objects that must not be used: found damaged, or too new once read.
    pub excluded: BTreeSet<String>,
}

impl ChainRequest {
    /// Asks for a state, from whichever base is best.
    pub fn new(target: ChainTarget) -> Self {
        Self {
            target,
            base: None,
            excluded: BTreeSet::new(),
        }
    }
}

/// A delta of a chain, and what could stand in for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The delta to apply.
    pub object: SnapshotObject,
    /// Other deltas that cover what this one is needed for, best first.
    pub alternates: Vec<SnapshotObject>,
}

/// The objects that lead to a target, in the order to apply them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotChain {
    /// The full snapshot to begin with.
    pub base: SnapshotObject,
    /// As few deltas as cover the way, oldest first. Neighbours may overlap: an event whose revision
    /// is already present is skipped.
    pub deltas: Vec<Link>,
    /// The last revision the names promise; for [`Target::Revision`] at least the one asked for.
    pub last_revision: Revision,
    /// Revisions (first, last) that no delta holds directly after the base. The base may hold them,
    /// since its content can be newer than its name: read it, then ask [`choose_deltas`].
    pub gap_after_base: Option<(Revision, Revision)>,
}

/// Ranges of revisions or of moments, ends included, in order and apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges<T>(pub Vec<(T, T)>);

impl<T: fmt::Display> fmt::Display for Ranges<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        for (position, (from, to)) in self.0.iter().enumerate() {
            let comma = if position == 0 { "" } else { ", " };
            write!(f, "{comma}{from} to {to}")?;
        }
        Ok(())
    }
}

/// Why no chain can be given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChooseError {
    /// The prefix holds no snapshot.
    #[error("there is no snapshot to choose from")]
    NoSnapshots,
    /// There are deltas, but no full snapshot they could be applied to.
    #[error(
        "{deltas} deltas up to revision {newest} are there, but no full snapshot to begin with"
    )]
    NoBase {
        /// Number of deltas found.
        deltas: usize,
        /// The last revision they hold.
        newest: Revision,
    },
    /// The base asked for is not in the catalogue, is excluded, or is no full snapshot.
    #[error("{name} is not among the usable full snapshots")]
    BaseNotFound {
        /// The name asked for.
        name: String,
    },
    /// The base asked for is already past the target.
    #[error("{base} holds revision {holds}, already past {wanted}")]
    BasePastTarget {
        /// The base.
        base: String,
        /// What it holds, at least.
        holds: Revision,
        /// What was asked for.
        wanted: Revision,
    },
    /// Revisions are missing on the way.
    #[error(
        "revisions {from} to {to} are missing between {after} and {before}; \
         the newest revision that can be restored before them is {newest_restorable}"
    )]
    MissingRevisions {
        /// First missing revision.
        from: Revision,
        /// Last missing revision.
        to: Revision,
        /// The object before the hole.
        after: String,
        /// The object behind the hole.
        before: String,
        /// The newest revision before the hole.
        newest_restorable: Revision,
    },
    /// The revision asked for is held by no chain.
    #[error("revision {wanted} is in no chain; restorable: {restorable}")]
    RevisionUnreachable {
        /// What was asked for.
        wanted: Revision,
        /// What can be had.
        restorable: Ranges<Revision>,
    },
    /// The moment asked for is covered by no chain.
    #[error("the state at {wanted} is in no chain; restorable: {restorable}")]
    TimeUnreachable {
        /// What was asked for.
        wanted: Timestamp,
        /// What can be had.
        restorable: Ranges<Timestamp>,
    },
}

#[cfg(test)]
mod tests;

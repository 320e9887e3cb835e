//! Finds the oldest full snapshot that retention never deletes.

use mainstay_ids::Revision;

use super::{ChainProof, DeletionGuard};
use crate::catalogue::{Catalogue, SnapshotObject};

/// The oldest protected full snapshot: it and every object that sorts after it are kept.
///
/// Every delta of a chain sorts after its base, so the floor protects whole chains, redundant deltas included.
pub(super) struct RetentionFloor((Revision, i64));

impl RetentionFloor {
    /// Returns the floor of the newest restorable chain; `None` when no chain is known to be restorable.
    ///
    /// By names, the newest restorable chain always starts with the newest full snapshot: deltas of an older chain
    /// that reach past it also continue from it. If reading proves only an older chain, that chain is the floor.
    pub(super) fn find(catalogue: &Catalogue, guard: &DeletionGuard) -> Option<Self> {
        let newest = catalogue.fulls.last()?.name.sort_key();
        match &guard.proof {
            ChainProof::Unproven => None,
            ChainProof::NamesOnly => Some(Self(newest)),
            ChainProof::VerifiedBase { key } => {
                let base = catalogue.fulls.iter().find(|full| full.key == *key)?;
                Some(Self(base.name.sort_key().min(newest)))
            }
        }
    }

    pub(super) fn covers(&self, base: &SnapshotObject) -> bool {
        base.name.sort_key() >= self.0
    }
}

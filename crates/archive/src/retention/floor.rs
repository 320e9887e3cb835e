//! Where the part begins that is never touched.

use mainstay_ids::Revision;

use super::{DeletionGuard, ChainProof};
use crate::catalogue::{Catalogue, SnapshotObject};

/// The oldest full snapshot that must stay: itself and everything that sorts behind it does.
///
/// Every delta of a chain ends behind its base, so the floor covers chains whole, the spare deltas included.
pub(super) struct RetentionFloor((Revision, i64));

impl RetentionFloor {
    /// The floor under the newest chain; `None` when there is none to stand on.
    ///
    /// By names, the newest chain that restores always begins with the newest full snapshot: where an older one leads
    /// past it, its deltas lead on from the newer one as well. Reading may prove only an older chain; then that
    /// is the floor.
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

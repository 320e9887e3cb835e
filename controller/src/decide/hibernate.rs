//! All pods go, or come back. The volumes stay.
//!
//! Going is preceded by a full snapshot, where there is a store and a cluster to take one of; without the snapshot
//! nobody goes. Coming back is with as many members as went: the others follow, or go, by the rules of scaling.

use super::{Change, Step, World, shape, snapshot};

pub(super) fn consider(world: &World<'_>) -> Option<Step> {
    let (from, wanted) = (world.size(), world.wanted.replicas);
    match (from, wanted) {
        (0, 0) => None,
        (0, _) => Some(Step::Resize {
            from,
            to: shape::size_to_wake(world),
        }),
        (_, 0) => {
            snapshot::before(world, Change::Hibernation).or(Some(Step::Resize { from, to: 0 }))
        }
        _ => None,
    }
}

//! All pods go, or come back. The volumes stay.
//!
//! Going is preceded by a full snapshot, where there is a store and a cluster to take one of; without the snapshot
//! nobody goes. Coming back is with as many members as went: the others follow, or go, by the rules of scaling.

use super::{DisruptiveChange, ReconcileStep, World, shape, snapshot};

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let (from, wanted) = (world.size(), world.desired.replicas);
    match (from, wanted) {
        (0, 0) => None,
        (0, _) => Some(ReconcileStep::Scale {
            from,
            to: shape::compute_wakeup_size(world),
        }),
        (_, 0) => {
            snapshot::require_snapshot(world, DisruptiveChange::Hibernation).or(Some(ReconcileStep::Scale { from, to: 0 }))
        }
        _ => None,
    }
}

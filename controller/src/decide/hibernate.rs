//! Hibernates a cluster (stops all pods, keeps the volumes) and wakes it up.
//!
//! Hibernation requires a full snapshot if a store is configured and the cluster was created; a failed snapshot blocks it. The
//! cluster wakes up with as many members as it had; scaling to a different size follows afterwards.

use super::{effective_spec, snapshot};
use crate::model::{DisruptiveChange, ReconcileStep, World};

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let (from, desired) = (world.size(), world.desired.replicas);
    match (from, desired) {
        (0, 0) => None,
        (0, _) => Some(ReconcileStep::Scale {
            from,
            to: effective_spec::compute_wakeup_size(world),
        }),
        (_, 0) => {
            // A stopped cluster cannot take a snapshot.
            snapshot::require_snapshot(world, DisruptiveChange::Hibernation)
                .or(Some(ReconcileStep::Scale { from, to: 0 }))
        }
        _ => None,
    }
}

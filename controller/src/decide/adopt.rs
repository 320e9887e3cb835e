//! Adopts a StatefulSet made by etcd-druid.
//!
//! Its RollingUpdate strategy replaces pods without checking quorum, so it is disabled before anything else changes. Image and
//! command belong together, because etcd-druid wraps etcd: until the snapshot is taken and the upgrade is allowed, all objects
//! stay unchanged; then they change at once.

use super::upgrade;
use crate::model::{ReconcileStep, UpdateStrategy, World};

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let set = world.stateful_set()?;
    // Two controllers that replace pods at the same time can break quorum.
    if set.update_strategy == UpdateStrategy::RollingUpdate {
        return Some(ReconcileStep::DisableRollingUpdate);
    }
    if set.is_ours {
        return None;
    }
    upgrade::gate_adoption(world)
}

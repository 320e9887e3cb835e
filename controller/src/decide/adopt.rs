//! A StatefulSet of etcd-druid replaces pods by itself, blind to quorum. Before anything else about it
//! changes, it is told to stop that.
//!
//! Its image and its command belong together: etcd-druid wraps etcd. So as long as our etcd may not come yet, for want of a
//! snapshot or by the rules of upgrades, all of it stays as it is; then all of it changes at once.

use super::{ReconcileStep, World, upgrade};
use crate::observe::UpdateStrategy;

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let set = world.stateful_set()?;
    if set.update_strategy == UpdateStrategy::RollingUpdate {
        return Some(ReconcileStep::DisableRollingUpdate);
    }
    if set.is_ours {
        return None;
    }
    upgrade::gate_adoption(world)
}

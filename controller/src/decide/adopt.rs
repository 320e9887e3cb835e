//! A StatefulSet of etcd-druid replaces pods by itself, blind to quorum. Before anything else about it
//! changes, it is told to stop that.
//!
//! Its image and its command belong together: etcd-druid wraps etcd. So as long as our etcd may not come yet, for want of a
//! snapshot or by the rules of upgrades, all of it stays as it is; then all of it changes at once.

use super::{Step, World, upgrade};
use crate::observe::Strategy;

pub(super) fn consider(world: &World<'_>) -> Option<Step> {
    let set = world.set()?;
    if set.strategy == Strategy::Rolling {
        return Some(Step::StopRolling);
    }
    if set.is_ours {
        return None;
    }
    upgrade::gate(world)
}

//! A StatefulSet of etcd-druid replaces pods by itself, blind to quorum. Before anything else about it
//! changes, it is told to stop that.

use super::{Step, World};
use crate::observe::Strategy;

pub(super) fn consider(world: &World<'_>) -> Option<Step> {
    let set = world.set()?;
    (set.strategy == Strategy::Rolling).then_some(Step::StopRolling)
}

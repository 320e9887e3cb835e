//! Data that is lost for good: what is done about it when no member can give it back.
//!
//! It is asked before every other concern, because nothing else may move while data is at stake. Here it only says
//! that recovery is needed, and everything else waits for it.

use super::{Blocker, Step, World};
use crate::observe::{Finding, Membership};

/// How lost data is brought back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovery {}

/// Waits when every member that should be there says that its data is gone.
pub(super) fn consider(world: &World<'_>) -> Option<Step> {
    if world.size() == 0 || matches!(world.seen.membership, Membership::Known(_)) {
        return None;
    }
    let is_lost = |finding: Option<Finding>| {
        matches!(finding, Some(Finding::NeedsRestore | Finding::Corrupt))
    };
    let lost = world
        .ordinals()
        .filter(|ordinal| world.pod(*ordinal).is_some_and(|pod| is_lost(pod.finding)));
    let majority = super::quorum(world.size() as usize);
    let survivors = world.size() as usize - lost.count();
    (survivors < majority).then_some(Step::Wait {
        on: Blocker::RecoveryNeeded,
    })
}

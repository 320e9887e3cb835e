//! A full snapshot before a change that cannot be taken back. Where none can be had, a person may say that it goes without;
//! for one generation of the spec, so that it is not forgotten and does not stay.

use jiff::SignedDuration;

use super::{Blocker, Change, Step, World};
use crate::observe::SnapshotRequest;

/// What stands before the change; `None` when a fresh snapshot is there, or none can be: without a store, and
/// without a cluster that ever was.
pub(super) fn before(world: &World<'_>, change: Change) -> Option<Step> {
    let is_waived = world.wanted.requests.without_snapshot == Some(world.wanted.generation);
    if world.wanted.backup.is_none() || !world.is_formed() || is_fresh(world) || is_waived {
        return None;
    }
    Some(match &world.seen.snapshot {
        SnapshotRequest::Running => wait(Blocker::SnapshotRuns { before: change }),
        SnapshotRequest::Failed { why, retry_at } if *retry_at > world.now => {
            wait(Blocker::SnapshotFailed {
                before: change,
                why: why.clone(),
                retry_at: *retry_at,
            })
        }
        _ if !world.has_quorum() => wait(Blocker::NoQuorum),
        SnapshotRequest::None | SnapshotRequest::Taken { .. } | SnapshotRequest::Failed { .. } => {
            Step::Snapshot { before: change }
        }
    })
}

/// The same before a change that can be taken back: it is asked for and waited for, and when there is none, the change comes
/// nevertheless. It may be what mends the backup.
pub(super) fn before_if_possible(world: &World<'_>, change: Change) -> Option<Step> {
    before(world, change)
        .filter(|step| !matches!(step.blocker(), Some(Blocker::SnapshotFailed { .. })))
}

fn is_fresh(world: &World<'_>) -> bool {
    let taken = world
        .seen
        .full_snapshot
        .as_ref()
        .and_then(|lease| lease.renewed);
    let answered = match &world.seen.snapshot {
        SnapshotRequest::Taken { at } => Some(*at),
        _ => None,
    };
    let limit = SignedDuration::try_from(world.policy.fresh_snapshot).unwrap_or_default();
    taken
        .max(answered)
        .is_some_and(|taken| world.now.duration_since(taken) <= limit)
}

fn wait(on: Blocker) -> Step {
    Step::Wait { on }
}

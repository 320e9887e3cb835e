//! A full snapshot before a change that cannot be taken back. Where none can be had, a person may say that it goes without;
//! for one generation of the spec, so that it is not forgotten and does not stay.

use jiff::SignedDuration;

use super::{Blocker, DisruptiveChange, ReconcileStep, World};
use crate::observe::SnapshotRequest;

/// What stands before the change; `None` when a fresh snapshot is there, or none can be: without a store, and
/// without a cluster that ever was.
pub(super) fn require_snapshot(world: &World<'_>, change: DisruptiveChange) -> Option<ReconcileStep> {
    let is_waived = world.desired.requests.skip_snapshot_generation == Some(world.desired.generation);
    if world.desired.backup.is_none() || !world.is_bootstrapped() || is_snapshot_fresh(world) || is_waived {
        return None;
    }
    Some(match &world.observed.snapshot_request {
        SnapshotRequest::Running => wait(Blocker::SnapshotRunning { before: change }),
        SnapshotRequest::Failed { reason: why, retry_at } if *retry_at > world.now => {
            wait(Blocker::SnapshotFailed {
                before: change,
                reason: why.clone(),
                retry_at: *retry_at,
            })
        }
        _ if !world.has_quorum() => wait(Blocker::NoQuorum),
        SnapshotRequest::None | SnapshotRequest::Taken { .. } | SnapshotRequest::Failed { .. } => {
            ReconcileStep::Snapshot { before: change }
        }
    })
}

/// The same before a change that can be taken back: it is asked for and waited for, and when there is none, the change comes
/// nevertheless. It may be what mends the backup.
pub(super) fn try_snapshot(world: &World<'_>, change: DisruptiveChange) -> Option<ReconcileStep> {
    require_snapshot(world, change)
        .filter(|step| !matches!(step.blocker(), Some(Blocker::SnapshotFailed { .. })))
}

fn is_snapshot_fresh(world: &World<'_>) -> bool {
    let taken = world
        .observed
        .full_snapshot
        .as_ref()
        .and_then(|lease| lease.renewed_at);
    let answered = match &world.observed.snapshot_request {
        SnapshotRequest::Taken { at } => Some(*at),
        _ => None,
    };
    let limit = SignedDuration::try_from(world.policy.max_snapshot_age).unwrap_or_default();
    taken
        .max(answered)
        .is_some_and(|taken| world.now.duration_since(taken) <= limit)
}

fn wait(on: Blocker) -> ReconcileStep {
    ReconcileStep::Wait { blocker: on }
}

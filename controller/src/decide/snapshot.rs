//! Requires a full snapshot before a disruptive change.
//!
//! A user can skip the snapshot with an annotation that names one generation of the spec, so that a forgotten annotation has no
//! effect on later changes.

use crate::model::{Blocker, DisruptiveChange, ReconcileStep, SnapshotRequest, World};
use jiff::SignedDuration;

/// The step or wait before an irreversible change; `None` when a fresh snapshot exists, when the user skips it, or when none
/// can exist: no store is configured, or the cluster was never created.
pub(super) fn require_snapshot(
    world: &World<'_>,
    change: DisruptiveChange,
) -> Option<ReconcileStep> {
    let is_skipped =
        world.desired.requests.skip_snapshot_generation == Some(world.desired.generation);
    if world.desired.backup.is_none()
        || !world.is_bootstrapped()
        || is_snapshot_fresh(world)
        || is_skipped
    {
        return None;
    }
    Some(match &world.observed.snapshot_request {
        SnapshotRequest::Running => wait(Blocker::SnapshotRunning { before: change }),
        SnapshotRequest::Failed {
            reason: cause,
            retry_at,
        } if *retry_at > world.now => wait(Blocker::SnapshotFailed {
            before: change,
            reason: cause.clone(),
            retry_at: *retry_at,
        }),
        // Only the leader's sidecar takes snapshots.
        _ if !world.has_quorum() => wait(Blocker::NoQuorum),
        SnapshotRequest::None | SnapshotRequest::Taken { .. } | SnapshotRequest::Failed { .. } => {
            ReconcileStep::Snapshot { before: change }
        }
    })
}

/// Like `require_snapshot`, for a reversible change: a failed snapshot does not block, because the change may be what repairs
/// the backup.
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
    // The Lease is updated after the sidecar answers, so both count.
    let answered = match &world.observed.snapshot_request {
        SnapshotRequest::Taken { at } => Some(*at),
        _ => None,
    };
    let limit = SignedDuration::try_from(world.policy.max_snapshot_age).unwrap_or_default();
    taken
        .max(answered)
        .is_some_and(|taken| world.now.duration_since(taken) <= limit)
}

fn wait(blocker: Blocker) -> ReconcileStep {
    ReconcileStep::Wait { blocker }
}

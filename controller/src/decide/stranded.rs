//! A pod that waits for a volume that is gone for good, while no quorum says who the members are: another pod gets another
//! claim.
//!
//! A StatefulSet makes claims when it makes pods, so that nobody else would make one. With a quorum the member goes first: see
//! the replacement; and where a recovery has a volume to write to, it is not kept waiting, nor is its name changed by another
//! claim. **Holds**: such a pod has never begun, so nobody misses it, and what it waits for holds nothing: the claim is
//! gone, or it was given up because its volume is.

use super::{PodDeletionReason, ReconcileStep, World, recovery};
use crate::observe::Ordinal;

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let is_known = world.members().is_some();
    if is_known || recovery::is_open_or_startable(world) {
        return None;
    }
    world.ordinals().find_map(|ordinal| restart_stranded_pod(world, ordinal))
}

fn restart_stranded_pod(world: &World<'_>, ordinal: Ordinal) -> Option<ReconcileStep> {
    let pod = world.pod(ordinal)?;
    let claim = world.observed.pvcs.get(&ordinal);
    let is_gone = claim.is_none_or(|claim| claim.is_lost && claim.is_deleting);
    let age = world.now.duration_since(pod.created_at?).unsigned_abs();
    let has_waited = age >= world.policy.volume_timeout;
    let has_begun = pod.finding.is_some() || pod.address.is_some(); // it gets one with its volumes
    let is_stranded =
        is_gone && has_waited && !has_begun && !pod.is_deleting && !world.is_responsive(ordinal);
    is_stranded.then(|| ReconcileStep::DeletePod {
        ordinal,
        uid: pod.uid.clone(),
        reason: PodDeletionReason::VolumeLost,
    })
}

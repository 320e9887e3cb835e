//! Restarts a pod that waits for a lost volume while no quorum confirms the member list.
//!
//! The StatefulSet controller creates PVCs only when it creates pods, so only a new pod gets a new PVC. With a quorum, `replace`
//! removes the member first. A recovery that has a volume to write to takes precedence: a new PVC would change the incident
//! ID, which is derived from PVC UIDs.
//!
//! Invariant: the pod has never started, so deleting it disrupts nothing, and no data is lost: the PVC does not exist, or it
//! is terminating because its volume is lost.

use super::recovery;
use crate::model::{Ordinal, PodDeletionReason, ReconcileStep, World};

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let is_known = world.members().is_some();
    if is_known || recovery::is_open_or_startable(world) {
        return None;
    }
    world
        .ordinals()
        .find_map(|ordinal| restart_stranded_pod(world, ordinal))
}

fn restart_stranded_pod(world: &World<'_>, ordinal: Ordinal) -> Option<ReconcileStep> {
    let pod = world.pod(ordinal)?;
    let pvc = world.observed.pvcs.get(&ordinal);
    let is_gone = pvc.is_none_or(|pvc| pvc.is_lost && pvc.is_deleting);
    let age = world.now.duration_since(pod.created_at?).unsigned_abs();
    let has_waited = age >= world.policy.volume_timeout;
    let has_begun = pod.finding.is_some() || pod.address.is_some(); // a pod gets its IP after its volumes are mounted
    let is_stranded =
        is_gone && has_waited && !has_begun && !pod.is_deleting && !world.is_responsive(ordinal);
    is_stranded.then(|| ReconcileStep::DeletePod {
        ordinal,
        uid: pod.uid.clone(),
        reason: PodDeletionReason::VolumeLost,
    })
}

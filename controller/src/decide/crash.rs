//! Restarts a pod whose etcd crashes repeatedly on data that the init check accepted.
//!
//! The init check is quick after a clean stop of etcd, and a crash proves nothing about the data. A new pod runs the thorough
//! check, and the other planners act on its verdict. Invariants: the pod does not serve, so deleting it disrupts nothing; a pod
//! younger than `MIN_POD_AGE` is kept, which limits the rate of restarts.

use crate::model::{Ordinal, PodDeletionReason, ReconcileStep, World};
use std::time::Duration;

/// Number of crashes of etcd after which the data is checked again.
const CRASH_LIMIT: u32 = 5;
/// Minimum age of a pod before it is restarted.
const MIN_POD_AGE: Duration = Duration::from_mins(10);

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    world
        .ordinals()
        .find_map(|ordinal| restart_crashing_pod(world, ordinal))
}

fn restart_crashing_pod(world: &World<'_>, ordinal: Ordinal) -> Option<ReconcileStep> {
    let pod = world.pod(ordinal)?;
    let age = world.now.duration_since(pod.created_at?).unsigned_abs();
    let is_crash_looping = pod.crash_count >= CRASH_LIMIT && age >= MIN_POD_AGE;
    // A container restart does not run init containers again, so the whole pod is deleted.
    (is_crash_looping && !pod.is_deleting && !world.is_responsive(ordinal)).then(|| {
        ReconcileStep::DeletePod {
            ordinal,
            uid: pod.uid.clone(),
            reason: PodDeletionReason::CrashLooping,
        }
    })
}

//! etcd that ends again and again on data its check found good.
//!
//! The check is quick where etcd had ended in order, and a program that fails says nothing about its data. A new pod checks
//! again, thoroughly now, and what it finds is what the others act on. **Holds**: such a pod takes no part, so nobody misses
//! it; a pod is not given up before it had its time, so this cannot go on faster than that.

use std::time::Duration;

use super::{PodDeletionReason, ReconcileStep, World};
use crate::observe::Ordinal;

/// As often as etcd may end before its data is doubted.
const CRASH_LIMIT: u32 = 5;
/// The time a pod has.
const MIN_POD_AGE: Duration = Duration::from_mins(10);

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    world.ordinals().find_map(|ordinal| restart_crashing_pod(world, ordinal))
}

fn restart_crashing_pod(world: &World<'_>, ordinal: Ordinal) -> Option<ReconcileStep> {
    let pod = world.pod(ordinal)?;
    let age = world.now.duration_since(pod.created_at?).unsigned_abs();
    let is_hopeless = pod.crash_count >= CRASH_LIMIT && age >= MIN_POD_AGE;
    (is_hopeless && !pod.is_deleting && !world.is_responsive(ordinal)).then(|| ReconcileStep::DeletePod {
        ordinal,
        uid: pod.uid.clone(),
        reason: PodDeletionReason::CrashLooping,
    })
}

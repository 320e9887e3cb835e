//! etcd that ends again and again on data its check found good.
//!
//! The check is quick where etcd had ended in order, and a program that fails says nothing about its data. A new pod checks
//! again, thoroughly now, and what it finds is what the others act on. **Holds**: such a pod takes no part, so nobody misses
//! it; a pod is not given up before it had its time, so this cannot go on faster than that.

use std::time::Duration;

use super::{Restart, Step, World};
use crate::observe::Ordinal;

/// As often as etcd may end before its data is doubted.
const MANY: u32 = 5;
/// The time a pod has.
const PATIENCE: Duration = Duration::from_mins(10);

pub(super) fn consider(world: &World<'_>) -> Option<Step> {
    world.ordinals().find_map(|ordinal| one(world, ordinal))
}

fn one(world: &World<'_>, ordinal: Ordinal) -> Option<Step> {
    let pod = world.pod(ordinal)?;
    let age = world.now.duration_since(pod.created?).unsigned_abs();
    let is_hopeless = pod.crashes >= MANY && age >= PATIENCE;
    (is_hopeless && !pod.is_deleting && !world.takes_part(ordinal)).then(|| Step::DeletePod {
        ordinal,
        uid: pod.uid.clone(),
        because: Restart::Crashes,
    })
}

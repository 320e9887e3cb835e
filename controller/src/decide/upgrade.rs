//! Checks a change of the etcd image against the *running* version, and requires a full snapshot before it.
//!
//! Invariant: until both are done the image stays unchanged, so that a pod recreated meanwhile does not start the new version.
//! This also holds while the cluster is hibernated and when its StatefulSet is recreated. If the tag is not a version, or no
//! member ever reported one, the upgrade path cannot be checked and the change is allowed: it may be the fix.

use mainstay_ids::EtcdVersion;

use super::snapshot;
use crate::model::{
    Blocker, DisruptiveChange, EndpointStatus, ObservedEtcdMember, ReconcileStep, SpecRefusal,
    UpgradeRule, World,
};

/// The first 3.5 release from which an upgrade to 3.6 keeps all members.
const MIN_VERSION_FOR_3_6: EtcdVersion = EtcdVersion::new(3, 5, 26);

/// Checks an upgrade path; the error is the rule it breaks.
pub(crate) fn check_upgrade(from: EtcdVersion, to: EtcdVersion) -> Result<(), UpgradeRule> {
    if from.major != to.major {
        return Err(UpgradeRule::SameMajor);
    }
    // Patch versions of one minor version may change in both directions.
    if to.minor < from.minor {
        return Err(UpgradeRule::NoDowngrade);
    }
    if to.minor - from.minor > 1 {
        return Err(UpgradeRule::OneMinor);
    }
    let enters_3_6 = (to.major, to.minor) == (3, 6) && from.minor < 6;
    if enters_3_6 && from < MIN_VERSION_FOR_3_6 {
        return Err(UpgradeRule::MinPatchFirst);
    }
    Ok(())
}

/// The current image when it differs from the desired one: from the template, or from the pods when the StatefulSet was lost.
/// `None` when a pod already runs the desired image, since that upgrade was allowed before.
fn find_outdated_image<'a>(world: &World<'a>) -> Option<&'a str> {
    let desired = world.desired.etcd_image.as_str();
    if let Some(set) = world.stateful_set() {
        return set.etcd_image.as_deref().filter(|image| *image != desired);
    }
    let pods = world.observed.pods.values();
    let mut images = pods.filter_map(|pod| pod.etcd_image.as_deref());
    let first = images.next().filter(|image| *image != desired)?;
    images.all(|image| image != desired).then_some(first)
}

/// The oldest running version; without an answer, the last reported one; else the version in the template.
fn find_running_version(world: &World<'_>) -> Option<EtcdVersion> {
    // During a rollout the members run two versions; the oldest one limits the upgrade.
    let version = |member: &ObservedEtcdMember| {
        let EndpointStatus { version, .. } = member.status.as_ref()?;
        EtcdVersion::parse(version)
    };
    world
        .voters()
        .filter_map(version)
        .min()
        .or(world.last_known.etcd_version)
        .or_else(|| {
            let set = world
                .stateful_set()
                .filter(|set| set.recorded_size.is_some())?;
            EtcdVersion::from_image(set.etcd_image.as_deref()?)
        })
}

fn find_refusal(world: &World<'_>) -> Option<SpecRefusal> {
    let (from, to) = (
        find_running_version(world)?,
        EtcdVersion::from_image(&world.desired.etcd_image)?,
    );
    let rule = check_upgrade(from, to).err()?;
    Some(SpecRefusal::Upgrade {
        from: from.to_string(),
        to: to.to_string(),
        rule,
    })
}

pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    find_outdated_image(world)?;
    if find_refusal(world).is_some() {
        return None;
    }
    require_snapshot(world)
}

/// What blocks the adoption of a StatefulSet made by etcd-druid.
pub(super) fn gate_adoption(world: &World<'_>) -> Option<ReconcileStep> {
    find_outdated_image(world)?;
    if find_refusal(world).is_some() {
        let blocker = Blocker::AdoptionRefused;
        return Some(ReconcileStep::Wait { blocker });
    }
    require_snapshot(world)
}

/// The snapshot step before the upgrade, if it is missing.
fn require_snapshot(world: &World<'_>) -> Option<ReconcileStep> {
    // A cluster without quorum cannot take a snapshot, and the new image may be the fix.
    world.members()?;
    snapshot::require_snapshot(world, DisruptiveChange::Upgrade)
}

/// The current image while the desired one must not be applied; records the refusal.
pub(super) fn hold_image(world: &World<'_>, refusals: &mut Vec<SpecRefusal>) -> Option<String> {
    let image = find_outdated_image(world)?;
    if let Some(refusal) = find_refusal(world) {
        refusals.push(refusal);
        return Some(image.to_owned());
    }
    require_snapshot(world).map(|_| image.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> EtcdVersion {
        EtcdVersion::parse(text).unwrap()
    }

    #[test]
    fn etcd_upgrades_one_minor_version_at_a_time_and_never_downgrades() {
        use UpgradeRule::{MinPatchFirst, NoDowngrade, OneMinor, SameMajor};
        for (from, to, expected) in [
            ("3.4.34", "3.5.30", Ok(())),
            ("3.5.16", "3.5.30", Ok(())),
            ("3.5.30", "3.5.16", Ok(())),
            ("3.5.26", "3.6.0", Ok(())),
            ("3.5.25", "3.6.0", Err(MinPatchFirst)),
            ("3.4.34", "3.6.0", Err(OneMinor)),
            ("3.6.0", "3.5.30", Err(NoDowngrade)),
            ("3.5.30", "3.4.34", Err(NoDowngrade)),
            ("3.6.1", "4.0.0", Err(SameMajor)),
            ("3.4294967295.0", "3.4294967295.1", Ok(())),
            (
                "3.18446744073709551615.0",
                "3.18446744073709551615.1",
                Ok(()),
            ),
            ("3.0.0", "3.18446744073709551615.0", Err(OneMinor)),
        ] {
            assert_eq!(
                check_upgrade(version(from), version(to)),
                expected,
                "{from} to {to}"
            );
        }
    }
}

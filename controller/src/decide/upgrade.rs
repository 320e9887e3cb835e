//! Another etcd: allowed or not by what *runs*, and preceded by a full snapshot.
//!
//! **Holds**: until both are settled the image stays as it is, so that a pod that is lost meanwhile does not come back with the
//! new one; also while the cluster sleeps, and when its StatefulSet is made again. An image whose tag names no version
//! cannot be judged and is let through, as is any image when no member was ever seen with a version: it may be the cure.

use std::fmt;

use super::{Blocker, DisruptiveChange, SpecRefusal, ReconcileStep, UpgradeRule, World, snapshot};
use crate::observe::{EndpointStatus, ObservedEtcdMember};

/// A version of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EtcdVersion {
    /// 3.
    pub major: u32,
    /// The 5 of 3.5.26.
    pub minor: u32,
    /// The 26 of 3.5.26.
    pub patch: u32,
}

/// The first 3.5 whose data 3.6 reads without losing members.
const MIN_VERSION_FOR_3_6: EtcdVersion = EtcdVersion {
    major: 3,
    minor: 5,
    patch: 26,
};

impl EtcdVersion {
    /// Reads `3.5.26`, with or without a `v` in front and a suffix behind.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let core = text.split(['-', '+']).next()?;
        let mut parts = core.split('.').map(|part| part.parse::<u32>().ok());
        let (major, minor, patch) = (parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(Self {
            major,
            minor,
            patch,
        })
    }

    /// The version the tag of an image names. What is below 3 is the version of something around etcd.
    pub fn from_image(image: &str) -> Option<Self> {
        let without_digest = image.split('@').next()?;
        let (_, tag) = without_digest.rsplit_once(':')?;
        Self::parse(tag).filter(|version| version.major >= 3)
    }
}

impl fmt::Display for EtcdVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            major,
            minor,
            patch,
        } = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Whether one version may follow another; the rule that forbids it otherwise.
pub fn check_upgrade(from: EtcdVersion, to: EtcdVersion) -> Result<(), UpgradeRule> {
    if from.major != to.major {
        return Err(UpgradeRule::SameMajor);
    }
    if to.minor < from.minor {
        return Err(UpgradeRule::NoDowngrade);
    }
    if to.minor > from.minor + 1 {
        return Err(UpgradeRule::OneMinor);
    }
    let enters_3_6 = (to.major, to.minor) == (3, 6) && from.minor < 6;
    if enters_3_6 && from < MIN_VERSION_FOR_3_6 {
        return Err(UpgradeRule::MinPatchFirst);
    }
    Ok(())
}

/// The image there is, when another is wanted: that of the template, or that of pods whose StatefulSet was lost. Where one
/// of those has the wanted one already, that was decided before.
fn find_outdated_image<'a>(world: &World<'a>) -> Option<&'a str> {
    let wanted = world.desired.etcd_image.as_str();
    if let Some(set) = world.stateful_set() {
        return set.etcd_image.as_deref().filter(|image| *image != wanted);
    }
    let pods = world.observed.pods.values();
    let mut images = pods.filter_map(|pod| pod.etcd_image.as_deref());
    let first = images.next().filter(|image| *image != wanted)?;
    images.all(|image| image != wanted).then_some(first)
}

/// The oldest version that runs; what was last seen when nobody answers; what the template of a cluster that sleeps names.
fn find_running_version(world: &World<'_>) -> Option<EtcdVersion> {
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
            let ours = world.stateful_set().filter(|set| set.recorded_size.is_some())?;
            EtcdVersion::from_image(ours.etcd_image.as_deref()?)
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

/// What keeps a StatefulSet of etcd-druid from being adopted.
pub(super) fn gate_adoption(world: &World<'_>) -> Option<ReconcileStep> {
    find_outdated_image(world)?;
    if find_refusal(world).is_some() {
        let on = Blocker::AdoptionRefused;
        return Some(ReconcileStep::Wait { blocker: on });
    }
    require_snapshot(world)
}

/// The snapshot that is still missing. A cluster that does not answer cannot give one, and the image may be the cure.
fn require_snapshot(world: &World<'_>) -> Option<ReconcileStep> {
    world.members()?;
    snapshot::require_snapshot(world, DisruptiveChange::Upgrade)
}

/// The image that stays while another is wanted, and what is refused.
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
    fn versions_of_images_are_found_behind_the_name() {
        for (image, expected) in [
            ("etcd:v3.5.21", Some("3.5.21")),
            ("host:5000/etcd:3.6.1-0", Some("3.6.1")),
            ("etcd:v3.5.21@sha256:00", Some("3.5.21")),
            ("host:5000/etcd", None),
            ("etcd:latest", None),
            ("etcd", None),
            ("etcd-wrapper:v0.6.2", None),
        ] {
            assert_eq!(
                EtcdVersion::from_image(image).map(|v| v.to_string()).as_deref(),
                expected,
                "{image}"
            );
        }
    }

    #[test]
    fn etcd_goes_one_minor_version_at_a_time_and_never_back() {
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
        ] {
            assert_eq!(
                check_upgrade(version(from), version(to)),
                expected,
                "{from} to {to}"
            );
        }
    }
}

//! A member whose data is lost, in a cluster that has its quorum: it is taken out, and comes back empty as a learner.
//!
//! **Holds**: loss is proven, by the verdict of the member's own check or by the absence of its volume; silence proves
//! nothing. A volume is given up only after its member is out of the cluster.

use super::{Blocker, Removal, Restart, Step, Useless, World, quorum};
use crate::observe::{Finding, Ordinal, SeenClaim, SeenMember, SeenPod};

pub(super) fn consider(world: &World<'_>) -> Option<Step> {
    world.members()?;
    if world.voters().count() < 2 && world.learner().is_none() {
        return None; // the only copy is the backup: see the recovery
    }
    world.ordinals().find_map(|ordinal| one(world, ordinal))
}

fn one(world: &World<'_>, ordinal: Ordinal) -> Option<Step> {
    let pod = world.pod(ordinal).filter(|pod| !pod.is_deleting)?;
    if world.takes_part(ordinal) {
        return None;
    }
    let claim = world.seen.claims.get(&ordinal);
    let is_volume_gone = claim.is_none_or(|claim| claim.is_lost || claim.is_deleting)
        && is_patience_over(world, pod);
    let is_lost = pod.finding.is_some_and(Finding::is_loss) || is_volume_gone;
    match world.member(ordinal) {
        // Not started yet: this one was just added.
        Some(member) if member.name.is_empty() => None,
        Some(member) if is_lost => Some(remove(world, ordinal, member)),
        Some(_) => None,
        None => renew(ordinal, pod, claim, is_volume_gone),
    }
}

/// The pod and its claim, as long as it needs new ones.
fn renew(
    ordinal: Ordinal,
    pod: &SeenPod,
    claim: Option<&SeenClaim>,
    is_volume_gone: bool,
) -> Option<Step> {
    let discard = |claim: &SeenClaim, because| Step::DiscardClaim {
        ordinal,
        uid: claim.uid.clone(),
        pod_uid: Some(pod.uid.clone()),
        because,
    };
    match claim {
        Some(claim) if claim.is_lost && !claim.is_deleting => {
            Some(discard(claim, Useless::VolumeGone))
        }
        _ if is_volume_gone => Some(Step::DeletePod {
            ordinal,
            uid: pod.uid.clone(),
            because: Restart::VolumeGone,
        }),
        Some(claim) if !claim.is_deleting => match pod.finding? {
            Finding::Corrupt => Some(discard(claim, Useless::Corrupt)),
            Finding::Foreign => Some(discard(claim, Useless::Foreign)),
            Finding::Good | Finding::Waits | Finding::NeedsRestore | Finding::Refused => None,
            Finding::Unborn | Finding::Hopeless => None,
        },
        _ => None,
    }
}

fn remove(world: &World<'_>, ordinal: Ordinal, member: &SeenMember) -> Step {
    let (well, voters) = world.without(member);
    if !member.is_learner && (well < quorum(voters) || !world.has_quorum()) {
        return Step::Wait {
            on: Blocker::QuorumAtRisk {
                ordinal,
                well,
                voters,
            },
        };
    }
    Step::RemoveMember {
        member: member.id,
        ordinal,
        because: Removal::Lost,
    }
}

/// A claim that is not in sight may just not have been seen yet.
fn is_patience_over(world: &World<'_>, pod: &SeenPod) -> bool {
    let waited = pod.created.map(|created| world.now.duration_since(created));
    waited.is_some_and(|waited| waited.unsigned_abs() >= world.policy.volume_patience)
}

//! A member whose data is lost, in a cluster that has its quorum: it is taken out, and comes back empty as a learner.
//!
//! **Holds**: loss is proven, by the verdict of the member's own check or by the absence of its volume; silence proves
//! nothing. A volume is given up only after its member is out of the cluster. What was there before a recovery is given up
//! only when the new cluster is whole without it. A pod whose member was taken out while it
//! ran is started again, so that its check sees that; etcd alone would fail for ever.

use mainstay_coordination::incident::Stage;

use super::recovery::lives_since;
use super::{Blocker, Removal, Restart, Step, Useless, World, is_accepted, quorum};
use crate::observe::{Finding, Ordinal, SeenClaim, SeenMember, SeenPod};

pub(super) fn consider(world: &World<'_>) -> Option<Step> {
    world.members()?;
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
    // What goes anyway is not mended: see scaling in.
    let stays = !is_accepted(world) || ordinal.0 < world.wanted.replicas;
    let is_useless = pod.finding.is_some_and(Finding::is_useless);
    match world.member(ordinal) {
        // Just added and not started yet: only what an earlier member left is in its way.
        Some(member) if member.name.is_empty() => (is_useless && stays)
            .then(|| renew(world, ordinal, pod, claim, is_volume_gone))
            .flatten(),
        Some(member) if is_lost && has_others(world, member) => {
            Some(remove(world, ordinal, member))
        }
        None if stays => renew(world, ordinal, pod, claim, is_volume_gone),
        Some(_) | None => None,
    }
}

/// Of the only voter's data the only other copy is the backup: see the recovery.
fn has_others(world: &World<'_>, member: &SeenMember) -> bool {
    member.is_learner || world.voters().count() > 1
}

/// Whether the member this pod last was is none any more.
fn is_removed(world: &World<'_>, ordinal: Ordinal) -> bool {
    let lease = world.seen.leases.get(&ordinal);
    let held = lease.and_then(|lease| lease.held.as_ref());
    let list = world.members().map(|members| &members.list);
    held.zip(list)
        .is_some_and(|(held, list)| list.iter().all(|member| member.id != held.member))
}

/// The pod and its claim, as long as it needs new ones.
fn renew(
    world: &World<'_>,
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
    let restart = |because| Step::DeletePod {
        ordinal,
        uid: pod.uid.clone(),
        because,
    };
    match claim {
        Some(claim) if claim.is_lost && !claim.is_deleting => {
            Some(discard(claim, Useless::VolumeGone))
        }
        _ if is_volume_gone => Some(restart(Restart::VolumeGone)),
        Some(claim) if !claim.is_deleting => match pod.finding? {
            Finding::Corrupt | Finding::Foreign if !is_spare(world, ordinal) => None,
            Finding::Corrupt => Some(discard(claim, Useless::Corrupt)),
            Finding::Foreign => Some(discard(claim, Useless::Foreign)),
            Finding::Good if is_removed(world, ordinal) => Some(restart(Restart::Removed)),
            Finding::Good
            | Finding::Waits
            | Finding::NeedsRestore
            | Finding::Unborn
            | Finding::Hopeless
            | Finding::Refused => None,
        },
        _ => None,
    }
}

/// Whether nobody may miss what a member left. What it left before a recovery may be the best there is, until the others are
/// well, or a quorum of them.
fn is_spare(world: &World<'_>, ordinal: Ordinal) -> bool {
    let over = world.seen.recovery.over();
    let over = over.filter(|over| over.stage == Stage::Closed && ordinal.0 < over.size);
    let lease = world.seen.leases.get(&ordinal);
    if over.is_none_or(|over| lease.is_some_and(|lease| lives_since(lease, over))) {
        return true; // it has lived since
    }
    let all = world.ordinals().count();
    let others = world.ordinals().filter(|other| *other != ordinal);
    let well = others.filter(|other| world.is_well(*other)).count();
    well + 1 >= all || well >= quorum(all)
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

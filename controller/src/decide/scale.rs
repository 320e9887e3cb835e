//! More members, or fewer; one at a time, always the highest ordinal. And as many pods as there are members.
//!
//! **Outward**: from a whole cluster the StatefulSet grows by one pod, which waits until it is added as a learner.
//! **Inward**: leadership is moved away, the member is removed, then its pod goes. What would cost the quorum waits, with
//! the reason.

use super::{Blocker, Removal, Step, Useless, World, is_accepted, quorum, shape};
use crate::observe::{Ordinal, SeenMember};
use crate::validate::Drift;

/// Somebody made the StatefulSet smaller than the cluster is: all pods come back, to what they hold. Nobody is given up, and
/// nothing is restored, because pods were taken away.
pub(super) fn shrunk(world: &World<'_>) -> Option<Step> {
    let (from, observed) = (world.size(), world.known.observed_generation);
    let is_left = world.wanted.drift(observed) == Drift::Left;
    if from == 0 || is_left || world.seen.recovery.open().is_some() {
        return None;
    }
    let members = match world.members() {
        Some(members) => {
            let ordinals = members.list.iter().filter_map(|one| one.ordinal);
            shape::behind(ordinals.max().as_ref())
        }
        None => shape::size_held(world),
    };
    let to = members.min(world.wanted.replicas);
    if from >= to {
        return None;
    }
    Some(if is_accepted(world) {
        Step::Resize { from, to }
    } else {
        let ordinal = Ordinal(from);
        let on = Blocker::PodReturns { ordinal };
        Step::Wait { on }
    })
}

pub(super) fn inward(world: &World<'_>) -> Option<Step> {
    let (size, wanted) = (world.size(), world.wanted.replicas);
    if wanted == 0 || size == 0 {
        return None;
    }
    if let Some((ordinal, stray)) = stray(world) {
        return Some(remove(world, ordinal, stray));
    }
    if size <= wanted {
        return None;
    }
    let last = Ordinal(size - 1);
    if world.members().is_none() {
        return Some(Step::Wait {
            on: Blocker::NoQuorum,
        });
    }
    Some(match world.member(last) {
        Some(member) => remove(world, last, member),
        None => Step::Resize {
            from: size,
            to: size - 1,
        },
    })
}

/// A member whose pod went before it was removed.
fn stray<'a>(world: &World<'a>) -> Option<(Ordinal, &'a SeenMember)> {
    let mut list = world.members()?.list.iter();
    list.find_map(|member| {
        let ordinal = member.ordinal.filter(|ordinal| ordinal.0 >= world.size())?;
        Some((ordinal, member))
    })
}

fn remove(world: &World<'_>, ordinal: Ordinal, member: &SeenMember) -> Step {
    if member.is_learner {
        return removal(ordinal, member);
    }
    let (well, voters) = world.without(member);
    if well < quorum(voters) || !world.has_quorum() {
        return Step::Wait {
            on: Blocker::QuorumAtRisk {
                ordinal,
                well,
                voters,
            },
        };
    }
    match world.heir(member).filter(|_| member.is_leader()) {
        Some(heir) => Step::MoveLeader {
            from: member.id,
            to: heir.id,
        },
        None => removal(ordinal, member),
    }
}

fn removal(ordinal: Ordinal, member: &SeenMember) -> Step {
    Step::RemoveMember {
        member: member.id,
        ordinal,
        because: Removal::ScaleIn,
    }
}

pub(super) fn outward(world: &World<'_>) -> Option<Step> {
    let (from, wanted) = (world.size(), world.wanted.replicas);
    if from == 0 || from >= wanted {
        return None;
    }
    if world.members().is_none() {
        let on = if world.is_formed() {
            Blocker::NoQuorum
        } else {
            Blocker::Founding
        };
        return Some(Step::Wait { on });
    }
    if let Some(on) = world.first_unwell(None) {
        return Some(Step::Wait { on });
    }
    let ordinal = Ordinal(from);
    Some(match world.seen.claims.get(&ordinal) {
        Some(claim) if claim.is_deleting => Step::Wait {
            on: Blocker::ClaimGoes { ordinal },
        },
        // Nobody of that name is a member, so what it holds is of no use to anybody.
        Some(claim) if world.pod(ordinal).is_none() => Step::DiscardClaim {
            ordinal,
            uid: claim.uid.clone(),
            pod_uid: None,
            because: Useless::LeftBehind,
        },
        Some(_) => Step::Wait {
            on: Blocker::PodReturns { ordinal },
        },
        None => Step::Resize { from, to: from + 1 },
    })
}

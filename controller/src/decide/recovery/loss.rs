//! Whether data is lost for good, and where the best copy is.

use mainstay_coordination::incident::{Cause, Incident, Source, Stage};

use super::Hold;
use crate::decide::{World, quorum};
use crate::observe::{Finding, Membership, Ordinal, SeenLease};

/// What one place of the cluster holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// Data that etcd serves from, or would with a quorum.
    Alive,
    /// Data its check found good; etcd does not answer. Most versions do not, before there is a quorum.
    Sound,
    /// Nothing, or nothing of use: its check or the absence of its volume proves it.
    Lost,
    /// Nothing, and there never was a cluster; but a backup of one.
    Unborn,
    /// Nothing, and there is no backup either.
    Hopeless,
    /// Nobody knows: silence, or something that only a person may touch.
    Unknown,
}

/// Data that is lost for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    /// What happened.
    pub(super) cause: Cause,
    /// Whose data is gone.
    pub(super) lost: Vec<Ordinal>,
    /// The member the cluster is made from; `None` without a volume to write to.
    pub(super) base: Option<Ordinal>,
    /// Where the data comes from.
    pub(super) source: Source,
    /// What has to be known first.
    pub(super) hold: Option<Hold>,
}

/// What is lost; `None` when nothing is, or when it is not proven.
pub(super) fn assess(world: &World<'_>) -> Option<Loss> {
    let is_known = matches!(world.seen.membership, Membership::Known(_));
    if world.size() == 0 || world.wanted.replicas == 0 || is_known {
        return None;
    }
    if let Some(loss) = never_begun(world) {
        return Some(loss);
    }
    if world.size() == 1 {
        return single(world);
    }
    several(world)
}

fn holds(world: &World<'_>, ordinal: Ordinal) -> Holds {
    if world.takes_part(ordinal) {
        return Holds::Alive;
    }
    let claim = world.seen.claims.get(&ordinal);
    if claim.is_some_and(|claim| claim.is_lost) {
        return Holds::Lost;
    }
    let pod = world.pod(ordinal).filter(|pod| !pod.is_deleting);
    match pod.and_then(|pod| pod.finding) {
        Some(Finding::Good) => Holds::Sound,
        Some(Finding::Waits | Finding::NeedsRestore | Finding::Corrupt | Finding::Foreign) => {
            Holds::Lost
        }
        Some(Finding::Unborn) => Holds::Unborn,
        Some(Finding::Hopeless) => Holds::Hopeless,
        Some(Finding::Refused) | None => Holds::Unknown,
    }
}

/// A cluster that was never there, and a backup of one that was.
fn never_begun(world: &World<'_>) -> Option<Loss> {
    if world.is_formed() {
        return None;
    }
    let all: Vec<Holds> = world.ordinals().map(|n| holds(world, n)).collect();
    let nobody_has_data = !all
        .iter()
        .any(|one| matches!(one, Holds::Alive | Holds::Sound));
    let is_unborn = all.contains(&Holds::Unborn) && nobody_has_data;
    is_unborn.then(|| Loss {
        cause: Cause::FormerBackup,
        lost: world.ordinals().collect(),
        base: writable(world, world.ordinals()),
        source: Source::Backup,
        hold: unlooked(world).map(|ordinal| Hold::Unlooked { ordinal }),
    })
}

/// Somebody whose volume may hold data that nobody has looked at.
fn unlooked(world: &World<'_>) -> Option<Ordinal> {
    let may_hold_data = |ordinal: &Ordinal| {
        let claim = world.seen.claims.get(ordinal);
        claim.is_none_or(|claim| claim.is_bound)
    };
    let mut unknown = world
        .ordinals()
        .filter(|ordinal| holds(world, *ordinal) == Holds::Unknown);
    unknown.find(may_hold_data)
}

/// The only member: the backup is the only other copy.
fn single(world: &World<'_>) -> Option<Loss> {
    let only = Ordinal(0);
    let hold = match holds(world, only) {
        Holds::Alive | Holds::Sound | Holds::Unknown => return None,
        Holds::Hopeless => Some(Hold::NothingToRestore),
        Holds::Lost | Holds::Unborn => has_backup(world),
    };
    Some(Loss {
        cause: Cause::MemberLost,
        lost: vec![only],
        base: writable(world, [only]),
        source: Source::Backup,
        hold,
    })
}

/// Members of whom a majority is needed.
fn several(world: &World<'_>) -> Option<Loss> {
    let members = members(world);
    let of = |what: &[Holds]| -> Vec<Ordinal> {
        let all = members.iter().copied();
        all.filter(|n| what.contains(&holds(world, *n))).collect()
    };
    let lost = of(&[Holds::Lost, Holds::Unborn, Holds::Hopeless]);
    if members.len() - lost.len() >= quorum(members.len()) {
        return None;
    }
    let undecided = of(&[Holds::Unknown]).first().copied();
    let survivors = of(&[Holds::Alive, Holds::Sound]);
    let (base, source) = match best(world, &survivors) {
        Some(survivor) => (Some(survivor), Source::BestCopy),
        None => (writable(world, world.ordinals()), Source::Backup),
    };
    let hold = match (undecided, source, survivors.first()) {
        (Some(ordinal), _, _) => Some(Hold::Verdict { ordinal }),
        (None, Source::BestCopy, _) => None,
        // Stopping it would end the newest copy there is.
        (None, Source::Backup, Some(&ordinal)) => Some(Hold::Doomed { ordinal }),
        (None, Source::Backup, None) => has_backup(world),
    };
    Some(Loss {
        cause: Cause::QuorumLost,
        lost,
        base,
        source,
        hold,
    })
}

fn has_backup(world: &World<'_>) -> Option<Hold> {
    let none = world.wanted.backup.is_none();
    none.then_some(Hold::NothingToRestore)
}

/// Those who are members, as far as their Leases tell: a pod that waits to be added has none. After a recovery only
/// those count who have given a sign of life since.
fn members(world: &World<'_>) -> Vec<Ordinal> {
    let over = world.seen.recovery.over();
    let over = over.filter(|over| over.stage == Stage::Closed); // one that was given up has made nobody a member
    let counts = |ordinal: &Ordinal| {
        let lease = world.seen.leases.get(ordinal);
        lease.is_some_and(|lease| {
            lease.held.is_some() && over.is_none_or(|over| lives_since(lease, over))
        })
    };
    let held: Vec<Ordinal> = world.ordinals().filter(counts).collect();
    match (held.is_empty(), over) {
        (false, _) => held,
        (true, Some(over)) => vec![Ordinal(over.base)],
        (true, None) => world.ordinals().collect(),
    }
}

/// Whether a member has given a sign of life since a recovery was over. The cluster it names tells that; its clock is asked where
/// one of the two is not known.
pub(in crate::decide) fn lives_since(lease: &SeenLease, over: &Incident) -> bool {
    let named = lease.held.as_ref().and_then(|held| held.cluster);
    match (named, &over.cluster) {
        (Some(named), Some(made)) => named.to_string() == *made,
        _ => lease.renewed.is_some_and(|renewed| renewed > over.changed),
    }
}

/// The survivor with the newest data whose volume can be written.
fn best(world: &World<'_>, survivors: &[Ordinal]) -> Option<Ordinal> {
    let answered = |ordinal: &Ordinal| match &world.seen.membership {
        Membership::Silent { alive, .. } => alive.get(ordinal).copied(),
        Membership::Known(_) | Membership::Unasked => None,
    };
    let found = |ordinal: &Ordinal| world.pod(*ordinal).and_then(|pod| pod.reaches);
    let mut newest_first = survivors.to_vec();
    newest_first.sort_by_key(|one| std::cmp::Reverse(answered(one).or_else(|| found(one))));
    writable(world, newest_first)
}

/// The first whose volume can be written.
fn writable(world: &World<'_>, of: impl IntoIterator<Item = Ordinal>) -> Option<Ordinal> {
    of.into_iter().find(|ordinal| is_writable(world, *ordinal))
}

/// Whether a volume can be written: it is there and stays.
pub(super) fn is_writable(world: &World<'_>, ordinal: Ordinal) -> bool {
    let claim = world.seen.claims.get(&ordinal);
    claim.is_some_and(|claim| claim.is_bound && !claim.is_lost && !claim.is_deleting)
}

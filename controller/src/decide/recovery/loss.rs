//! Whether data is lost for good, and where the best copy is.

use mainstay_coordination::incident::{RecoveryCause, Incident, RecoverySource, RecoveryStage};

use super::RecoveryBlocker;
use crate::decide::{World, quorum};
use crate::observe::{InitFinding, ObservedMembership, Ordinal, ObservedMemberLease};

/// What one place of the cluster holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberDataState {
    /// Data that etcd serves from, or would with a quorum.
    Serving,
    /// Data its check found good; etcd does not answer. Most versions do not, before there is a quorum.
    Intact,
    /// Nothing, or nothing of use: its check or the absence of its volume proves it.
    Lost,
    /// Nothing, and there never was a cluster; but a backup of one.
    BackupExists,
    /// Nothing, and there is no backup either.
    NothingToRestore,
    /// Nobody knows: silence, or something that only a person may touch.
    Unknown,
}

/// Data that is lost for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    /// What happened.
    pub(super) cause: RecoveryCause,
    /// Whose data is gone.
    pub(super) lost_members: Vec<Ordinal>,
    /// The member the cluster is made from; `None` without a volume to write to.
    pub(super) base: Option<Ordinal>,
    /// Where the data comes from.
    pub(super) source: RecoverySource,
    /// What has to be known first.
    pub(super) blocker: Option<RecoveryBlocker>,
}

/// What is lost; `None` when nothing is, or when it is not proven.
pub(super) fn assess(world: &World<'_>) -> Option<Loss> {
    let is_known = matches!(world.observed.membership, ObservedMembership::Known(_));
    if world.size() == 0 || world.desired.replicas == 0 || is_known {
        return None;
    }
    if let Some(loss) = assess_former_backup(world) {
        return Some(loss);
    }
    if world.size() == 1 {
        return assess_single_member(world);
    }
    assess_quorum(world)
}

fn classify_data(world: &World<'_>, ordinal: Ordinal) -> MemberDataState {
    if world.is_responsive(ordinal) {
        return MemberDataState::Serving;
    }
    let claim = world.observed.pvcs.get(&ordinal);
    if claim.is_some_and(|claim| claim.is_lost) {
        return MemberDataState::Lost;
    }
    let pod = world.pod(ordinal).filter(|pod| !pod.is_deleting);
    match pod.and_then(|pod| pod.finding) {
        Some(InitFinding::CanStart) => MemberDataState::Intact,
        Some(InitFinding::WaitingToJoin | InitFinding::NeedsRestore | InitFinding::Corrupt | InitFinding::Foreign) => {
            MemberDataState::Lost
        }
        Some(InitFinding::BackupExists) => MemberDataState::BackupExists,
        Some(InitFinding::NothingToRestore) => MemberDataState::NothingToRestore,
        Some(InitFinding::Refused) | None => MemberDataState::Unknown,
    }
}

/// A cluster that was never there, and a backup of one that was.
fn assess_former_backup(world: &World<'_>) -> Option<Loss> {
    if world.is_bootstrapped() {
        return None;
    }
    let all: Vec<MemberDataState> = world.ordinals().map(|n| classify_data(world, n)).collect();
    let nobody_has_data = !all
        .iter()
        .any(|one| matches!(one, MemberDataState::Serving | MemberDataState::Intact));
    let is_unborn = all.contains(&MemberDataState::BackupExists) && nobody_has_data;
    is_unborn.then(|| Loss {
        cause: RecoveryCause::FormerBackup,
        lost_members: world.ordinals().collect(),
        base: find_writable_volume(world, world.ordinals()),
        source: RecoverySource::Backup,
        blocker: find_unchecked_volume(world).map(|ordinal| RecoveryBlocker::VolumeUnchecked { ordinal }),
    })
}

/// Somebody whose volume may hold data that nobody has looked at.
fn find_unchecked_volume(world: &World<'_>) -> Option<Ordinal> {
    let may_hold_data = |ordinal: &Ordinal| {
        let claim = world.observed.pvcs.get(ordinal);
        claim.is_none_or(|claim| claim.is_bound)
    };
    let mut unknown = world
        .ordinals()
        .filter(|ordinal| classify_data(world, *ordinal) == MemberDataState::Unknown);
    unknown.find(may_hold_data)
}

/// The only member: the backup is the only other copy.
fn assess_single_member(world: &World<'_>) -> Option<Loss> {
    let only = Ordinal(0);
    let hold = match classify_data(world, only) {
        MemberDataState::Serving | MemberDataState::Intact | MemberDataState::Unknown => return None,
        MemberDataState::NothingToRestore => Some(RecoveryBlocker::NothingToRestore),
        MemberDataState::Lost | MemberDataState::BackupExists => require_backup(world),
    };
    Some(Loss {
        cause: RecoveryCause::MemberLost,
        lost_members: vec![only],
        base: find_writable_volume(world, [only]),
        source: RecoverySource::Backup,
        blocker: hold,
    })
}

/// Members of whom a majority is needed.
fn assess_quorum(world: &World<'_>) -> Option<Loss> {
    let members = list_registered_members(world);
    let of = |what: &[MemberDataState]| -> Vec<Ordinal> {
        let all = members.iter().copied();
        all.filter(|n| what.contains(&classify_data(world, *n))).collect()
    };
    let lost = of(&[MemberDataState::Lost, MemberDataState::BackupExists, MemberDataState::NothingToRestore]);
    if members.len() - lost.len() >= quorum(members.len()) {
        return None;
    }
    let undecided = of(&[MemberDataState::Unknown]).first().copied();
    let survivors = of(&[MemberDataState::Serving, MemberDataState::Intact]);
    let (base, source) = match pick_best_survivor(world, &survivors) {
        Some(survivor) => (Some(survivor), RecoverySource::BestCopy),
        None => (find_writable_volume(world, world.ordinals()), RecoverySource::Backup),
    };
    let hold = match (undecided, source, survivors.first()) {
        (Some(ordinal), _, _) => Some(RecoveryBlocker::DataStateUnknown { ordinal }),
        (None, RecoverySource::BestCopy, _) => None,
        // Stopping it would end the newest copy there is.
        (None, RecoverySource::Backup, Some(&ordinal)) => Some(RecoveryBlocker::SurvivorAtRisk { ordinal }),
        (None, RecoverySource::Backup, None) => require_backup(world),
    };
    Some(Loss {
        cause: RecoveryCause::QuorumLost,
        lost_members: lost,
        base,
        source,
        blocker: hold,
    })
}

fn require_backup(world: &World<'_>) -> Option<RecoveryBlocker> {
    let none = world.desired.backup.is_none();
    none.then_some(RecoveryBlocker::NothingToRestore)
}

/// Those who are members, as far as their Leases tell: a pod that waits to be added has none. After a recovery only
/// those count who have given a sign of life since.
fn list_registered_members(world: &World<'_>) -> Vec<Ordinal> {
    let over = world.observed.recovery.finished_incident();
    let over = over.filter(|over| over.stage == RecoveryStage::Closed); // one that was given up has made nobody a member
    let counts = |ordinal: &Ordinal| {
        let lease = world.observed.leases.get(ordinal);
        lease.is_some_and(|lease| {
            lease.holder.is_some() && over.is_none_or(|over| is_alive_since(lease, over))
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
pub(in crate::decide) fn is_alive_since(lease: &ObservedMemberLease, over: &Incident) -> bool {
    let named = lease.holder.as_ref().and_then(|held| held.cluster_id);
    match (named, &over.cluster) {
        (Some(named), Some(made)) => named.to_string() == *made,
        _ => lease.renewed_at.is_some_and(|renewed| renewed > over.changed),
    }
}

/// The survivor with the newest data whose volume can be written.
fn pick_best_survivor(world: &World<'_>, survivors: &[Ordinal]) -> Option<Ordinal> {
    let answered = |ordinal: &Ordinal| match &world.observed.membership {
        ObservedMembership::NoQuorum { reachable: alive, .. } => alive.get(ordinal).copied(),
        ObservedMembership::Known(_) | ObservedMembership::NotQueried => None,
    };
    let found = |ordinal: &Ordinal| world.pod(*ordinal).and_then(|pod| pod.data_revision);
    let mut newest_first = survivors.to_vec();
    newest_first.sort_by_key(|one| std::cmp::Reverse(answered(one).or_else(|| found(one))));
    find_writable_volume(world, newest_first)
}

/// The first whose volume can be written.
fn find_writable_volume(world: &World<'_>, of: impl IntoIterator<Item = Ordinal>) -> Option<Ordinal> {
    of.into_iter().find(|ordinal| is_volume_writable(world, *ordinal))
}

/// Whether a volume can be written: it is there and stays.
pub(super) fn is_volume_writable(world: &World<'_>, ordinal: Ordinal) -> bool {
    let claim = world.observed.pvcs.get(&ordinal);
    claim.is_some_and(|claim| claim.is_bound && !claim.is_lost && !claim.is_deleting)
}

//! Assesses whether data is permanently lost, and selects the best remaining copy.

use crate::model::{
    InitFinding, ObservedMemberLease, ObservedMembership, Ordinal, RecoveryBlocker, World, quorum,
};
use mainstay_coordination::incident::{Incident, RecoveryCause, RecoverySource, RecoveryStage};

/// The state of the data of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberDataState {
    /// etcd answers, with or without quorum.
    Serving,
    /// The init check accepted the data; etcd does not answer. After a restart, most versions answer only with quorum.
    Intact,
    /// No usable data, proven by the init check or by the loss of the volume.
    Lost,
    /// No data and no cluster yet, but a backup of a former cluster exists.
    BackupExists,
    /// No data and no backup.
    NothingToRestore,
    /// Unknown: no report of the init check, or a refusal that needs a user.
    Unknown,
}

/// A proven loss of data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    pub(super) cause: RecoveryCause,
    pub(super) lost_members: Vec<Ordinal>,
    /// The member from which the new cluster is created; `None` when no volume can be written.
    pub(super) base: Option<Ordinal>,
    pub(super) source: RecoverySource,
    /// What blocks the recovery whatever its mode.
    pub(super) blocker: Option<RecoveryBlocker>,
}

/// Assesses the loss; `None` when nothing is lost or the loss is not proven.
pub(super) fn assess(world: &World<'_>) -> Option<Loss> {
    let is_known = matches!(world.observed.membership, ObservedMembership::Known(_));
    // A quorum repairs its members itself, and a hibernated cluster keeps its data on the volumes.
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
    let pvc = world.observed.pvcs.get(&ordinal);
    if pvc.is_some_and(|pvc| pvc.is_lost) {
        return MemberDataState::Lost;
    }
    let pod = world.pod(ordinal).filter(|pod| !pod.is_deleting);
    match pod.and_then(|pod| pod.finding) {
        Some(InitFinding::CanStart) => MemberDataState::Intact,
        Some(
            InitFinding::WaitingToJoin
            | InitFinding::NeedsRestore
            | InitFinding::Corrupt
            | InitFinding::Foreign,
        ) => MemberDataState::Lost,
        Some(InitFinding::BackupExists) => MemberDataState::BackupExists,
        Some(InitFinding::NothingToRestore) => MemberDataState::NothingToRestore,
        Some(InitFinding::Refused) | None => MemberDataState::Unknown,
    }
}

/// A cluster that was never created, while the store holds a backup of a former one.
fn assess_former_backup(world: &World<'_>) -> Option<Loss> {
    if world.is_bootstrapped() {
        return None;
    }
    let all: Vec<MemberDataState> = world.ordinals().map(|n| classify_data(world, n)).collect();
    // A member with data has bootstrapped already; the check of another one came too late.
    let no_member_has_data = !all
        .iter()
        .any(|one| matches!(one, MemberDataState::Serving | MemberDataState::Intact));
    let has_former_backup = all.contains(&MemberDataState::BackupExists) && no_member_has_data;
    has_former_backup.then(|| Loss {
        cause: RecoveryCause::FormerBackup,
        lost_members: world.ordinals().collect(),
        base: find_writable_volume(world, world.ordinals()),
        source: RecoverySource::Backup,
        blocker: find_unchecked_volume(world)
            .map(|ordinal| RecoveryBlocker::VolumeUnchecked { ordinal }),
    })
}

/// A member whose volume may hold data that is unchecked.
fn find_unchecked_volume(world: &World<'_>) -> Option<Ordinal> {
    // A PVC that was never bound holds no data.
    let may_hold_data = |ordinal: &Ordinal| {
        let pvc = world.observed.pvcs.get(ordinal);
        pvc.is_none_or(|pvc| pvc.is_bound)
    };
    let mut unknown = world
        .ordinals()
        .filter(|ordinal| classify_data(world, *ordinal) == MemberDataState::Unknown);
    unknown.find(may_hold_data)
}

/// The loss of a single-member cluster, where the backup is the only other copy.
fn assess_single_member(world: &World<'_>) -> Option<Loss> {
    let only = Ordinal(0);
    let start_blocker = match classify_data(world, only) {
        MemberDataState::Serving | MemberDataState::Intact | MemberDataState::Unknown => {
            return None;
        }
        MemberDataState::NothingToRestore => Some(RecoveryBlocker::NothingToRestore),
        MemberDataState::Lost | MemberDataState::BackupExists => require_backup(world),
    };
    Some(Loss {
        cause: RecoveryCause::MemberLost,
        lost_members: vec![only],
        base: find_writable_volume(world, [only]),
        source: RecoverySource::Backup,
        blocker: start_blocker,
    })
}

/// The loss of a quorum of members.
fn assess_quorum(world: &World<'_>) -> Option<Loss> {
    let members = list_registered_members(world);
    let select = |states: &[MemberDataState]| -> Vec<Ordinal> {
        let all = members.iter().copied();
        all.filter(|n| states.contains(&classify_data(world, *n)))
            .collect()
    };
    let lost_members = select(&[
        MemberDataState::Lost,
        MemberDataState::BackupExists,
        MemberDataState::NothingToRestore,
    ]);
    if members.len() - lost_members.len() >= quorum(members.len()) {
        return None;
    }
    let unknown = select(&[MemberDataState::Unknown]).first().copied();
    let survivors = select(&[MemberDataState::Serving, MemberDataState::Intact]);
    let (base, source) = match pick_best_survivor(world, &survivors) {
        Some(survivor) => (Some(survivor), RecoverySource::BestCopy),
        None => (
            find_writable_volume(world, world.ordinals()),
            RecoverySource::Backup,
        ),
    };
    let start_blocker = match (unknown, source, survivors.first()) {
        (Some(ordinal), _, _) => Some(RecoveryBlocker::DataStateUnknown { ordinal }),
        (None, RecoverySource::BestCopy, _) => None,
        // Its volume cannot be written and disappears with the pod: stopping it would lose the newest copy.
        (None, RecoverySource::Backup, Some(&ordinal)) => {
            Some(RecoveryBlocker::SurvivorAtRisk { ordinal })
        }
        (None, RecoverySource::Backup, None) => require_backup(world),
    };
    Some(Loss {
        cause: RecoveryCause::QuorumLost,
        lost_members,
        base,
        source,
        blocker: start_blocker,
    })
}

fn require_backup(world: &World<'_>) -> Option<RecoveryBlocker> {
    let none = world.desired.backup.is_none();
    none.then_some(RecoveryBlocker::NothingToRestore)
}

/// The members according to their Leases; a pod that waits to be added has no holder. After a recovery, only members that
/// renewed their Lease since then count.
fn list_registered_members(world: &World<'_>) -> Vec<Ordinal> {
    let finished = world.observed.recovery.finished_incident();
    let finished = finished.filter(|finished| finished.stage == RecoveryStage::Closed); // a failed recovery created no cluster
    let counts = |ordinal: &Ordinal| {
        let lease = world.observed.leases.get(ordinal);
        lease.is_some_and(|lease| {
            lease.holder.is_some()
                && finished.is_none_or(|finished| is_alive_since(lease, finished))
        })
    };
    let registered: Vec<Ordinal> = world.ordinals().filter(counts).collect();
    match (registered.is_empty(), finished) {
        (false, _) => registered,
        // The restored cluster starts with its base as the only member.
        (true, Some(finished)) => vec![Ordinal(finished.base)],
        (true, None) => world.ordinals().collect(),
    }
}

/// Whether a member has run since a recovery finished: its Lease names the cluster ID that the recovery created. The renewal
/// time decides only when one of the two IDs is unknown, because clocks differ.
pub(in crate::decide) fn is_alive_since(lease: &ObservedMemberLease, finished: &Incident) -> bool {
    let named = lease
        .holder
        .as_ref()
        .and_then(|registered| registered.cluster_id);
    match (named, &finished.cluster) {
        (Some(named), Some(created)) => named.to_string() == *created,
        _ => lease
            .renewed_at
            .is_some_and(|renewed| renewed > finished.changed),
    }
}

/// The survivor with the highest revision whose volume can be written.
fn pick_best_survivor(world: &World<'_>, survivors: &[Ordinal]) -> Option<Ordinal> {
    let etcd_revision = |ordinal: &Ordinal| match &world.observed.membership {
        ObservedMembership::NoQuorum {
            reachable: members, ..
        } => members.get(ordinal).copied(),
        ObservedMembership::Known(_) | ObservedMembership::NotQueried => None,
    };
    let checked_revision =
        |ordinal: &Ordinal| world.pod(*ordinal).and_then(|pod| pod.data_revision);
    let mut newest_first = survivors.to_vec();
    newest_first
        .sort_by_key(|one| std::cmp::Reverse(etcd_revision(one).or_else(|| checked_revision(one))));
    find_writable_volume(world, newest_first)
}

fn find_writable_volume(
    world: &World<'_>,
    candidates: impl IntoIterator<Item = Ordinal>,
) -> Option<Ordinal> {
    candidates
        .into_iter()
        .find(|ordinal| is_volume_writable(world, *ordinal))
}

/// Whether a Job can mount the volume: the PVC is bound, not lost and not terminating.
pub(super) fn is_volume_writable(world: &World<'_>, ordinal: Ordinal) -> bool {
    let pvc = world.observed.pvcs.get(&ordinal);
    pvc.is_some_and(|pvc| pvc.is_bound && !pvc.is_lost && !pvc.is_deleting)
}

//! Decides about a member as a pure function of the observed state. No other module decides.
//!
//! | data | cluster | configuration | backup | decision |
//! | --- | --- | --- | --- | --- |
//! | foreign, in use, removed | any | any | any | refuse |
//! | sound | does not list it; or is another cluster | any | any | refuse |
//! | sound | otherwise | one member | newer than the data, same history | restore required |
//! | sound | otherwise | one member | newer than the data, other or unknown history | refuse |
//! | sound | otherwise | otherwise | otherwise, also unreachable | start |
//! | corrupt | unreachable | one member | present | restore required |
//! | corrupt | unreachable | one member | unreachable | wait |
//! | corrupt | otherwise | otherwise | otherwise | refuse |
//! | missing | added it | any | any | join |
//! | missing | lists it as started; or does not list it | any | any | wait |
//! | missing | unreachable | new, listed | none or empty | bootstrap |
//! | missing | unreachable | new, listed | present | restore required |
//! | missing | unreachable | new, listed | unreachable | wait |
//! | missing | unreachable | new, not listed | any | wait |
//! | missing | unreachable | existing, one member | present | restore required |
//! | missing | unreachable | existing, one member | unreachable | wait |
//! | missing | unreachable | existing, one member | none or empty | refuse |
//! | missing | unreachable | existing, several members | any | wait |

use mainstay_verdict::{
    BackupRelation, BackupSummary, ClusterSummary, DataDirSummary, DataState, InitDecision,
    MemberRegistration, RefuseCause, RestoreCause, WaitCause,
};

/// The cluster as the configuration describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConfiguredCluster {
    pub(crate) state: InitialClusterState,
    /// Whether `initial-cluster` lists this member and no other.
    pub(crate) is_single_member: bool,
    /// Whether `initial-cluster` lists this member.
    pub(crate) is_listed: bool,
}

/// `initial-cluster-state` of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InitialClusterState {
    /// The cluster is still to be bootstrapped.
    New,
    /// The cluster exists, or existed.
    Existing,
}

/// Returns whether the decision depends on the backup, so that the store must be listed.
pub(crate) fn needs_backup(
    data: &DataDirSummary,
    cluster: &ClusterSummary,
    configured: ConfiguredCluster,
) -> bool {
    let is_unreachable = *cluster == ClusterSummary::Unreachable;
    match data.state {
        DataState::Foreign | DataState::InUse | DataState::Removed => false,
        // One of several members catches up from the others, so the backup does not matter.
        DataState::Sound => {
            configured.is_single_member && find_refuse_cause(data, cluster).is_none()
        }
        DataState::Corrupt => is_unreachable && configured.is_single_member,
        DataState::Missing => {
            is_unreachable
                && match configured.state {
                    InitialClusterState::New => configured.is_listed,
                    InitialClusterState::Existing => configured.is_single_member,
                }
        }
    }
}

/// Decides according to the table of the module.
pub(crate) fn decide(
    data: &DataDirSummary,
    cluster: &ClusterSummary,
    configured: ConfiguredCluster,
    backup: &BackupSummary,
) -> InitDecision {
    match data.state {
        DataState::Foreign => InitDecision::Refuse(RefuseCause::WrongVolume),
        DataState::InUse => InitDecision::Refuse(RefuseCause::DataInUse),
        DataState::Removed => InitDecision::Refuse(RefuseCause::Removed),
        DataState::Sound => decide_sound(data, cluster, configured, backup),
        DataState::Corrupt => decide_corrupt(cluster, configured, backup),
        DataState::Missing => decide_missing(cluster, configured, backup),
    }
}

fn decide_sound(
    data: &DataDirSummary,
    cluster: &ClusterSummary,
    configured: ConfiguredCluster,
    backup: &BackupSummary,
) -> InitDecision {
    if let Some(cause) = find_refuse_cause(data, cluster) {
        return InitDecision::Refuse(cause);
    }
    match backup {
        // A single member can only be compared with the backup; one of several catches up from the others.
        BackupSummary::Present { newest_revision } if configured.is_single_member => {
            if is_older_by_name(data, *newest_revision) {
                decide_compared(data.history)
            } else {
                InitDecision::Start
            }
        }
        // An unreachable store does not keep valid data from being served.
        _ => InitDecision::Start,
    }
}

/// Returns whether the names of the snapshots have a higher revision than the data can reach. That is a reason to
/// compare, not to act.
pub(crate) fn is_older_by_name(data: &DataDirSummary, newest_backup: i64) -> bool {
    data.highest_revision.unwrap_or(i64::MAX) < newest_backup
}

/// Valid data is replaced only if rows prove that the backup continues it.
fn decide_compared(relation: Option<BackupRelation>) -> InitDecision {
    match relation {
        Some(BackupRelation::Behind) => {
            InitDecision::RestoreRequired(RestoreCause::DataBehindBackup)
        }
        Some(BackupRelation::Diverged) => InitDecision::Refuse(RefuseCause::HistoryDiverged),
        Some(BackupRelation::Unknown) => InitDecision::Refuse(RefuseCause::HistoryUnknown),
        // No readable object is newer, or the store failed: neither keeps valid data from being served.
        Some(BackupRelation::Equal | BackupRelation::Ahead) | None => InitDecision::Start,
    }
}

/// Returns why the running cluster would not accept this data, if so. Without a leader its member list may be stale, so
/// it does not count.
fn find_refuse_cause(data: &DataDirSummary, cluster: &ClusterSummary) -> Option<RefuseCause> {
    let ClusterSummary::Found {
        cluster_id,
        has_leader: true,
        mine,
        ..
    } = cluster
    else {
        return None;
    };
    let own = data.cluster_id.as_ref()?;
    match mine {
        _ if own != cluster_id => Some(RefuseCause::OtherCluster),
        MemberRegistration::Absent => Some(RefuseCause::Removed),
        MemberRegistration::Added | MemberRegistration::Started => None,
    }
}

/// Restores only what has no other copy: one of several members is replaced through the running cluster instead.
fn decide_corrupt(
    cluster: &ClusterSummary,
    configured: ConfiguredCluster,
    backup: &BackupSummary,
) -> InitDecision {
    let is_only_copy = *cluster == ClusterSummary::Unreachable && configured.is_single_member;
    match backup {
        BackupSummary::Present { .. } if is_only_copy => {
            InitDecision::RestoreRequired(RestoreCause::DataCorrupt)
        }
        BackupSummary::Unreachable if is_only_copy => {
            InitDecision::Wait(WaitCause::StoreUnreachable)
        }
        _ => InitDecision::Refuse(RefuseCause::DataCorrupt),
    }
}

fn decide_missing(
    cluster: &ClusterSummary,
    configured: ConfiguredCluster,
    backup: &BackupSummary,
) -> InitDecision {
    match (cluster, configured.state) {
        (ClusterSummary::Found { mine, .. }, _) => match mine {
            MemberRegistration::Added => InitDecision::Join,
            // Raft forbids a member to come back without its log: it may have voted, and would forget it.
            MemberRegistration::Started => InitDecision::Wait(WaitCause::DataLost),
            MemberRegistration::Absent => InitDecision::Wait(WaitCause::NotAdded),
        },
        (ClusterSummary::Unreachable, InitialClusterState::New) if !configured.is_listed => {
            InitDecision::Wait(WaitCause::NotListed)
        }
        (ClusterSummary::Unreachable, InitialClusterState::New) => match backup {
            // Bootstrapping an empty cluster over a backup would continue its history with other data.
            BackupSummary::Present { .. } => {
                InitDecision::RestoreRequired(RestoreCause::BackupExists)
            }
            // The store may hold a backup: bootstrapping now would lose its data.
            BackupSummary::Unreachable => InitDecision::Wait(WaitCause::StoreUnreachable),
            BackupSummary::Unconfigured | BackupSummary::Empty | BackupSummary::NotAsked => {
                InitDecision::Bootstrap
            }
        },
        // The other members may have newer data than the backup.
        (ClusterSummary::Unreachable, InitialClusterState::Existing)
            if !configured.is_single_member =>
        {
            InitDecision::Wait(WaitCause::ClusterUnreachable)
        }
        (ClusterSummary::Unreachable, InitialClusterState::Existing) => match backup {
            BackupSummary::Present { .. } => {
                InitDecision::RestoreRequired(RestoreCause::DataMissing)
            }
            BackupSummary::Unreachable => InitDecision::Wait(WaitCause::StoreUnreachable),
            // An empty start would hide the data loss: an operator must accept it.
            BackupSummary::Unconfigured | BackupSummary::Empty | BackupSummary::NotAsked => {
                InitDecision::Refuse(RefuseCause::NothingToRestore)
            }
        },
    }
}

/// Returns whether waiting may change the decision. Lost data is reported at once: the controller must replace the member.
pub(crate) fn should_wait(decision: InitDecision) -> bool {
    match decision {
        InitDecision::Wait(cause) => match cause {
            WaitCause::NotAdded
            | WaitCause::NotListed
            | WaitCause::ClusterUnreachable
            | WaitCause::StoreUnreachable => true,
            WaitCause::DataLost => false,
        },
        InitDecision::Bootstrap
        | InitDecision::Start
        | InitDecision::Join
        | InitDecision::RestoreRequired(_)
        | InitDecision::Refuse(_) => false,
    }
}

#[cfg(test)]
mod tests;

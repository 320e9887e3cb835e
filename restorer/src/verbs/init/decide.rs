//! What is to happen to a member, as a function of what was seen. The only place that decides.
//!
//! | data | cluster | configuration | backup | decision |
//! | --- | --- | --- | --- | --- |
//! | foreign, in use, removed | any | any | any | refuse |
//! | sound | knows it no more; or is another one | any | any | refuse |
//! | sound | otherwise | one member | newer than the data | restore required |
//! | sound | otherwise | otherwise | otherwise, also unreachable | start |
//! | corrupt | unreachable | one member | present | restore required |
//! | corrupt | unreachable | one member | unreachable | wait |
//! | corrupt | otherwise | otherwise | otherwise | refuse |
//! | missing | added it | any | any | join |
//! | missing | had it; or does not know it | any | any | wait |
//! | missing | unreachable | new, listed | none or empty | bootstrap |
//! | missing | unreachable | new, listed | present | restore required |
//! | missing | unreachable | new, listed | unreachable | wait |
//! | missing | unreachable | new, not listed | any | wait |
//! | missing | unreachable | existing, one member | present | restore required |
//! | missing | unreachable | existing, one member | unreachable | wait |
//! | missing | unreachable | existing, one member | none or empty | refuse |
//! | missing | unreachable | existing, several members | any | wait |

use mainstay_verdict::{
    BackupSummary, ClusterSummary, DataDirSummary, DataState, InitDecision, MemberRegistration, RefuseCause, RestoreCause, WaitCause,
};

/// What the configuration says about the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfiguredCluster {
    /// Whether there is one already.
    pub state: InitialClusterState,
    /// Whether this member is the only one.
    pub is_single_member: bool,
    /// Whether this member is listed among those a new cluster begins with.
    pub is_listed: bool,
}

/// Whether there is a cluster already, in etcd's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialClusterState {
    /// None yet.
    New,
    /// There is, or was, one.
    Existing,
}

/// Whether the backup has a say, so that the store has to be asked.
pub fn needs_backup(data: &DataDirSummary, cluster: &ClusterSummary, configured: ConfiguredCluster) -> bool {
    let is_unreachable = *cluster == ClusterSummary::Unreachable;
    match data.state {
        DataState::Foreign | DataState::InUse | DataState::Removed => false,
        DataState::Sound => configured.is_single_member && find_refuse_cause(data, cluster).is_none(),
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

/// Decides.
pub fn decide(data: &DataDirSummary, cluster: &ClusterSummary, configured: ConfiguredCluster, backup: &BackupSummary) -> InitDecision {
    match data.state {
        DataState::Foreign => InitDecision::Refuse(RefuseCause::WrongVolume),
        DataState::InUse => InitDecision::Refuse(RefuseCause::DataInUse),
        DataState::Removed => InitDecision::Refuse(RefuseCause::Removed),
        DataState::Sound => decide_sound(data, cluster, configured, backup),
        DataState::Corrupt => decide_corrupt(cluster, configured, backup),
        DataState::Missing => decide_missing(cluster, configured, backup),
    }
}

/// Members of a larger cluster catch up from each other; whoever is alone has only the backup to compare with. A store
/// that cannot be asked does not keep sound data from being served.
fn decide_sound(data: &DataDirSummary, cluster: &ClusterSummary, configured: ConfiguredCluster, backup: &BackupSummary) -> InitDecision {
    if let Some(cause) = find_refuse_cause(data, cluster) {
        return InitDecision::Refuse(cause);
    }
    match backup {
        BackupSummary::Present { newest_revision } if configured.is_single_member => {
            let reach = data.highest_revision.unwrap_or(i64::MAX);
            if reach < *newest_revision {
                InitDecision::RestoreRequired(RestoreCause::DataBehindBackup)
            } else {
                InitDecision::Start
            }
        }
        _ => InitDecision::Start,
    }
}

/// Why a running cluster would not take this data, if so. One without a leader may be mistaken about its members.
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

fn decide_corrupt(cluster: &ClusterSummary, configured: ConfiguredCluster, backup: &BackupSummary) -> InitDecision {
    let is_only_copy = *cluster == ClusterSummary::Unreachable && configured.is_single_member;
    match backup {
        BackupSummary::Present { .. } if is_only_copy => {
            InitDecision::RestoreRequired(RestoreCause::DataCorrupt)
        }
        BackupSummary::Unreachable if is_only_copy => InitDecision::Wait(WaitCause::StoreUnreachable),
        _ => InitDecision::Refuse(RefuseCause::DataCorrupt),
    }
}

fn decide_missing(cluster: &ClusterSummary, configured: ConfiguredCluster, backup: &BackupSummary) -> InitDecision {
    match (cluster, configured.state) {
        (ClusterSummary::Found { mine, .. }, _) => match mine {
            MemberRegistration::Added => InitDecision::Join,
            MemberRegistration::Started => InitDecision::Wait(WaitCause::DataLost),
            MemberRegistration::Absent => InitDecision::Wait(WaitCause::NotAdded),
        },
        (ClusterSummary::Unreachable, InitialClusterState::New) if !configured.is_listed => {
            InitDecision::Wait(WaitCause::NotListed)
        }
        (ClusterSummary::Unreachable, InitialClusterState::New) => match backup {
            BackupSummary::Present { .. } => InitDecision::RestoreRequired(RestoreCause::BackupExists),
            BackupSummary::Unreachable => InitDecision::Wait(WaitCause::StoreUnreachable),
            BackupSummary::Unconfigured | BackupSummary::Empty | BackupSummary::NotAsked => InitDecision::Bootstrap,
        },
        (ClusterSummary::Unreachable, InitialClusterState::Existing) if !configured.is_single_member => {
            InitDecision::Wait(WaitCause::ClusterUnreachable)
        }
        (ClusterSummary::Unreachable, InitialClusterState::Existing) => match backup {
            BackupSummary::Present { .. } => InitDecision::RestoreRequired(RestoreCause::DataMissing),
            BackupSummary::Unreachable => InitDecision::Wait(WaitCause::StoreUnreachable),
            BackupSummary::Unconfigured | BackupSummary::Empty | BackupSummary::NotAsked => {
                InitDecision::Refuse(RefuseCause::NothingToRestore)
            }
        },
    }
}

/// Whether waiting a little may change the decision. Lost data is for the controller to hear of at once.
pub fn should_wait(decision: InitDecision) -> bool {
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

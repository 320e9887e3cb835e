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
    Backup, Cluster, Data, DataState, Decision, Mine, RefuseCause, RestoreCause, WaitCause,
};

/// What the configuration says about the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configured {
    /// Whether there is one already.
    pub state: ClusterState,
    /// Whether this member is the only one.
    pub is_alone: bool,
    /// Whether this member is listed among those a new cluster begins with.
    pub is_listed: bool,
}

/// Whether there is a cluster already, in etcd's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    /// None yet.
    New,
    /// There is, or was, one.
    Existing,
}

/// Whether the backup has a say, so that the store has to be asked.
pub fn needs_backup(data: &Data, cluster: &Cluster, configured: Configured) -> bool {
    let is_unreachable = *cluster == Cluster::Unreachable;
    match data.state {
        DataState::Foreign | DataState::InUse | DataState::Removed => false,
        DataState::Sound => configured.is_alone && contradiction(data, cluster).is_none(),
        DataState::Corrupt => is_unreachable && configured.is_alone,
        DataState::Missing => {
            is_unreachable
                && match configured.state {
                    ClusterState::New => configured.is_listed,
                    ClusterState::Existing => configured.is_alone,
                }
        }
    }
}

/// Decides.
pub fn decide(data: &Data, cluster: &Cluster, configured: Configured, backup: &Backup) -> Decision {
    match data.state {
        DataState::Foreign => Decision::Refuse(RefuseCause::WrongVolume),
        DataState::InUse => Decision::Refuse(RefuseCause::DataInUse),
        DataState::Removed => Decision::Refuse(RefuseCause::Removed),
        DataState::Sound => sound(data, cluster, configured, backup),
        DataState::Corrupt => corrupt(cluster, configured, backup),
        DataState::Missing => missing(cluster, configured, backup),
    }
}

/// Members of a larger cluster catch up from each other; whoever is alone has only the backup to compare with. A store
/// that cannot be asked does not keep sound data from being served.
fn sound(data: &Data, cluster: &Cluster, configured: Configured, backup: &Backup) -> Decision {
    if let Some(cause) = contradiction(data, cluster) {
        return Decision::Refuse(cause);
    }
    match backup {
        Backup::Present { newest_revision } if configured.is_alone => {
            let reach = data.highest_revision.unwrap_or(i64::MAX);
            if reach < *newest_revision {
                Decision::RestoreRequired(RestoreCause::DataBehindBackup)
            } else {
                Decision::Start
            }
        }
        _ => Decision::Start,
    }
}

/// Why a running cluster would not take this data, if so. One without a leader may be mistaken about its members.
fn contradiction(data: &Data, cluster: &Cluster) -> Option<RefuseCause> {
    let Cluster::Found {
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
        Mine::Absent => Some(RefuseCause::Removed),
        Mine::Added | Mine::Started => None,
    }
}

fn corrupt(cluster: &Cluster, configured: Configured, backup: &Backup) -> Decision {
    let is_only_copy = *cluster == Cluster::Unreachable && configured.is_alone;
    match backup {
        Backup::Present { .. } if is_only_copy => {
            Decision::RestoreRequired(RestoreCause::DataCorrupt)
        }
        Backup::Unreachable if is_only_copy => Decision::Wait(WaitCause::StoreUnreachable),
        _ => Decision::Refuse(RefuseCause::DataCorrupt),
    }
}

fn missing(cluster: &Cluster, configured: Configured, backup: &Backup) -> Decision {
    match (cluster, configured.state) {
        (Cluster::Found { mine, .. }, _) => match mine {
            Mine::Added => Decision::Join,
            Mine::Started => Decision::Wait(WaitCause::DataLost),
            Mine::Absent => Decision::Wait(WaitCause::NotAdded),
        },
        (Cluster::Unreachable, ClusterState::New) if !configured.is_listed => {
            Decision::Wait(WaitCause::NotListed)
        }
        (Cluster::Unreachable, ClusterState::New) => match backup {
            Backup::Present { .. } => Decision::RestoreRequired(RestoreCause::BackupExists),
            Backup::Unreachable => Decision::Wait(WaitCause::StoreUnreachable),
            Backup::Unconfigured | Backup::Empty | Backup::NotAsked => Decision::Bootstrap,
        },
        (Cluster::Unreachable, ClusterState::Existing) if !configured.is_alone => {
            Decision::Wait(WaitCause::ClusterUnreachable)
        }
        (Cluster::Unreachable, ClusterState::Existing) => match backup {
            Backup::Present { .. } => Decision::RestoreRequired(RestoreCause::DataMissing),
            Backup::Unreachable => Decision::Wait(WaitCause::StoreUnreachable),
            Backup::Unconfigured | Backup::Empty | Backup::NotAsked => {
                Decision::Refuse(RefuseCause::NothingToRestore)
            }
        },
    }
}

/// Whether waiting a little may change the decision. Lost data is for the controller to hear of at once.
pub fn is_worth_waiting(decision: Decision) -> bool {
    match decision {
        Decision::Wait(cause) => match cause {
            WaitCause::NotAdded
            | WaitCause::NotListed
            | WaitCause::ClusterUnreachable
            | WaitCause::StoreUnreachable => true,
            WaitCause::DataLost => false,
        },
        Decision::Bootstrap
        | Decision::Start
        | Decision::Join
        | Decision::RestoreRequired(_)
        | Decision::Refuse(_) => false,
    }
}

#[cfg(test)]
mod tests;

//! The recorded recovery of lost data: cause, progress and outcome.
//!
//! There is at most one at a time; the last one is kept. Only the lock holder writes it, in the same write
//! that checks the lock.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the entry.
pub const ENTRY: &str = "incident";

/// A recovery of lost data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    /// Identifier, unique within one document.
    pub id: String,
    /// Reason for the recovery.
    pub cause: RecoveryCause,
    /// Progress of the recovery.
    pub stage: RecoveryStage,
    /// Ordinal of the member whose volume is written.
    pub base: u32,
    /// Number of pods after the recovery.
    pub size: u32,
    /// Source of the data.
    pub source: RecoverySource,
    /// The restore point.
    #[serde(default, skip_serializing_if = "RecoveryTarget::is_newest")]
    pub target: RecoveryTarget,
    /// Cluster token of the new cluster. A new one for each recovery, so that no member of the old cluster
    /// can join.
    pub token: String,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Start time, by the writer's clock.
    pub started: Timestamp,
    /// Time of the last stage change, by the writer's clock.
    pub changed: Timestamp,
    /// Revision of the restored data; `None` until it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// ID of the new cluster in etcd's notation; `None` until the data is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Description of the last event.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Fields added by later versions, preserved on write.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Reason for a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecoveryCause {
    /// The only member lost its data.
    MemberLost,
    /// So many members lost their data that quorum is lost.
    QuorumLost,
    /// The cluster is new and a backup of an earlier cluster with the same name exists.
    FormerBackup,
    /// A user requested it.
    Requested,
}

/// Progress of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecoveryStage {
    /// Pods are stopped and volumes are written.
    Restoring,
    /// The volumes are written; pods start and are checked.
    Restored,
    /// The recovery is cancelled; pods start with their previous data.
    Abandoned,
    /// Finished successfully.
    Closed,
    /// Finished without success.
    Failed,
}

/// Source of the restored data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecoverySource {
    /// The backup.
    Backup,
    /// The data directory on the volume if it is valid and at least as new as the backup, otherwise the backup.
    BestCopy,
}

/// The restore point in a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecoveryTarget {
    /// The newest revision.
    #[default]
    Newest,
    /// Up to and including a revision.
    Revision(i64),
    /// The state at a point in time.
    Time(Timestamp),
    /// One full snapshot, without deltas.
    Full {
        /// Name of the object.
        name: String,
        /// Its last revision.
        revision: i64,
    },
}

impl RecoveryTarget {
    fn is_newest(&self) -> bool {
        *self == Self::Newest
    }
}

impl Incident {
    /// Whether the recovery is still in progress.
    pub fn is_open(&self) -> bool {
        match self.stage {
            RecoveryStage::Restoring | RecoveryStage::Restored | RecoveryStage::Abandoned => true,
            RecoveryStage::Closed | RecoveryStage::Failed => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn incident_json_format_is_stable() {
        let text = json!({
            "id": "5f3a", "cause": "quorumLost", "stage": "restoring", "base": 1, "size": 3,
            "source": "bestCopy", "token": "restored-5f3a", "attempt": 1,
            "started": "2026-11-16T12:00:00Z", "changed": "2026-11-16T12:00:00Z",
        });
        let incident: Incident = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(
            (incident.cause, incident.source),
            (RecoveryCause::QuorumLost, RecoverySource::BestCopy)
        );
        assert_eq!(serde_json::to_value(&incident).unwrap(), text);
    }

    #[test]
    fn fields_of_later_versions_are_preserved() {
        let text = json!({
            "id": "5f3a", "cause": "requested", "stage": "closed", "base": 0, "size": 1,
            "source": "backup", "target": {"revision": 7}, "token": "t", "attempt": 2,
            "started": "2026-11-16T12:00:00Z", "changed": "2026-11-16T12:00:01Z", "mood": "good",
        });
        let incident: Incident = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(incident.target, RecoveryTarget::Revision(7));
        assert!(!incident.is_open());
        assert_eq!(serde_json::to_value(&incident).unwrap(), text);
    }
}

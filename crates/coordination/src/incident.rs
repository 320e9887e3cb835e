//! A recovery of lost data as it is written down: what is being done, how far it is, and how it ended.
//!
//! One at a time, and the last one stays for whoever wants to know how it ended. It is written only by the holder of the
//! lock, in the same write that checks the lock.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The entry that holds it.
pub const ENTRY: &str = "incident";

/// A recovery of lost data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    /// Identifies it; no two of one document are the same.
    pub id: String,
    /// Why.
    pub cause: RecoveryCause,
    /// How far it is.
    pub stage: RecoveryStage,
    /// The place of the member whose volume is written.
    pub base: u32,
    /// How many pods there are to be afterwards.
    pub size: u32,
    /// Where the data comes from.
    pub source: RecoverySource,
    /// Which state of the backup.
    #[serde(default, skip_serializing_if = "RecoveryTarget::is_newest")]
    pub target: RecoveryTarget,
    /// What the identities of the new cluster are made of. It is fresh, so that no member of the old one fits.
    pub token: String,
    /// How often it was tried, from 1.
    pub attempt: u32,
    /// When it was decided, by the writer's clock.
    pub started: Timestamp,
    /// When the stage last became another one, by the writer's clock.
    pub changed: Timestamp,
    /// The revision etcd begins with, once the data is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// The identity of the new cluster, as etcd prints it, once the data is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// What happened last, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What later versions add.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Why data is recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecoveryCause {
    /// The only member has lost its data.
    MemberLost,
    /// More members have lost their data than the others can do without.
    QuorumLost,
    /// The cluster is new, and a former one of its name has left a backup.
    FormerBackup,
    /// Somebody asked for it.
    Requested,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecoveryStage {
    /// Pods are stopped, volumes are written.
    Restoring,
    /// The volumes are written; pods start and are looked at.
    Restored,
    /// It is given up: pods start with what they had.
    Abandoned,
    /// It is over and went well.
    Closed,
    /// It is over and was given up.
    Failed,
}

/// Where the data comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecoverySource {
    /// The backup.
    Backup,
    /// The directory on the volume where it is sound and at least as new as the backup, else the backup.
    BestCopy,
}

/// Which state of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecoveryTarget {
    /// The newest.
    #[default]
    Newest,
    /// Up to and with a revision.
    Revision(i64),
    /// What was current at a moment.
    Time(Timestamp),
    /// A full snapshot alone.
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
    /// Whether it goes on.
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
    fn the_words_on_the_wire_are_an_interface() {
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
    fn what_a_later_version_adds_survives() {
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

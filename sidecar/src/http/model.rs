//! The JSON of responses. Snapshots have the fields of etcd-backup-restore, including its misspelling of
//! `immutabilityExpriyTime`.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, SnapshotObject};
use mainstay_archive::chain::list_chains;
use mainstay_archive::layout::LayoutVersion;
use mainstay_archive::name::{SnapshotKind, SnapshotName};
use serde::Serialize;

use crate::state::{BackupFailure, MemberStatus, SidecarRole, SidecarState, StoredSnapshot};

/// Go's JSON form of a zero time.
const GO_ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// A snapshot in the JSON that clients of etcd-backup-restore read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SnapshotResponse {
    kind: &'static str,
    start_revision: i64,
    last_revision: i64,
    created_on: Timestamp,
    snap_dir: String,
    snap_name: String,
    is_chunk: bool,
    prefix: String,
    compression_suffix: String,
    is_final: bool,
    #[serde(rename = "versionID")]
    version_id: &'static str,
    #[serde(rename = "immutabilityExpriyTime")]
    immutable_until: &'static str,
}

impl SnapshotResponse {
    fn new(name: &SnapshotName, key: &str, layout: LayoutVersion) -> Self {
        let text = name.to_string();
        // The listed key, not `name.to_string()`: another writer may have padded the revisions differently.
        let (folder, snap_name) = key.rsplit_once('/').unwrap_or(("", &text));
        let (prefix, snap_dir) = match layout {
            LayoutVersion::V2 => (folder, ""),
            LayoutVersion::V1 => folder.rsplit_once('/').unwrap_or((folder, "")),
        };
        let suffix = name.compression.suffix();
        Self {
            kind: match name.kind {
                SnapshotKind::Full => "Full",
                SnapshotKind::Delta => "Incr",
            },
            start_revision: name.start.0,
            last_revision: name.last.0,
            created_on: name.created_at(),
            snap_dir: snap_dir.to_owned(),
            snap_name: snap_name.to_owned(),
            is_chunk: false,
            prefix: prefix.to_owned(),
            compression_suffix: suffix.map(|s| format!(".{s}")).unwrap_or_default(),
            is_final: name.is_final,
            version_id: "",
            immutable_until: GO_ZERO_TIME,
        }
    }
}

impl From<&StoredSnapshot> for SnapshotResponse {
    fn from(stored: &StoredSnapshot) -> Self {
        Self::new(&stored.name, &stored.key, LayoutVersion::V2)
    }
}

impl From<&SnapshotObject> for SnapshotResponse {
    fn from(object: &SnapshotObject) -> Self {
        Self::new(&object.name, &object.key, object.layout)
    }
}

/// The latest full snapshot and the deltas based on it; `null` for none, as etcd-backup-restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LatestResponse {
    full_snapshot: Option<SnapshotResponse>,
    delta_snapshots: Option<Vec<SnapshotResponse>>,
}

impl From<&Catalogue> for LatestResponse {
    fn from(catalogue: &Catalogue) -> Self {
        let newest = list_chains(catalogue).pop();
        let deltas = newest.iter().flat_map(|chain| &chain.deltas);
        let deltas: Vec<SnapshotResponse> = deltas.map(SnapshotResponse::from).collect();
        let base = newest.as_ref().and_then(|chain| chain.base.as_ref());
        Self {
            full_snapshot: base.map(SnapshotResponse::from),
            delta_snapshots: Some(deltas).filter(|deltas| !deltas.is_empty()),
        }
    }
}

/// Response of `/status`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusResponse {
    version: &'static str,
    uptime_seconds: u64,
    standing: SidecarRole,
    etcd: EtcdInfo,
    store: StoreInfo,
    captured: Option<i64>,
    captured_at: Option<Timestamp>,
    lag: Option<CaptureLag>,
    last_full: Option<SnapshotResponse>,
    last_delta: Option<SnapshotResponse>,
    delta_checked_at: Option<Timestamp>,
    full_under_way: bool,
    trouble: Option<FailureInfo>,
}

/// Last reported status of this sidecar's member.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EtcdInfo {
    answers: bool,
    #[serde(flatten)]
    details: Option<MemberInfo>,
}

/// Absent until the member reported once.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MemberInfo {
    member: String,
    cluster: String,
    leader: Option<String>,
    term: u64,
    revision: i64,
    is_learner: bool,
    db_bytes: u64,
    db_bytes_in_use: u64,
    version: String,
    errors: Vec<String>,
    at: Timestamp,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StoreInfo {
    is_configured: bool,
}

/// Lag of the capture since etcd; only while leading.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct CaptureLag {
    revisions: i64,
    seconds: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FailureInfo {
    class: &'static str,
    text: String,
    since: Timestamp,
}

impl StatusResponse {
    pub(super) fn new(state: SidecarState, now: Timestamp, uptime: Duration) -> Self {
        let lag = CaptureLag::new(&state, now);
        let SidecarState {
            role: standing,
            member_status,
            is_etcd_reachable,
            has_store,
            captured,
            captured_at,
            last_full,
            last_delta,
            deltas_since_full: _, // published in the Lease instead
            delta_checked_at,
            is_full_running: full_under_way,
            failure,
            history: _, // the metric of frozen retention reports what follows from it
        } = state;
        Self {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: uptime.as_secs(),
            standing,
            etcd: EtcdInfo {
                answers: is_etcd_reachable,
                details: member_status.map(MemberInfo::from),
            },
            store: StoreInfo {
                is_configured: has_store,
            },
            captured: captured.map(|revision| revision.0),
            captured_at,
            lag,
            last_full: last_full.as_ref().map(SnapshotResponse::from),
            last_delta: last_delta.as_ref().map(SnapshotResponse::from),
            delta_checked_at,
            full_under_way,
            trouble: failure.map(FailureInfo::from),
        }
    }
}

impl CaptureLag {
    fn new(state: &SidecarState, now: Timestamp) -> Option<Self> {
        let (captured, observed) = (state.captured?, state.member_status.as_ref()?);
        let revisions = observed.revision.0.saturating_sub(captured.0).max(0);
        let elapsed = |at: Timestamp| now.duration_since(at).as_secs_f64().max(0.0);
        let since = state.captured_at.filter(|_| revisions > 0);
        Some(Self {
            revisions,
            seconds: since.map_or(0.0, elapsed),
        })
    }
}

impl From<MemberStatus> for MemberInfo {
    fn from(observed: MemberStatus) -> Self {
        Self {
            member: observed.member.to_string(),
            cluster: observed.cluster.to_string(),
            leader: observed.leader.map(|leader| leader.to_string()),
            term: observed.term,
            revision: observed.revision.0,
            is_learner: observed.is_learner,
            db_bytes: observed.db_bytes,
            db_bytes_in_use: observed.db_bytes_in_use,
            version: observed.version,
            errors: observed.errors,
            at: observed.observed_at,
        }
    }
}

impl From<BackupFailure> for FailureInfo {
    fn from(trouble: BackupFailure) -> Self {
        let BackupFailure {
            class,
            message: text,
            since,
        } = trouble;
        Self { class, text, since }
    }
}

#[cfg(test)]
mod tests {
    use mainstay_archive::catalogue::ListedObject;
    use mainstay_ids::Revision;
    use serde_json::{Value, json};

    use super::*;

    fn latest_json(keys: &[&str]) -> Value {
        let listed = keys.iter().map(|key| ListedObject {
            key: (*key).to_owned(),
            size: 1,
            modified: Timestamp::UNIX_EPOCH,
        });
        let catalogue = Catalogue::from_listing("a/b", listed.collect());
        serde_json::to_value(LatestResponse::from(&catalogue)).unwrap()
    }

    #[test]
    fn snapshot_json_has_the_etcd_backup_restore_fields() {
        let found = latest_json(&["a/b/v2/Full-00000000-00000695-1794795243.gz.final"]);
        let expected = json!({
            "kind": "Full",
            "startRevision": 0,
            "lastRevision": 695,
            "createdOn": "2026-11-16T02:14:03Z",
            "snapDir": "",
            "snapName": "Full-00000000-00000695-1794795243.gz.final",
            "isChunk": false,
            "prefix": "a/b/v2",
            "compressionSuffix": ".gz",
            "isFinal": true,
            "versionID": "",
            "immutabilityExpriyTime": "0001-01-01T00:00:00Z",
        });
        assert_eq!(found["fullSnapshot"], expected);
        assert_eq!(found["deltaSnapshots"], Value::Null);
    }

    #[test]
    fn v1_layout_reports_the_snapshot_directory() {
        let found = latest_json(&["a/b/v1/Backup-5/Full-00000000-00000010-5"]);
        let full = &found["fullSnapshot"];
        assert_eq!(
            (&full["prefix"], &full["snapDir"]),
            (&json!("a/b/v1"), &json!("Backup-5"))
        );
        assert_eq!(full["compressionSuffix"], "");
    }

    #[test]
    fn latest_is_the_newest_full_snapshot_and_its_deltas() {
        let found = latest_json(&[
            "a/b/v2/Full-00000000-00000010-1.gz",
            "a/b/v2/Incr-00000011-00000020-2.gz",
            "a/b/v2/Full-00000000-00000020-3.gz",
            "a/b/v2/Incr-00000021-00000030-4.gz",
            "a/b/v2/Incr-00000031-00000040-5.gz",
        ]);
        assert_eq!(found["fullSnapshot"]["lastRevision"], 20);
        let deltas = found["deltaSnapshots"].as_array().unwrap();
        let starts: Vec<_> = deltas.iter().map(|d| &d["startRevision"]).collect();
        assert_eq!(starts, [21, 31]);
    }

    #[test]
    fn empty_store_has_no_latest_snapshots() {
        let nothing = json!({ "fullSnapshot": null, "deltaSnapshots": null });
        assert_eq!(latest_json(&[]), nothing);
    }

    #[test]
    fn lag_is_zero_once_all_revisions_are_captured() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut state = SidecarState {
            captured: Some(Revision(90)),
            captured_at: Some(at(100)),
            ..SidecarState::default()
        };
        assert_eq!(
            CaptureLag::new(&state, at(130)),
            None,
            "no status of etcd yet"
        );
        let observed = |revision| MemberStatus {
            revision: Revision(revision),
            observed_at: at(129),
            ..MemberStatus::default()
        };
        state.member_status = Some(observed(100));
        let lag = CaptureLag {
            revisions: 10,
            seconds: 30.0,
        };
        assert_eq!(CaptureLag::new(&state, at(130)), Some(lag));
        state.member_status = Some(observed(90));
        let no_lag = CaptureLag {
            revisions: 0,
            seconds: 0.0,
        };
        assert_eq!(CaptureLag::new(&state, at(130)), Some(no_lag));
    }
}

//! The JSON of answers. Snapshots have the peer's fields, one of them misspelt as the peer has it.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, Object};
use mainstay_archive::chain::chains;
use mainstay_archive::layout::Layout;
use mainstay_archive::name::{Kind, SnapshotName};
use serde::Serialize;

use crate::state::{Sighting, Standing, State, Stored, Trouble};

/// How Go writes a time that was never set.
const NO_TIME: &str = "0001-01-01T00:00:00Z";

/// A snapshot as the peer's clients read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Snapshot {
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

impl Snapshot {
    fn new(name: &SnapshotName, key: &str, layout: Layout) -> Self {
        let text = name.to_string();
        // The key as found: a name may have been written with other padding than we would.
        let (folder, snap_name) = key.rsplit_once('/').unwrap_or(("", &text));
        let (prefix, snap_dir) = match layout {
            Layout::V2 => (folder, ""),
            Layout::V1 => folder.rsplit_once('/').unwrap_or((folder, "")),
        };
        let suffix = name.compression.suffix();
        Self {
            kind: match name.kind {
                Kind::Full => "Full",
                Kind::Delta => "Incr",
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
            immutable_until: NO_TIME,
        }
    }
}

impl From<&Stored> for Snapshot {
    fn from(stored: &Stored) -> Self {
        Self::new(&stored.name, &stored.key, Layout::V2)
    }
}

impl From<&Object> for Snapshot {
    fn from(object: &Object) -> Self {
        Self::new(&object.name, &object.key, object.layout)
    }
}

/// The newest full snapshot and the deltas behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Latest {
    full_snapshot: Option<Snapshot>,
    delta_snapshots: Option<Vec<Snapshot>>,
}

impl From<&Catalogue> for Latest {
    fn from(catalogue: &Catalogue) -> Self {
        let newest = chains(catalogue).pop();
        let deltas = newest.iter().flat_map(|chain| &chain.deltas);
        let deltas: Vec<Snapshot> = deltas.map(Snapshot::from).collect();
        let base = newest.as_ref().and_then(|chain| chain.base.as_ref());
        Self {
            full_snapshot: base.map(Snapshot::from),
            delta_snapshots: Some(deltas).filter(|deltas| !deltas.is_empty()),
        }
    }
}

/// What `/status` tells.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    version: &'static str,
    uptime_seconds: u64,
    standing: Standing,
    etcd: Etcd,
    store: Store,
    captured: Option<i64>,
    captured_at: Option<Timestamp>,
    lag: Option<Lag>,
    last_full: Option<Snapshot>,
    last_delta: Option<Snapshot>,
    delta_checked_at: Option<Timestamp>,
    full_under_way: bool,
    trouble: Option<Ailment>,
}

/// What the own member said last.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Etcd {
    answers: bool,
    #[serde(flatten)]
    seen: Option<Seen>,
}

/// See [`Etcd`].
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
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
struct Store {
    is_configured: bool,
}

/// How far the capture is behind etcd, while leading.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Lag {
    revisions: i64,
    seconds: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Ailment {
    class: &'static str,
    text: String,
    since: Timestamp,
}

impl Status {
    pub(super) fn new(known: State, now: Timestamp, uptime: Duration) -> Self {
        let lag = Lag::new(&known, now);
        let State {
            standing,
            sighting,
            etcd_answers,
            has_store,
            captured,
            captured_at,
            last_full,
            last_delta,
            piled_up: _, // told in the Lease
            delta_checked_at,
            full_under_way,
            trouble,
        } = known;
        Self {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: uptime.as_secs(),
            standing,
            etcd: Etcd {
                answers: etcd_answers,
                seen: sighting.map(Seen::from),
            },
            store: Store {
                is_configured: has_store,
            },
            captured: captured.map(|revision| revision.0),
            captured_at,
            lag,
            last_full: last_full.as_ref().map(Snapshot::from),
            last_delta: last_delta.as_ref().map(Snapshot::from),
            delta_checked_at,
            full_under_way,
            trouble: trouble.map(Ailment::from),
        }
    }
}

impl Lag {
    fn new(known: &State, now: Timestamp) -> Option<Self> {
        let (captured, seen) = (known.captured?, known.sighting.as_ref()?);
        let revisions = seen.revision.0.saturating_sub(captured.0).max(0);
        let waited = |at: Timestamp| now.duration_since(at).as_secs_f64().max(0.0);
        let behind = known.captured_at.filter(|_| revisions > 0);
        Some(Self {
            revisions,
            seconds: behind.map_or(0.0, waited),
        })
    }
}

impl From<Sighting> for Seen {
    fn from(seen: Sighting) -> Self {
        Self {
            member: seen.member.to_string(),
            cluster: seen.cluster.to_string(),
            leader: seen.leader.map(|leader| leader.to_string()),
            term: seen.term,
            revision: seen.revision.0,
            is_learner: seen.is_learner,
            db_bytes: seen.db_bytes,
            db_bytes_in_use: seen.db_bytes_in_use,
            version: seen.version,
            errors: seen.errors,
            at: seen.at,
        }
    }
}

impl From<Trouble> for Ailment {
    fn from(trouble: Trouble) -> Self {
        let Trouble { class, text, since } = trouble;
        Self { class, text, since }
    }
}

#[cfg(test)]
mod tests {
    use mainstay_archive::catalogue::Listed;
    use mainstay_ids::Revision;
    use serde_json::{Value, json};

    use super::*;

    fn latest(keys: &[&str]) -> Value {
        let listed = keys.iter().map(|key| Listed {
            key: (*key).to_owned(),
            size: 1,
            modified: Timestamp::UNIX_EPOCH,
        });
        let catalogue = Catalogue::from_listing("a/b", listed.collect());
        serde_json::to_value(Latest::from(&catalogue)).unwrap()
    }

    #[test]
    fn a_snapshot_has_the_peers_fields() {
        let found = latest(&["a/b/v2/Full-00000000-00000695-1794795243.gz.final"]);
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
    fn the_old_layout_has_a_directory() {
        let found = latest(&["a/b/v1/Backup-5/Full-00000000-00000010-5"]);
        let full = &found["fullSnapshot"];
        assert_eq!(
            (&full["prefix"], &full["snapDir"]),
            (&json!("a/b/v1"), &json!("Backup-5"))
        );
        assert_eq!(full["compressionSuffix"], "");
    }

    #[test]
    fn the_latest_are_the_newest_full_and_the_deltas_behind_it() {
        let found = latest(&[
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
    fn an_empty_store_has_nothing() {
        let nothing = json!({ "fullSnapshot": null, "deltaSnapshots": null });
        assert_eq!(latest(&[]), nothing);
    }

    #[test]
    fn lag_is_counted_while_there_is_something_to_capture() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut known = State {
            captured: Some(Revision(90)),
            captured_at: Some(at(100)),
            ..State::default()
        };
        assert_eq!(Lag::new(&known, at(130)), None, "etcd said nothing yet");
        let seen = |revision| Sighting {
            revision: Revision(revision),
            at: at(129),
            ..Sighting::default()
        };
        known.sighting = Some(seen(100));
        let behind = Lag {
            revisions: 10,
            seconds: 30.0,
        };
        assert_eq!(Lag::new(&known, at(130)), Some(behind));
        known.sighting = Some(seen(90));
        let even = Lag {
            revisions: 0,
            seconds: 0.0,
        };
        assert_eq!(Lag::new(&known, at(130)), Some(even));
    }
}

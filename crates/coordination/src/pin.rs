//! Pins: snapshots in use, which retention must not delete. Pure functions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::name::{SnapshotKind, SnapshotName};
use mainstay_ids::Revision;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::lock::{MAX_TTL, Purpose, next_timestamp};

/// Prefix of the entry names; the pin's name follows.
pub const PREFIX: &str = "pin.";

/// A pin entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pin {
    /// The reader. Unique to one run of one process.
    pub holder: String,
    /// Purpose of the reader.
    pub purpose: Purpose,
    /// Complete object keys.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub keys: BTreeSet<String>,
    /// Covers every snapshot that contains one of these revisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revisions: Option<RevisionRange>,
    /// Time of creation, by the holder's clock.
    pub since: Timestamp,
    /// Time of the last renewal, by the holder's clock. Observers only check whether it changes.
    pub renewed: Timestamp,
    /// Time without observed change after which the pin expires.
    #[serde(with = "crate::span")]
    pub ttl: Duration,
    /// Fields added by later versions, preserved on write.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Revisions of a chain: a base snapshot and the deltas after it. Used where the list of keys would be too
/// long for the document, or the chain is still growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionRange {
    /// Revision of the base snapshot.
    #[serde(with = "revision")]
    pub first: Revision,
    /// Last revision needed; `None` means no upper bound.
    #[serde(
        default,
        with = "open_revision",
        skip_serializing_if = "Option::is_none"
    )]
    pub last: Option<Revision>,
}

impl RevisionRange {
    /// Whether a snapshot belongs to the chain.
    pub fn covers(&self, name: &SnapshotName) -> bool {
        let is_before_end = |revision| self.last.is_none_or(|last| revision <= last);
        match name.kind {
            // The name of a full snapshot always starts at revision 0, so only its last revision counts.
            SnapshotKind::Full => self.first <= name.last && is_before_end(name.last),
            SnapshotKind::Delta => self.first <= name.last && is_before_end(name.start),
        }
    }
}

/// A request for a pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinRequest {
    /// Name of the pin: letters, digits, dots, dashes and underscores.
    pub name: String,
    /// Reader, unique to one run of one process.
    pub holder: String,
    /// Purpose of the reader.
    pub purpose: Purpose,
    /// Complete object keys.
    pub keys: BTreeSet<String>,
    /// Covers every snapshot that contains one of these revisions.
    pub revisions: Option<RevisionRange>,
    /// Validity without renewal; limited to [`MAX_TTL`].
    pub ttl: Duration,
}

impl PinRequest {
    pub(crate) fn to_pin(&self, now: Timestamp) -> Pin {
        Pin {
            holder: self.holder.clone(),
            purpose: self.purpose.clone(),
            keys: self.keys.clone(),
            revisions: self.revisions,
            since: now,
            renewed: now,
            ttl: self.ttl.min(MAX_TTL),
            other: BTreeMap::new(),
        }
    }
}

impl Pin {
    /// Whether the object is pinned, by its complete key or by the snapshot name at the end of its key.
    pub fn covers(&self, key: &str) -> bool {
        let by_name = |range: RevisionRange| {
            let name = key.rsplit('/').next().unwrap_or(key);
            name.parse::<SnapshotName>()
                .is_ok_and(|name| range.covers(&name))
        };
        self.keys.contains(key) || self.revisions.is_some_and(by_name)
    }

    /// The pin after a renewal.
    pub(crate) fn with_renewal(&self, now: Timestamp) -> Self {
        Self {
            renewed: next_timestamp(self.renewed, now),
            ..self.clone()
        }
    }

    /// The TTL, limited to [`MAX_TTL`].
    pub fn effective_ttl(&self) -> Duration {
        self.ttl.min(MAX_TTL)
    }
}

mod revision {
    use mainstay_ids::Revision;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference"
    )]
    pub(super) fn serialize<S: Serializer>(
        it: &Revision,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(it.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Revision, D::Error> {
        i64::deserialize(from).map(Revision)
    }
}

mod open_revision {
    use mainstay_ids::Revision;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "serde passes a reference")]
    pub(super) fn serialize<S: Serializer>(
        it: &Option<Revision>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        it.map(|it| it.0).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Revision>, D::Error> {
        Ok(Option::<i64>::deserialize(from)?.map(Revision))
    }
}

#[cfg(test)]
mod tests;

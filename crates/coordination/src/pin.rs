//! Pins: what of a backup is being read, so that retention leaves it alone. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::name::{SnapshotKind, SnapshotName};
use mainstay_ids::Revision;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::lock::{MAX_TTL, Purpose, next_timestamp};

/// What the names of these entries begin with; the pin's name follows.
pub const PREFIX: &str = "pin.";

/// A pin as it stands in the document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pin {
    /// Who reads. Unique to one run of one party.
    pub holder: String,
    /// What for.
    pub purpose: Purpose,
    /// Whole keys of objects.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub keys: BTreeSet<String>,
    /// Every snapshot that touches these revisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revisions: Option<RevisionRange>,
    /// When it was set, by the holder's clock.
    pub since: Timestamp,
    /// The holder's last sign of life, by the holder's clock. Only *that* it changes means anything.
    pub renewed: Timestamp,
    /// How long it may be seen unchanged before it is void.
    #[serde(with = "crate::span")]
    pub ttl: Duration,
    /// What later versions add.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Revisions of a chain: a base, and the deltas behind it. A name for a chain whose list of keys would
/// not fit, or whose end is still growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionRange {
    /// The revision of the base.
    #[serde(with = "revision")]
    pub first: Revision,
    /// The last revision wanted; open when absent.
    #[serde(
        default,
        with = "open_revision",
        skip_serializing_if = "Option::is_none"
    )]
    pub last: Option<Revision>,
}

impl RevisionRange {
    /// Whether a snapshot belongs to such a chain.
    pub fn covers(&self, name: &SnapshotName) -> bool {
        let begins_in_time = |revision| self.last.is_none_or(|last| revision <= last);
        match name.kind {
            // What a full snapshot promises is its last revision; its first is always zero.
            SnapshotKind::Full => self.first <= name.last && begins_in_time(name.last),
            SnapshotKind::Delta => self.first <= name.last && begins_in_time(name.start),
        }
    }
}

/// What somebody wants to read in peace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinRequest {
    /// The pin's own name: letters, digits, dots, dashes.
    pub name: String,
    /// Who.
    pub holder: String,
    /// What for.
    pub purpose: Purpose,
    /// Whole keys of objects.
    pub keys: BTreeSet<String>,
    /// Every snapshot that touches these revisions.
    pub revisions: Option<RevisionRange>,
    /// How long the pin lasts without a renewal; pinned to [`MAX_TTL`].
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
    /// Whether an object is pinned, by its whole key or by the name its key ends in.
    pub fn covers(&self, key: &str) -> bool {
        let by_name = |range: RevisionRange| {
            let name = key.rsplit('/').next().unwrap_or(key);
            name.parse::<SnapshotName>()
                .is_ok_and(|name| range.covers(&name))
        };
        self.keys.contains(key) || self.revisions.is_some_and(by_name)
    }

    /// The pin after a sign of life of its holder.
    pub(crate) fn with_renewal(&self, now: Timestamp) -> Self {
        Self {
            renewed: next_timestamp(self.renewed, now),
            ..self.clone()
        }
    }

    /// How long it may be seen unchanged: what it says, within reason.
    pub fn effective_ttl(&self) -> Duration {
        self.ttl.min(MAX_TTL)
    }
}

mod revision {
    use mainstay_ids::Revision;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde asks for a reference"
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

    #[expect(clippy::ref_option, reason = "serde asks for a reference")]
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

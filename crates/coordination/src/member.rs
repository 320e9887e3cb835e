//! How far the restoration of one member is.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What the names of these entries begin with; the member's name follows.
pub const PREFIX: &str = "member.";

/// The state of one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberState {
    /// Where it is.
    pub phase: RestorePhase,
    /// In words, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it came there, by the writer's clock.
    pub time: Timestamp,
    /// What later versions add.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

impl MemberState {
    /// A state without words.
    pub fn new(phase: RestorePhase, time: Timestamp) -> Self {
        Self {
            phase,
            message: String::new(),
            time,
            other: BTreeMap::new(),
        }
    }

    /// With words for people.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }
}

/// The stations of a restoration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum RestorePhase {
    /// Decided, not begun.
    Pending,
    /// Under way.
    Restoring,
    /// The data is there; the member has not been seen healthy yet.
    Restored,
    /// The member serves again.
    Confirmed,
    /// It failed; the message says how.
    Failed,
    /// Something a later version knows.
    #[serde(untagged)]
    Other(String),
}

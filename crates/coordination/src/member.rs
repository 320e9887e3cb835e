//! Restore progress of one member.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Prefix of the entry names; the member's name follows.
pub const PREFIX: &str = "member.";

/// Restore state of one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberState {
    /// Current phase.
    pub phase: RestorePhase,
    /// Human-readable details; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Time at which the phase began, by the writer's clock.
    pub time: Timestamp,
    /// Fields added by later versions, preserved on write.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

impl MemberState {
    /// A state without message.
    pub fn new(phase: RestorePhase, time: Timestamp) -> Self {
        Self {
            phase,
            message: String::new(),
            time,
            other: BTreeMap::new(),
        }
    }

    /// Sets the message.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }
}

/// Phase of a member's restore.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum RestorePhase {
    /// Decided, not started.
    Pending,
    /// In progress.
    Restoring,
    /// The data is written; the member is not yet confirmed healthy.
    Restored,
    /// The member is healthy again.
    Confirmed,
    /// Failed; see the message.
    Failed,
    /// A phase of a later version.
    #[serde(untagged)]
    Other(String),
}

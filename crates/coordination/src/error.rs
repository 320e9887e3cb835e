//! Errors of coordination, with the action to take.

use std::time::Duration;

use crate::backing::BackingError;
use crate::lock::LockLoss;

/// A coordination operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoordinationError {
    /// Reading or writing the document failed.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// An entry cannot be parsed. It is not changed.
    #[error(
        "parse entry {entry:?} of {place}: invalid, not changed; correct the entry, or remove it if no process \
         uses it"
    )]
    Unreadable {
        /// The document.
        place: String,
        /// The entry's name.
        entry: String,
        /// The JSON error.
        source: serde_json::Error,
    },
    /// An entry cannot be serialized.
    #[error("serialize entry {entry:?} of {place}")]
    SerializeEntry {
        /// The document.
        place: String,
        /// The entry's name.
        entry: String,
        /// The JSON error.
        source: serde_json::Error,
    },
    /// Every write attempt conflicted with another writer.
    #[error("write {place}: conflict with other writers in {attempts} attempts; retry later")]
    Contended {
        /// The document.
        place: String,
        /// Number of attempts.
        attempts: u32,
    },
    /// The lock is no longer held.
    #[error("{holder} lost the lock in {place}")]
    LockLost {
        /// The document.
        place: String,
        /// The former holder.
        holder: String,
        /// How the lock was lost.
        source: LockLoss,
    },
    /// Another holder kept the lock for the whole timeout.
    #[error("acquire the lock in {place}: still held by {holder} after {waited:?}")]
    LockHeld {
        /// The document.
        place: String,
        /// The current holder.
        holder: String,
        /// Time waited for the lock.
        waited: Duration,
    },
    /// Another holder uses the name of the pin.
    #[error("create pin {name:?} in {place}: name is in use by {holder}; choose another name")]
    PinTaken {
        /// The document.
        place: String,
        /// The pin's name.
        name: String,
        /// The holder of the existing pin.
        holder: String,
    },
    /// The pin expired and was removed, so the objects it covered may have been deleted.
    #[error("pin {name:?} in {place} expired; the snapshots it covered may have been deleted")]
    PinLost {
        /// The document.
        place: String,
        /// The pin's name.
        name: String,
    },
    /// The name is not valid in an entry name.
    #[error(transparent)]
    InvalidName(#[from] EntryNameError),
}

impl CoordinationError {
    /// Whether a retry may succeed without user action.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Backing(error) => error.is_transient(),
            Self::Contended { .. } | Self::LockHeld { .. } => true,
            _ => false,
        }
    }
}

/// A member or pin name is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid name {name:?}: must be 1 to 200 letters, digits, dots, dashes and underscores")]
pub struct EntryNameError {
    /// The name as given.
    pub name: String,
}

/// Builds the entry name `<prefix><name>`. Allowed characters are those of ConfigMap keys.
pub(crate) fn build_entry_name(prefix: &str, name: &str) -> Result<String, EntryNameError> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if (1..=200).contains(&name.len()) && name.bytes().all(is_letter) {
        Ok(format!("{prefix}{name}"))
    } else {
        Err(EntryNameError {
            name: name.to_owned(),
        })
    }
}

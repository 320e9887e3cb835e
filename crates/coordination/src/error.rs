//! What can go wrong, with the next step in words.

use std::time::Duration;

use crate::backing::BackingError;
use crate::lock::LockLoss;

/// Why coordination failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoordinationError {
    /// The document could not be read or written.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// An entry is not what it should be. It is left as it is.
    #[error(
        "entry {entry:?} of {place} cannot be read and was left alone; correct it, or remove the entry when nothing \
         holds it any more"
    )]
    Unreadable {
        /// Which document.
        place: String,
        /// Which entry.
        entry: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// An entry could not be rendered.
    #[error("entry {entry:?} of {place} cannot be written as JSON")]
    SerializeEntry {
        /// Which document.
        place: String,
        /// Which entry.
        entry: String,
        /// Why.
        source: serde_json::Error,
    },
    /// Others wrote every time.
    #[error("{place} changed under each of {attempts} attempts to write it; try again")]
    Contended {
        /// Which document.
        place: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// The lock is not held any more.
    #[error("the lock in {place} is lost to {holder}")]
    LockLost {
        /// Which document.
        place: String,
        /// Who believed to have it.
        holder: String,
        /// How it was lost.
        source: LockLoss,
    },
    /// Somebody held the lock all the time.
    #[error("the lock in {place} is held by {holder} and was not free within {waited:?}")]
    LockHeld {
        /// Which document.
        place: String,
        /// Who has it.
        holder: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Another party uses the name of a pin.
    #[error("pin {name:?} in {place} belongs to {holder}; choose another name")]
    PinTaken {
        /// Which document.
        place: String,
        /// The pin's name.
        name: String,
        /// Whose it is.
        holder: String,
    },
    /// A pin expired and was removed, so what it covered may be gone.
    #[error(
        "pin {name:?} in {place} is gone: it expired, and what it covered may have been deleted"
    )]
    PinLost {
        /// Which document.
        place: String,
        /// The pin's name.
        name: String,
    },
    /// A name cannot be part of an entry's name.
    #[error(transparent)]
    InvalidName(#[from] EntryNameError),
}

impl CoordinationError {
    /// Whether the same call may succeed later without anybody doing something about it.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Backing(error) => error.is_transient(),
            Self::Contended { .. } | Self::LockHeld { .. } => true,
            _ => false,
        }
    }
}

/// Why a name is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a name: 1 to 200 letters, digits, dots, dashes and underscores")]
pub struct EntryNameError {
    /// The name as given.
    pub name: String,
}

/// The name of an entry: `<prefix><name>`, in the letters a ConfigMap allows.
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

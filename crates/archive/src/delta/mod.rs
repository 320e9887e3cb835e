//! Delta files: a JSON array of watch events, then the raw SHA-256 of that text.
//!
//! ```text
//! [{"etcdEvent":{"kv":{"key":"L2E=","create_revision":2,"mod_revision":2,"version":1,"value":"MQ=="}},
//!   "time":"2026-11-16T02:14:06.050388376Z"},…]‹32 bytes›
//! ```
//!
//! [`DeltaReader`] turns a decompressed stream into [`Event`]s without holding more than a chunk and the largest
//! event; [`DeltaWriter`] writes what the peer's decoder reads. The optional element field `leaseTTL`, the
//! seconds a lease was granted for, is our addition: the peer ignores fields it does not know.

mod fast;
mod general;
mod reader;
mod window;
mod writer;

use std::io;

use jiff::Timestamp;
use mainstay_ids::{LeaseId, Revision};

pub use reader::DeltaReader;
pub use writer::{DeltaWriteError, DeltaWriter};

/// Length of the SHA-256 behind the JSON text.
pub const TRAILER_LEN: usize = 32;

/// The longest JSON text of one event that is accepted: a value of some 90 MiB in base64.
pub const MAX_EVENT_LEN: usize = 128 << 20;

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It was written.
    Put,
    /// It was deleted.
    Delete,
}

/// One change of one key. Events of one transaction are neighbours and share `mod_revision`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// Put or delete.
    pub kind: EventKind,
    /// The key; never empty.
    pub key: &'a [u8],
    /// The value; empty for a delete.
    pub value: &'a [u8],
    /// When the key came to be; 0 for a delete.
    pub create_revision: Revision,
    /// The revision of this change; never below that of the event before.
    pub mod_revision: Revision,
    /// How often the key was written since it came to be; 0 for a delete.
    pub version: i64,
    /// The lease the key hangs on.
    pub lease: LeaseId,
    /// Seconds the lease was granted for, where the writer knew.
    pub lease_ttl: Option<i64>,
    /// When the writer received the event, RFC 3339; see [`parse_time`]. Empty when the file does not say.
    pub time: &'a str,
}

/// The numbers of an event, as read and not yet believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RawNumbers {
    kind: i64,
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    lease: i64,
    lease_ttl: Option<i64>,
}

/// Where in a delta something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventPosition {
    /// Byte in the decompressed stream.
    pub offset: u64,
    /// Number of the event, from 0.
    pub event: u64,
}

impl std::fmt::Display for EventPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "event {} at byte {}", self.event, self.offset)
    }
}

/// Why an event makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventFault {
    /// No event, or no key-value pair inside.
    #[error("it has no key-value pair")]
    NoKeyValue,
    /// No key.
    #[error("its key is empty")]
    EmptyKey,
    /// Neither put nor delete.
    #[error("its type is {0}, neither put nor delete")]
    UnknownKind(i64),
    /// The key or the value is not base64.
    #[error("its {0} is not base64")]
    Base64(&'static str),
    /// No revision.
    #[error("its revision is {0}")]
    InvalidRevision(i64),
    /// A put whose creation revision or version cannot be.
    #[error("its creation revision {create_revision} and version {version} cannot be")]
    InvalidHistory {
        /// Creation revision found.
        create_revision: i64,
        /// Version found.
        version: i64,
    },
    /// Older than the event before it.
    #[error("its revision {found} comes after revision {previous}")]
    Descending {
        /// Revision of the event before.
        previous: Revision,
        /// Revision of this event.
        found: Revision,
    },
}

/// Why a delta cannot be read on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// The stream below failed.
    #[error("read the delta after byte {offset}")]
    Read {
        /// Bytes read so far.
        offset: u64,
        /// What the stream said.
        source: io::Error,
    },
    /// Not even room for the hash.
    #[error("delta of {length} bytes is shorter than its hash")]
    TooShort {
        /// Bytes in the stream.
        length: u64,
    },
    /// A byte that cannot stand there.
    #[error("expected {expected} but found byte {found:#04x}: {place}")]
    UnexpectedByte {
        /// Where.
        place: EventPosition,
        /// What belongs there.
        expected: &'static str,
        /// What stands there.
        found: u8,
    },
    /// The JSON text stops before its end.
    #[error("the text ends in the middle: {place}")]
    Truncated {
        /// Where the unfinished part begins.
        place: EventPosition,
    },
    /// An element is no JSON, or a field has another type.
    #[error("not a readable element: {place}")]
    InvalidElement {
        /// Where.
        place: EventPosition,
        /// What the JSON parser said.
        source: serde_json::Error,
    },
    /// An element is too long.
    #[error("element longer than {limit} bytes: {place}")]
    TooLong {
        /// Where.
        place: EventPosition,
        /// The most that is accepted.
        limit: usize,
    },
    /// An element is well-formed, but no event etcd can have sent.
    #[error("{fault}: {place}")]
    InvalidEvent {
        /// Where.
        place: EventPosition,
        /// What is wrong with it.
        fault: EventFault,
    },
    /// Everything could be read, and yet it is not what was written.
    #[error("the hash after {length} bytes of text and {events} events differs from their content")]
    HashMismatch {
        /// Length of the text.
        length: u64,
        /// Number of events in it.
        events: u64,
    },
    /// An earlier call failed; there is nothing behind it to be trusted.
    #[error("the delta already failed at or before byte {offset}")]
    AlreadyFailed {
        /// Where reading stopped.
        offset: u64,
    },
}

/// A time is not RFC 3339.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not a time")]
#[non_exhaustive]
pub struct TimeError {
    /// The text as found.
    pub text: String,
    /// What the parser said.
    pub source: jiff::Error,
}

/// Reads an event's time: RFC 3339, with any offset, up to nanoseconds.
///
/// # Errors
///
/// [`TimeError`] for anything else, the empty text of an event without time included.
pub fn parse_time(text: &str) -> Result<Timestamp, TimeError> {
    text.parse().map_err(|source| TimeError {
        text: text.to_owned(),
        source,
    })
}

/// An event without its bytes, checked.
#[derive(Clone, Copy)]
struct EventHeader {
    kind: EventKind,
    numbers: RawNumbers,
}

impl EventHeader {
    /// The one way from read numbers to an event.
    fn verify(numbers: RawNumbers, key: &[u8]) -> Result<Self, EventFault> {
        let RawNumbers {
            kind,
            create_revision,
            mod_revision,
            version,
            ..
        } = numbers;
        let kind = match kind {
            0 => EventKind::Put,
            1 => EventKind::Delete,
            other => return Err(EventFault::UnknownKind(other)),
        };
        if key.is_empty() {
            return Err(EventFault::EmptyKey);
        }
        if mod_revision < 1 {
            return Err(EventFault::InvalidRevision(mod_revision));
        }
        let has_lived = (1..=mod_revision).contains(&create_revision) && version >= 1;
        if kind == EventKind::Put && !has_lived {
            return Err(EventFault::InvalidHistory {
                create_revision,
                version,
            });
        }
        Ok(Self { kind, numbers })
    }

    fn into_event<'a>(self, key: &'a [u8], value: &'a [u8], time: &'a str) -> Event<'a> {
        Event {
            kind: self.kind,
            key,
            value,
            create_revision: Revision(self.numbers.create_revision),
            mod_revision: Revision(self.numbers.mod_revision),
            version: self.numbers.version,
            lease: LeaseId::from_signed(self.numbers.lease),
            lease_ttl: self.numbers.lease_ttl,
            time,
        }
    }
}

#[cfg(test)]
mod tests;

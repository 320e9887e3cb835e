//! Delta snapshots: a JSON array of watch events, followed by the raw SHA-256 of that text.
//!
//! ```text
//! [{"etcdEvent":{"kv":{"key":"L2E=","create_revision":2,"mod_revision":2,"version":1,"value":"MQ=="}},
//!   "time":"2026-11-16T02:14:06.050388376Z"},…]‹32 bytes›
//! ```
//!
//! [`DeltaReader`] parses a decompressed stream into [`Event`]s and holds at most one chunk and the largest event.
//! [`DeltaWriter`] writes what etcd-backup-restore can read. The optional element field `leaseTTL`, the granted TTL
//! of a lease in seconds, is an extension: etcd-backup-restore ignores unknown fields.

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

/// Length of the SHA-256 after the JSON text, in bytes.
pub const TRAILER_LEN: usize = 32;

/// Longest JSON text of one event in bytes: a value of about 90 MiB in base64.
pub const MAX_EVENT_LEN: usize = 128 << 20;

/// Type of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The key was written.
    Put,
    /// The key was deleted.
    Delete,
}

/// One change of one key. Events of one transaction are adjacent and share `mod_revision`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// Put or delete.
    pub kind: EventKind,
    /// The key; never empty.
    pub key: &'a [u8],
    /// The value; empty for a delete.
    pub value: &'a [u8],
    /// Revision that created the key; 0 for a delete.
    pub create_revision: Revision,
    /// Revision of this change; not lower than that of the event before.
    pub mod_revision: Revision,
    /// Number of writes since the key was created; 0 for a delete.
    pub version: i64,
    /// Lease attached to the key; 0 for none.
    pub lease: LeaseId,
    /// Granted TTL of the lease in seconds; `None` when the writer did not record it.
    pub lease_ttl: Option<i64>,
    /// When the writer received the event, RFC 3339; see [`parse_time`]. Empty when the file has no time.
    pub time: &'a str,
}

/// The numbers of an event as read, not validated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RawNumbers {
    kind: i64,
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    lease: i64,
    lease_ttl: Option<i64>,
}

/// Position of an error in a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventPosition {
    /// Byte position in the decompressed stream.
    pub offset: u64,
    /// Number of the event, starting at 0.
    pub event: u64,
}

impl std::fmt::Display for EventPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "event {} at byte {}", self.event, self.offset)
    }
}

/// Why an event is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventFault {
    /// The event or its key-value pair is missing.
    #[error("no key-value pair")]
    NoKeyValue,
    /// The key is empty, which etcd rejects.
    #[error("empty key")]
    EmptyKey,
    /// The type is neither put nor delete.
    #[error("invalid type {0}, expected 0 (put) or 1 (delete)")]
    UnknownKind(i64),
    /// The key or the value is not base64.
    #[error("{0} is not valid base64")]
    Base64(&'static str),
    /// The revision is missing or below 1.
    #[error("invalid revision {0}")]
    InvalidRevision(i64),
    /// A put with a creation revision outside 1 to its revision, or a version below 1.
    #[error("invalid creation revision {create_revision} or version {version}")]
    InvalidHistory {
        /// Creation revision of the event.
        create_revision: i64,
        /// Version of the event.
        version: i64,
    },
    /// The revision is lower than that of the event before.
    #[error("revision {found} follows revision {previous}: revisions must not decrease")]
    Descending {
        /// Revision of the event before.
        previous: Revision,
        /// Revision of this event.
        found: Revision,
    },
}

/// Why reading a delta failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// The underlying stream failed.
    #[error("read delta after byte {offset}")]
    Read {
        /// Bytes read so far.
        offset: u64,
        /// Error of the underlying stream.
        source: io::Error,
    },
    /// The stream is shorter than the hash.
    #[error("delta too short: {length} bytes, shorter than its hash")]
    TooShort {
        /// Bytes in the stream.
        length: u64,
    },
    /// A byte that is not valid at this place.
    #[error("{place}: expected {expected}, found byte {found:#04x}")]
    UnexpectedByte {
        /// Position of the error.
        place: EventPosition,
        /// The expected input.
        expected: &'static str,
        /// The byte at this place.
        found: u8,
    },
    /// The JSON text ends early.
    #[error("{place}: unexpected end of the JSON text")]
    Truncated {
        /// Start of the incomplete part.
        place: EventPosition,
    },
    /// An element is not valid JSON, or a field has the wrong type.
    #[error("{place}: invalid JSON element")]
    InvalidElement {
        /// Position of the error.
        place: EventPosition,
        /// Error of the JSON parser.
        source: serde_json::Error,
    },
    /// An element exceeds the limit.
    #[error("{place}: element exceeds {limit} bytes")]
    TooLong {
        /// Position of the error.
        place: EventPosition,
        /// The limit in bytes.
        limit: usize,
    },
    /// An element is valid JSON, but not an event etcd can have sent.
    #[error("{place}: {fault}")]
    InvalidEvent {
        /// Position of the error.
        place: EventPosition,
        /// Why the event is invalid.
        fault: EventFault,
    },
    /// The text parses, but its hash does not match.
    #[error("hash mismatch after {length} bytes and {events} events")]
    HashMismatch {
        /// Length of the text in bytes.
        length: u64,
        /// Number of events in the text.
        events: u64,
    },
    /// An earlier call failed, so later data cannot be trusted.
    #[error("reading this delta already failed at or before byte {offset}")]
    AlreadyFailed {
        /// Byte position where reading stopped.
        offset: u64,
    },
}

/// A text is not an RFC 3339 time.
#[derive(Debug, thiserror::Error)]
#[error("invalid RFC 3339 time {text:?}")]
#[non_exhaustive]
pub struct TimeError {
    /// The rejected text.
    pub text: String,
    /// Error of the parser.
    pub source: jiff::Error,
}

/// Parses the time of an event: RFC 3339, any offset, up to nanoseconds.
///
/// # Errors
///
/// [`TimeError`] for any other text, including the empty text of an event without a time.
pub fn parse_time(text: &str) -> Result<Timestamp, TimeError> {
    text.parse().map_err(|source| TimeError {
        text: text.to_owned(),
        source,
    })
}

/// Validated numbers of an event, without key and value.
#[derive(Clone, Copy)]
struct EventHeader {
    kind: EventKind,
    numbers: RawNumbers,
}

impl EventHeader {
    /// Validates the numbers of an event; the only constructor.
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
        let is_valid_put = (1..=mod_revision).contains(&create_revision) && version >= 1;
        // etcd sends deletes without creation revision and version.
        if kind == EventKind::Put && !is_valid_put {
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

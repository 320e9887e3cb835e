//! Errors of a log as a whole.

use std::io;
use std::path::PathBuf;

use mainstay_ids::{MemberId, RaftIndex, Term};

use crate::decoder::{DecodeError, SegmentPosition};

/// Why a log cannot be read to its end. Every variant except [`Open`](Self::Open) and a failed read is corruption.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A segment cannot be opened.
    #[error("open {}", file.display())]
    Open {
        /// The affected segment.
        file: PathBuf,
        /// I/O error.
        source: io::Error,
    },
    /// A frame or record is invalid.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A segment does not start with a checksum and the member's identity.
    #[error("{at}: segment does not start with a crc record and a metadata record")]
    MissingHeader {
        /// Position where the record is expected.
        at: SegmentPosition,
    },
    /// No segment has a metadata record.
    #[error("{}: no metadata record", file.display())]
    NoMetadata {
        /// The last segment.
        file: PathBuf,
    },
    /// Two segments were written by different members.
    #[error("{at}: segment belongs to member {found}, previous segments to member {expected}")]
    ConflictingMetadata {
        /// Position of the differing metadata record.
        at: SegmentPosition,
        /// Member of the previous segments.
        expected: MemberId,
        /// Member of this segment.
        found: MemberId,
    },
    /// The first index in a segment's name does not follow the last index of the log before it.
    #[error("{at}: segment name has first index {found}, expected {expected}")]
    SegmentNameMismatch {
        /// The affected segment.
        at: SegmentPosition,
        /// The index after the last one.
        expected: RaftIndex,
        /// First index in the name.
        found: RaftIndex,
    },
    /// The message of a record is invalid although its checksum matches.
    #[error("{at}: invalid {what} message")]
    InvalidMessage {
        /// Position of the record.
        at: SegmentPosition,
        /// Name of the message.
        what: &'static str,
        /// Error of the protobuf decoder.
        source: prost::DecodeError,
    },
    /// An entry has an unknown type.
    #[error("{at}: unknown entry type {number}")]
    UnknownEntryKind {
        /// Position of the entry.
        at: SegmentPosition,
        /// Entry type on disk.
        number: i32,
    },
    /// An entry has index 0.
    #[error("{at}: entry with index 0")]
    IndexZero {
        /// Position of the entry.
        at: SegmentPosition,
    },
    /// Entries are missing.
    #[error("{at}: entry {found} follows entry {last}: entries are missing")]
    IndexGap {
        /// Position of the entry after the gap.
        at: SegmentPosition,
        /// Index of the entry before the gap.
        last: RaftIndex,
        /// Index of the entry after the gap.
        found: RaftIndex,
    },
    /// An entry has a lower term than the one before it.
    #[error("{at}: entry {index} has term {found}, lower than term {before} before it")]
    TermDecreased {
        /// Position of the entry.
        at: SegmentPosition,
        /// Index of the entry.
        index: RaftIndex,
        /// The previous term.
        before: Term,
        /// The lower term.
        found: Term,
    },
    /// A membership change is empty.
    #[error("{at}: membership change at index {index} is empty")]
    EmptyConfChange {
        /// Position of the entry.
        at: SegmentPosition,
        /// Index of the entry.
        index: RaftIndex,
    },
    /// The term of a hard state is 0 or lower than that of the one before.
    #[error("{at}: hard state has term {found}, previous hard state has term {before}")]
    StateTermDecreased {
        /// Position of the record.
        at: SegmentPosition,
        /// The previous term.
        before: Term,
        /// The lower term.
        found: Term,
    },
    /// A state record contains an entry: its record type is corrupt.
    #[error("{at}: state record contains an entry")]
    EntryInStateRecord {
        /// Position of the record.
        at: SegmentPosition,
    },
    /// A snapshot record exceeds the limit.
    #[error("{at}: snapshot record too large: {length} bytes")]
    MarkTooLarge {
        /// Position of the record.
        at: SegmentPosition,
        /// Length of the record in bytes.
        length: usize,
    },
    /// More snapshot records or term changes than any real log has.
    #[error("{at}: more than {limit} {what}")]
    TooMany {
        /// Position of the first record above the limit.
        at: SegmentPosition,
        /// Maximum number.
        limit: usize,
        /// What was counted.
        what: &'static str,
    },
}

//! Why a log as a whole cannot be trusted.

use std::io;
use std::path::PathBuf;

use mainstay_ids::{MemberId, RaftIndex, Term};

use crate::decoder::{SegmentPosition, DecodeError};

/// Why a log cannot be read to its end. Every kind but [`Open`](Self::Open) and a failed read is damage.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A segment cannot be opened.
    #[error("open {}", file.display())]
    Open {
        /// The segment.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A frame or record is wrong.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A segment does not begin with a checksum and the identity of the member.
    #[error("{at}: segment does not begin with a crc and a metadata record")]
    MissingHeader {
        /// Where one of them should be.
        at: SegmentPosition,
    },
    /// No segment says whose log it is.
    #[error("{}: no metadata record", file.display())]
    NoMetadata {
        /// The last segment.
        file: PathBuf,
    },
    /// Two segments were written by different members.
    #[error("{at}: segment is of member {found}, the log before it of {expected}")]
    ConflictingMetadata {
        /// The second metadata record.
        at: SegmentPosition,
        /// Whose log it was so far.
        expected: MemberId,
        /// Whose log it claims to be now.
        found: MemberId,
    },
    /// A segment's name promises another first index than the log before it leads to.
    #[error("{at}: segment is named for index {found}, the log before it leads to {expected}")]
    SegmentNameMismatch {
        /// The segment.
        at: SegmentPosition,
        /// One more than the last index.
        expected: RaftIndex,
        /// What the name says.
        found: RaftIndex,
    },
    /// A record's message cannot be parsed although its checksum holds.
    #[error("{at}: {what} cannot be parsed")]
    InvalidMessage {
        /// The record.
        at: SegmentPosition,
        /// Which message.
        what: &'static str,
        /// What the parser said.
        source: prost::DecodeError,
    },
    /// An entry is of a kind etcd does not know.
    #[error("{at}: entry of unknown kind {number}")]
    UnknownEntryKind {
        /// The entry.
        at: SegmentPosition,
        /// The kind.
        number: i32,
    },
    /// An entry has index 0.
    #[error("{at}: entry with index 0")]
    IndexZero {
        /// The entry.
        at: SegmentPosition,
    },
    /// Entries are missing.
    #[error("{at}: entry {found} follows entry {last}: the log has a gap")]
    IndexGap {
        /// The entry behind the gap.
        at: SegmentPosition,
        /// The entry in front of it.
        last: RaftIndex,
        /// Its index.
        found: RaftIndex,
    },
    /// An entry has a lower term than the one before it.
    #[error("{at}: entry {index} of term {found} follows an entry of term {before}")]
    TermDecreased {
        /// The entry.
        at: SegmentPosition,
        /// Its index.
        index: RaftIndex,
        /// The term before it.
        before: Term,
        /// Its term.
        found: Term,
    },
    /// A membership change says nothing.
    #[error("{at}: membership change {index} has no content")]
    EmptyConfChange {
        /// The entry.
        at: SegmentPosition,
        /// Its index.
        index: RaftIndex,
    },
    /// A hard state goes back in time or has no term.
    #[error("{at}: hard state of term {found} follows one of term {before}")]
    StateTermDecreased {
        /// The record.
        at: SegmentPosition,
        /// The term before it.
        before: Term,
        /// Its term.
        found: Term,
    },
    /// A hard state has the data of an entry: its record type is damaged.
    #[error("{at}: state record holds an entry")]
    EntryInStateRecord {
        /// The record.
        at: SegmentPosition,
    },
    /// A snapshot mark is larger than any membership makes it.
    #[error("{at}: snapshot mark of {length} bytes")]
    MarkTooLarge {
        /// The record.
        at: SegmentPosition,
        /// Its length.
        length: usize,
    },
    /// More snapshot marks or changes of term than any real log has.
    #[error("{at}: more than {limit} {what}")]
    TooMany {
        /// The record that is one too many.
        at: SegmentPosition,
        /// How many are read.
        limit: usize,
        /// Of what.
        what: &'static str,
    },
}

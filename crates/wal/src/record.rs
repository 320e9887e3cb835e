//! The record inside a frame: a type, the running checksum, and the bytes it covers.

use bytes::Bytes;
use prost::Message as _;

use crate::message;

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Who the member is; the same bytes in every segment.
    Metadata,
    /// A raft log entry.
    Entry,
    /// Term, vote and commit index.
    State,
    /// The checksum carried over from the segment before; opens every segment.
    Crc,
    /// The mark of a raft snapshot.
    Snapshot,
}

impl RecordKind {
    /// The number on disk.
    pub fn number(self) -> i64 {
        match self {
            Self::Metadata => 1,
            Self::Entry => 2,
            Self::State => 3,
            Self::Crc => 4,
            Self::Snapshot => 5,
        }
    }

    /// From the number on disk; `None` for one that etcd does not know either.
    pub fn from_number(number: i64) -> Option<Self> {
        [
            Self::Metadata,
            Self::Entry,
            Self::State,
            Self::Crc,
            Self::Snapshot,
        ]
        .into_iter()
        .find(|kind| kind.number() == number)
    }
}

/// One record whose checksum has been verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What [`data`](Self::data) is.
    pub kind: RecordKind,
    /// The running checksum after this record; for [`RecordKind::Crc`] the value carried over.
    pub crc: u32,
    /// The message, empty when the record has none.
    pub data: Bytes,
}

/// The record bytes of `data` after the chain has reached `crc`. `None` leaves the field out.
pub(crate) fn encode(kind: RecordKind, crc: u32, data: Option<Bytes>) -> Vec<u8> {
    message::Record {
        kind: kind.number(),
        crc,
        data,
    }
    .encode_to_vec()
}

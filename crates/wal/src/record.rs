//! The record inside a frame: type, running checksum and data.

use bytes::Bytes;
use prost::Message as _;

use crate::message;

/// Type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Identity of the member; equal in every segment.
    Metadata,
    /// A raft log entry.
    Entry,
    /// Term, vote and commit index.
    State,
    /// The checksum at the end of the previous segment; first record of every segment.
    Crc,
    /// Position of a raft snapshot.
    Snapshot,
}

impl RecordKind {
    /// Returns the number on disk.
    pub fn number(self) -> i64 {
        match self {
            Self::Metadata => 1,
            Self::Entry => 2,
            Self::State => 3,
            Self::Crc => 4,
            Self::Snapshot => 5,
        }
    }

    /// Converts from the number on disk; `None` for numbers that etcd does not define.
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

/// A record with a verified checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Type of [`data`](Self::data).
    pub kind: RecordKind,
    /// The running checksum after this record; for [`RecordKind::Crc`] the value carried over.
    pub crc: u32,
    /// The encoded message; empty when the record has none.
    pub data: Bytes,
}

/// Encodes a record with the chain's checksum `crc`. `None` omits the data field.
pub(crate) fn encode(kind: RecordKind, crc: u32, data: Option<Bytes>) -> Vec<u8> {
    message::Record {
        kind: kind.number(),
        crc,
        data,
    }
    .encode_to_vec()
}

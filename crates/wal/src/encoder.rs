//! Writes one segment, record by record, with the same bytes as etcd.
//!
//! The caller owns the file, its name and its durability. The encoder frames, pads and maintains the checksum chain.

use std::io::{self, Write};

use bytes::Bytes;
use prost::Message as _;

use crate::frame::{FrameLength, padding_for};
use crate::log::WalIdentity;
use crate::message;
use crate::raft::{Entry, HardState, SnapshotMark};
use crate::record::{self, RecordKind};

/// A segment being written.
#[derive(Debug)]
pub struct Encoder<W> {
    output: W,
    crc: u32,
}

impl<W: Write> Encoder<W> {
    /// Starts a segment with the checksum at the end of the previous one (0 for the first) and the member's identity.
    pub fn begin(output: W, carried_crc: u32, identity: WalIdentity) -> io::Result<Self> {
        let mut encoder = Self {
            output,
            crc: carried_crc,
        };
        encoder.write_frame(&record::encode(RecordKind::Crc, carried_crc, None))?;
        let wire = message::Metadata {
            node: identity.node.0,
            cluster: identity.cluster.0,
        };
        encoder.write_record(RecordKind::Metadata, wire.encode_to_vec())?;
        Ok(encoder)
    }

    /// Appends the record of a raft snapshot.
    pub fn write_snapshot(&mut self, mark: &SnapshotMark) -> io::Result<()> {
        self.write_record(RecordKind::Snapshot, mark.encode())
    }

    /// Appends an entry.
    pub fn write_entry(&mut self, entry: &Entry) -> io::Result<()> {
        self.write_record(RecordKind::Entry, entry.encode())
    }

    /// Appends a hard state.
    pub fn write_state(&mut self, state: &HardState) -> io::Result<()> {
        self.write_record(RecordKind::State, state.encode())
    }

    /// Returns the current checksum of the chain; the next segment starts with it.
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// Returns the output, not flushed.
    pub fn into_inner(self) -> W {
        self.output
    }

    fn write_record(&mut self, kind: RecordKind, data: Vec<u8>) -> io::Result<()> {
        self.crc = crc32c::crc32c_append(self.crc, &data);
        self.write_frame(&record::encode(kind, self.crc, Some(Bytes::from(data))))
    }

    fn write_frame(&mut self, record: &[u8]) -> io::Result<()> {
        let length = record.len() as u64;
        let padding = usize::try_from(padding_for(length)).unwrap_or_default();
        self.output.write_all(&FrameLength::encode(length))?;
        self.output.write_all(record)?;
        self.output
            .write_all([0; 7].get(..padding).unwrap_or_default())
    }
}

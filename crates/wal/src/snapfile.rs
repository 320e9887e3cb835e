//! Raft snapshot files: `snap/<term>-<index>.snap`.
//!
//! An envelope with a checksum holds a raft snapshot. Its data is the v2 store as JSON (see
//! [`v2store`](crate::v2store)); its metadata gives the position in the log and the membership.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use mainstay_ids::{RaftIndex, Term};
use prost::Message as _;

use crate::message;
use crate::raft::ConfState;
use crate::segment::{parse_hex_number, parse_hex_pair};

/// Largest snapshot file accepted, in bytes. It holds only the v2 store, some kilobytes since etcd 3.
pub const MAX_SNAP_BYTES: u64 = 256 << 20;

/// Name of a snapshot file; the greatest is the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapName {
    /// Term of the last entry in the snapshot.
    pub term: Term,
    /// Index of the last entry in the snapshot.
    pub index: RaftIndex,
}

impl SnapName {
    /// Parses a file name; `None` for any other file, such as `….snap.broken` and `….snap.db`.
    pub fn parse(name: &str) -> Option<Self> {
        let (term, index) = parse_hex_pair(name.strip_suffix(".snap")?)?;
        Some(Self {
            term: Term(term),
            index: RaftIndex(index),
        })
    }
}

impl fmt::Display for SnapName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}.snap", self.term.0, self.index.0)
    }
}

/// Parses the raft index in the name `<index>.snap.db` of a database received from the leader.
pub fn parse_snap_db_index(name: &str) -> Option<RaftIndex> {
    parse_hex_number(name.strip_suffix(".snap.db")?).map(RaftIndex)
}

/// Why bytes are not a snapshot file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapError {
    /// The envelope is not a valid protobuf message.
    #[error("invalid snapshot envelope")]
    Envelope {
        /// Error of the protobuf decoder.
        source: prost::DecodeError,
    },
    /// The envelope has no data or no checksum; etcd treats such a file as empty.
    #[error("empty snapshot: no data or no crc")]
    Empty,
    /// The checksum does not match.
    #[error("crc mismatch: stored {stored:08x}, computed {computed:08x} over {length} bytes")]
    Crc {
        /// Checksum in the envelope.
        stored: u32,
        /// Checksum of the data.
        computed: u32,
        /// Length of the data in bytes.
        length: usize,
    },
    /// The snapshot is not a valid protobuf message although its checksum matches.
    #[error("invalid raft snapshot message")]
    Snapshot {
        /// Error of the protobuf decoder.
        source: prost::DecodeError,
    },
}

/// Why a snapshot file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadSnapError {
    /// Opening the file failed.
    #[error("open {}", file.display())]
    Open {
        /// Path of the file.
        file: PathBuf,
        /// I/O error.
        source: io::Error,
    },
    /// Reading the file failed.
    #[error("read {}", file.display())]
    Read {
        /// Path of the file.
        file: PathBuf,
        /// I/O error.
        source: io::Error,
    },
    /// The file exceeds [`MAX_SNAP_BYTES`].
    #[error("{} exceeds {MAX_SNAP_BYTES} bytes", file.display())]
    TooLarge {
        /// Path of the file.
        file: PathBuf,
    },
    /// The content is invalid.
    #[error("raft snapshot {} is corrupt", file.display())]
    Content {
        /// Path of the file.
        file: PathBuf,
        /// Why the content is invalid.
        source: SnapError,
    },
}

/// A raft snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapFile {
    /// Term of the last entry in the snapshot.
    pub term: Term,
    /// Index of the last entry in the snapshot.
    pub index: RaftIndex,
    /// Membership at that entry.
    pub conf_state: ConfState,
    /// The v2 store as JSON.
    pub data: Bytes,
}

impl SnapFile {
    /// Returns the file name etcd expects.
    pub fn name(&self) -> SnapName {
        SnapName {
            term: self.term,
            index: self.index,
        }
    }

    /// Reads and verifies a file.
    pub fn read(path: &Path) -> Result<Self, ReadSnapError> {
        let file = || path.to_owned();
        let input = File::open(path).map_err(|source| ReadSnapError::Open {
            file: file(),
            source,
        })?;
        let mut bytes = Vec::new();
        let length = input
            .take(MAX_SNAP_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|source| ReadSnapError::Read {
                file: file(),
                source,
            })?;
        if length as u64 > MAX_SNAP_BYTES {
            return Err(ReadSnapError::TooLarge { file: file() });
        }
        Self::decode(Bytes::from(bytes)).map_err(|source| ReadSnapError::Content {
            file: file(),
            source,
        })
    }

    /// Decodes and verifies the bytes of a file.
    pub fn decode(bytes: Bytes) -> Result<Self, SnapError> {
        let envelope = message::SnapEnvelope::decode(bytes)
            .map_err(|source| SnapError::Envelope { source })?;
        let data = envelope.data.unwrap_or_default();
        if data.is_empty() || envelope.crc == 0 {
            return Err(SnapError::Empty);
        }
        let (stored, computed) = (envelope.crc, crc32c::crc32c(&data));
        if stored != computed {
            return Err(SnapError::Crc {
                stored,
                computed,
                length: data.len(),
            });
        }
        let snapshot =
            message::Snapshot::decode(data).map_err(|source| SnapError::Snapshot { source })?;
        Ok(Self {
            term: Term(snapshot.metadata.term),
            index: RaftIndex(snapshot.metadata.index),
            conf_state: snapshot.metadata.conf_state.into(),
            data: snapshot.data.unwrap_or_default(),
        })
    }

    /// Encodes the file.
    pub fn encode(&self) -> Vec<u8> {
        let metadata = message::SnapshotMetadata {
            conf_state: (&self.conf_state).into(),
            index: self.index.0,
            term: self.term.0,
        };
        let data = (!self.data.is_empty()).then(|| self.data.clone());
        let data = Bytes::from(message::Snapshot { data, metadata }.encode_to_vec());
        message::SnapEnvelope {
            crc: crc32c::crc32c(&data),
            data: Some(data),
        }
        .encode_to_vec()
    }
}

#[cfg(test)]
mod tests {
    use mainstay_ids::MemberId;

    use super::*;

    #[test]
    fn only_valid_snap_names_are_parsed() {
        let name = SnapName {
            term: Term(1),
            index: RaftIndex(0x2a),
        };
        assert_eq!(name.to_string(), "0000000000000001-000000000000002a.snap");
        assert_eq!(SnapName::parse(&name.to_string()), Some(name));
        assert_eq!(
            SnapName::parse("0000000000000001-000000000000002a.snap.broken"),
            None
        );
        assert_eq!(SnapName::parse("000000000000002a.snap.db"), None);
        assert_eq!(
            parse_snap_db_index("000000000000002a.snap.db"),
            Some(RaftIndex(0x2a))
        );
        assert_eq!(parse_snap_db_index("db"), None);
    }

    #[test]
    fn empty_file_and_zero_crc_are_empty_snapshots() {
        assert!(matches!(
            SnapFile::decode(Bytes::new()),
            Err(SnapError::Empty)
        ));
        let no_crc = Bytes::from_static(b"\x08\x00\x12\x01x");
        assert!(matches!(SnapFile::decode(no_crc), Err(SnapError::Empty)));
    }

    #[test]
    fn flipped_bits_and_truncations_never_change_a_decoded_snapshot() {
        let snap = SnapFile {
            term: Term(3),
            index: RaftIndex(9),
            conf_state: ConfState::from_voters(vec![MemberId(7)]),
            data: Bytes::from_static(b"{}"),
        };
        let bytes = snap.encode();
        assert_eq!(SnapFile::decode(Bytes::from(bytes.clone())).unwrap(), snap);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // The varint of a checksum has spare bits that no reader uses.
            let read = SnapFile::decode(Bytes::from(flipped));
            assert!(
                read.as_ref().is_ok_and(|read| *read == snap) || read.is_err(),
                "bit {bit}: {read:?}"
            );
        }
        for length in 0..bytes.len() {
            let cut = Bytes::copy_from_slice(&bytes[..length]);
            assert!(SnapFile::decode(cut).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn damaged_file_is_named_in_the_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0000000000000001-0000000000000001.snap");
        assert!(matches!(
            SnapFile::read(&path),
            Err(ReadSnapError::Open { .. })
        ));
        std::fs::write(&path, b"\xff").unwrap();
        let error = SnapFile::read(&path).unwrap_err();
        assert!(matches!(error, ReadSnapError::Content { .. }));
        assert!(
            error.to_string().contains("0000000000000001.snap"),
            "{error}"
        );
    }
}

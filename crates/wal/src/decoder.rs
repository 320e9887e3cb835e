//! Decodes the frames of one segment into records with valid checksums.
//!
//! Input: the bytes of a segment and the checksum at the end of the previous segment. Output: one [`Record`] at a
//! time, then how the segment ends. A torn tail (an interrupted write) is distinguished from corruption by etcd's own
//! rule, and like in etcd only in the last segment.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use crate::frame::{FrameLength, LENGTH_BYTES, has_zero_sector, is_all_zero};
use crate::message;
use crate::record::{Record, RecordKind};

/// Longest record accepted, in bytes. etcd's own limit is the request size, 1.5 MiB unless raised.
pub const MAX_RECORD_BYTES: u64 = 256 << 20;

/// Bytes read at a time, so that a corrupt length allocates no more than the file holds.
const READ_CHUNK_BYTES: usize = 1 << 20;

/// A position in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentPosition {
    /// Path of the segment.
    pub file: PathBuf,
    /// Byte offset at which the frame starts.
    pub offset: u64,
}

impl fmt::Display for SegmentPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: byte {}", self.file.display(), self.offset)
    }
}

/// Position of a segment in its log: only the last one can have a torn tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentRole {
    /// Another segment follows.
    Inner,
    /// No segment follows.
    Last,
}

/// Why a tail counts as torn instead of corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TornReason {
    /// The file ends inside a frame.
    Truncated,
    /// The frame is invalid and a whole sector of it is zero, so it was never written.
    ZeroSector,
}

impl fmt::Display for TornReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "file ends inside the last record",
            Self::ZeroSector => "a sector of the last record was never written",
        })
    }
}

/// Next item of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextRecord {
    /// A record with a valid checksum.
    Record(Record),
    /// The end mark, or the end of the file.
    End,
    /// The rest is an interrupted write.
    Torn(TornReason),
}

/// Why decoding a segment failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Reading the file failed.
    #[error("read frame at {at}")]
    Read {
        /// Position of the frame.
        at: SegmentPosition,
        /// I/O error.
        source: io::Error,
    },
    /// A frame runs past the end of a segment that has a successor.
    #[error("{at}: frame of {claimed} bytes exceeds the remaining {remaining} bytes of the file")]
    FrameTooLong {
        /// Position of the frame.
        at: SegmentPosition,
        /// Bytes after the length field, according to it.
        claimed: u64,
        /// Bytes of the file after the length field.
        remaining: u64,
    },
    /// A record exceeds [`MAX_RECORD_BYTES`].
    #[error("{at}: record of {claimed} bytes exceeds the limit of {MAX_RECORD_BYTES}")]
    RecordTooLarge {
        /// Position of the frame.
        at: SegmentPosition,
        /// Record length in bytes according to the length field.
        claimed: u64,
    },
    /// The padding in the length field does not match the length.
    #[error("{at}: length field {field:016x} has invalid padding")]
    InvalidPadding {
        /// Position of the frame.
        at: SegmentPosition,
        /// The length field as a number.
        field: u64,
    },
    /// A record is not a valid protobuf message.
    #[error("{at}: invalid record")]
    Malformed {
        /// Position of the frame.
        at: SegmentPosition,
        /// Error of the protobuf decoder.
        source: prost::DecodeError,
    },
    /// The checksum of a record does not match.
    #[error("{at}: crc mismatch: stored {stored:08x}, computed {computed:08x}")]
    CrcMismatch {
        /// Position of the frame.
        at: SegmentPosition,
        /// Checksum in the record.
        stored: u32,
        /// Checksum of the bytes read.
        computed: u32,
    },
    /// The first checksum of a segment differs from the last one of the segment before.
    #[error(
        "{at}: crc chain broken: segment starts with {stored:08x}, previous segment ended with {computed:08x}"
    )]
    CrcChainBroken {
        /// Position of the frame.
        at: SegmentPosition,
        /// Checksum in the record.
        stored: u32,
        /// Checksum at the end of the previous segment.
        computed: u32,
    },
    /// A record has an unknown type.
    #[error("{at}: unknown record type {number}")]
    UnknownKind {
        /// Position of the frame.
        at: SegmentPosition,
        /// Record type on disk.
        number: i64,
    },
}

/// Decodes one segment from start to end.
#[derive(Debug)]
pub struct Decoder<R> {
    input: R,
    file: PathBuf,
    length: u64,
    role: SegmentRole,
    offset: u64,
    crc: u32,
    buffer: BytesMut,
}

impl<R: Read> Decoder<R> {
    /// Decodes the `length` bytes of `input`, continuing the checksum chain at `crc`. 0 accepts any value in the
    /// segment's first record. `file` is only used in errors.
    pub fn new(input: R, file: &Path, length: u64, role: SegmentRole, crc: u32) -> Self {
        let buffer = BytesMut::new();
        Self {
            input,
            file: file.to_owned(),
            length,
            role,
            offset: 0,
            crc,
            buffer,
        }
    }

    /// Returns the offset of the next frame: everything before it is verified.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the current checksum of the chain.
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// Returns the position of the next frame.
    pub fn position(&self) -> SegmentPosition {
        SegmentPosition {
            file: self.file.clone(),
            offset: self.offset,
        }
    }

    /// Returns the next record, or how the segment ends. After [`NextRecord::End`] and [`NextRecord::Torn`] only
    /// [`Self::count_unread_nonzero`] may be called.
    pub fn next_record(&mut self) -> Result<NextRecord, DecodeError> {
        let remaining = self.length.saturating_sub(self.offset);
        if remaining == 0 {
            return Ok(NextRecord::End);
        }
        let Some(behind_length) = remaining.checked_sub(LENGTH_BYTES) else {
            return self.short_frame(LENGTH_BYTES, remaining);
        };
        let mut field = [0; 8];
        self.input
            .read_exact(&mut field)
            .map_err(|source| self.read_error(source))?;
        let Some(frame) = FrameLength::decode(field) else {
            return Ok(NextRecord::End);
        };
        if frame.payload_len() > behind_length {
            return self.short_frame(frame.payload_len(), behind_length);
        }
        // The checksum does not cover the length field: its redundant padding reveals a flipped bit.
        if !frame.has_valid_padding() {
            let field = u64::from_le_bytes(field);
            return Err(DecodeError::InvalidPadding {
                at: self.position(),
                field,
            });
        }
        if frame.record_len > MAX_RECORD_BYTES {
            return Err(DecodeError::RecordTooLarge {
                at: self.position(),
                claimed: frame.record_len,
            });
        }
        let payload = self.read_payload(frame)?;
        self.check_payload(frame, &payload)
    }

    /// Verifies a completely read payload; advances only when it is valid.
    fn check_payload(
        &mut self,
        frame: FrameLength,
        payload: &Bytes,
    ) -> Result<NextRecord, DecodeError> {
        let result = self.verify(frame, payload);
        let Err(DecodeError::Malformed { .. } | DecodeError::CrcMismatch { .. }) = &result else {
            return result.map(NextRecord::Record);
        };
        let start = self.offset.saturating_add(LENGTH_BYTES);
        // etcd's rule: an invalid last record with an unwritten (zero) sector is a torn write, anything else corruption.
        if self.role == SegmentRole::Last && has_zero_sector(start, payload) {
            return Ok(NextRecord::Torn(TornReason::ZeroSector));
        }
        result.map(NextRecord::Record)
    }

    fn verify(&mut self, frame: FrameLength, payload: &Bytes) -> Result<Record, DecodeError> {
        let length = usize::try_from(frame.record_len)
            .unwrap_or(payload.len())
            .min(payload.len());
        let wire = message::Record::decode(payload.slice(..length)).map_err(|source| {
            DecodeError::Malformed {
                at: self.position(),
                source,
            }
        })?;
        let data = wire.data.unwrap_or_default();
        let kind = RecordKind::from_number(wire.kind);
        let computed = match kind {
            // Older segments may be purged, so the first one read (chain value 0) accepts any checksum.
            Some(RecordKind::Crc) if self.crc != 0 && self.crc != wire.crc => {
                let (stored, computed) = (wire.crc, self.crc);
                return Err(DecodeError::CrcChainBroken {
                    at: self.position(),
                    stored,
                    computed,
                });
            }
            Some(RecordKind::Crc) => wire.crc,
            _ => crc32c::crc32c_append(self.crc, &data),
        };
        if computed != wire.crc {
            return Err(DecodeError::CrcMismatch {
                at: self.position(),
                stored: wire.crc,
                computed,
            });
        }
        let Some(kind) = kind else {
            return Err(DecodeError::UnknownKind {
                at: self.position(),
                number: wire.kind,
            });
        };
        self.crc = computed;
        self.offset = self
            .offset
            .saturating_add(LENGTH_BYTES)
            .saturating_add(frame.payload_len());
        Ok(Record {
            kind,
            crc: computed,
            data,
        })
    }

    /// The result for an incomplete frame: torn in the last segment, corrupt in any other.
    fn short_frame(&self, claimed: u64, remaining: u64) -> Result<NextRecord, DecodeError> {
        match self.role {
            SegmentRole::Last => Ok(NextRecord::Torn(TornReason::Truncated)),
            SegmentRole::Inner => Err(DecodeError::FrameTooLong {
                at: self.position(),
                claimed,
                remaining,
            }),
        }
    }

    fn read_payload(&mut self, frame: FrameLength) -> Result<Bytes, DecodeError> {
        let mut missing =
            usize::try_from(frame.payload_len()).map_err(|_| DecodeError::RecordTooLarge {
                at: self.position(),
                claimed: frame.record_len,
            })?;
        self.buffer.clear();
        while missing > 0 {
            let step = missing.min(READ_CHUNK_BYTES);
            let start = self.buffer.len();
            self.buffer.resize(start + step, 0);
            let chunk = self.buffer.get_mut(start..).unwrap_or_default();
            self.input
                .read_exact(chunk)
                .map_err(|source| DecodeError::Read {
                    at: self.position(),
                    source,
                })?;
            missing -= step;
        }
        Ok(self.buffer.split().freeze())
    }

    fn read_error(&self, source: io::Error) -> DecodeError {
        DecodeError::Read {
            at: self.position(),
            source,
        }
    }

    /// Reads to the end of the file and returns the number of bytes from the current position up to the last byte that
    /// is not zero.
    pub fn count_unread_nonzero(&mut self) -> Result<u64, DecodeError> {
        let mut chunk = vec![0; READ_CHUNK_BYTES / 16];
        let (mut position, mut nonzero) = (0_u64, 0_u64);
        loop {
            let count = match self.input.read(&mut chunk) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(self.read_error(source)),
            };
            let Some(bytes) = chunk.get(..count).filter(|bytes| !bytes.is_empty()) else {
                return Ok(nonzero);
            };
            if !is_all_zero(bytes) {
                let last = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
                nonzero = position.saturating_add(last as u64).saturating_add(1);
            }
            position = position.saturating_add(count as u64);
        }
    }
}

impl<R: Read + Seek> Decoder<R> {
    /// Seeks back to the start of the next frame, so that [`Self::count_unread_nonzero`] counts from there.
    pub fn rewind_to_frame(&mut self) -> Result<(), DecodeError> {
        let moved = self.input.seek(SeekFrom::Start(self.offset));
        moved.map(drop).map_err(|source| self.read_error(source))
    }
}

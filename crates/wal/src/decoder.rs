//! Frames of one segment become records whose checksum holds.
//!
//! Comes in: the bytes of a segment and the checksum the segment before it ended with. Goes out: one
//! [`Record`] at a time, then how the segment ended. A tail torn by a crash is told apart from damage by the
//! rule etcd follows, and only where etcd looks for it: in the last segment.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use crate::frame::{FrameLength, LENGTH_BYTES, has_zero_sector, is_all_zero};
use crate::message;
use crate::record::{Record, RecordKind};

/// The longest record that is read. etcd's own limit is that of a request, 1.5 MiB unless raised.
pub const MAX_RECORD_BYTES: u64 = 256 << 20;

/// Bytes taken from the file at a time, so that a length that lies costs no more than what is really there.
const READ_CHUNK_BYTES: usize = 1 << 20;

/// A place in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentPosition {
    /// The segment.
    pub file: PathBuf,
    /// The byte its frame starts at.
    pub offset: u64,
}

impl fmt::Display for SegmentPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, byte {}", self.file.display(), self.offset)
    }
}

/// Where a segment stands in its log: only the last one can have a torn tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentRole {
    /// Others follow.
    Inner,
    /// None follows.
    Last,
}

/// Why a tail counts as torn rather than damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TornReason {
    /// The file ends inside a frame.
    Truncated,
    /// The frame is wrong and a whole sector of it was never written.
    ZeroSector,
}

impl fmt::Display for TornReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "the file ends inside the last record",
            Self::ZeroSector => "a sector of the last record was never written",
        })
    }
}

/// What stands next in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextRecord {
    /// A record; its checksum holds.
    Record(Record),
    /// The end mark, or the end of the file.
    End,
    /// The rest is the remains of a write that a crash cut off.
    Torn(TornReason),
}

/// Why a segment cannot be read on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes cannot be had.
    #[error("read the frame at {at}")]
    Read {
        /// The frame.
        at: SegmentPosition,
        /// What the system said.
        source: io::Error,
    },
    /// A frame runs past the end of a segment that has a successor.
    #[error("{at}: frame claims {claimed} bytes but only {remaining} remain")]
    FrameTooLong {
        /// The frame.
        at: SegmentPosition,
        /// Bytes behind the length field, by its own account.
        claimed: u64,
        /// Bytes of the file behind the frame's start.
        remaining: u64,
    },
    /// A record is longer than any etcd writes.
    #[error("{at}: record claims {claimed} bytes, above the limit of {MAX_RECORD_BYTES}")]
    RecordTooLarge {
        /// The frame.
        at: SegmentPosition,
        /// Its length by its own account.
        claimed: u64,
    },
    /// The padding in the length field does not belong to the length.
    #[error("{at}: length field {field:016x} states a padding that does not fit")]
    InvalidPadding {
        /// The frame.
        at: SegmentPosition,
        /// The length field as a number.
        field: u64,
    },
    /// A record is no protobuf message.
    #[error("{at}: record cannot be parsed")]
    Malformed {
        /// The frame.
        at: SegmentPosition,
        /// What the parser said.
        source: prost::DecodeError,
    },
    /// A record's checksum does not hold.
    #[error("{at}: crc mismatch: stored {stored:08x}, computed {computed:08x}")]
    CrcMismatch {
        /// The frame.
        at: SegmentPosition,
        /// What the record says.
        stored: u32,
        /// What its bytes give.
        computed: u32,
    },
    /// A segment does not continue the checksum of the one before.
    #[error(
        "{at}: segment continues crc {stored:08x}, the log before it ended with {computed:08x}"
    )]
    CrcChainBroken {
        /// The frame.
        at: SegmentPosition,
        /// What the record says.
        stored: u32,
        /// What the log gave so far.
        computed: u32,
    },
    /// A record is of a type etcd does not know.
    #[error("{at}: unknown record type {number}")]
    UnknownKind {
        /// The frame.
        at: SegmentPosition,
        /// The type.
        number: i64,
    },
}

/// Reads one segment front to back.
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
    /// Over the `length` bytes of `input`, continuing the chain at `crc`; 0 accepts whatever value the
    /// segment's first record carries over. `file` is only named in errors.
    pub fn new(input: R, file: &Path, length: u64, place: SegmentRole, crc: u32) -> Self {
        let buffer = BytesMut::new();
        Self {
            input,
            file: file.to_owned(),
            length,
            role: place,
            offset: 0,
            crc,
            buffer,
        }
    }

    /// The byte the next frame starts at: everything before it is proven.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The checksum the chain has reached.
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// The place of the next frame.
    pub fn position(&self) -> SegmentPosition {
        SegmentPosition {
            file: self.file.clone(),
            offset: self.offset,
        }
    }

    /// The next record, or how the segment ends. After [`Decoded::End`] and [`Decoded::Torn`] only
    /// [`count_unread_nonzero`](Self::unread_nonzero) makes sense.
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

    /// Checks a payload read whole; moves on only when it holds.
    fn check_payload(&mut self, frame: FrameLength, payload: &Bytes) -> Result<NextRecord, DecodeError> {
        let verdict = self.verify(frame, payload);
        let Err(DecodeError::Malformed { .. } | DecodeError::CrcMismatch { .. }) = &verdict else {
            return verdict.map(NextRecord::Record);
        };
        let start = self.offset.saturating_add(LENGTH_BYTES);
        if self.role == SegmentRole::Last && has_zero_sector(start, payload) {
            return Ok(NextRecord::Torn(TornReason::ZeroSector));
        }
        verdict.map(NextRecord::Record)
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

    /// A frame that the file does not hold whole: torn in the last segment, damage in any other.
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
        let mut missing = usize::try_from(frame.payload_len()).map_err(|_| DecodeError::RecordTooLarge {
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

    /// Reads to the end of the file and says how many bytes there are up to the last one that is not
    /// zero, counted from where the reading stands.
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
    /// Goes back to where the next frame starts, so that
    /// [`count_unread_nonzero`](Self::unread_nonzero) counts from there.
    pub fn rewind_to_frame(&mut self) -> Result<(), DecodeError> {
        let moved = self.input.seek(SeekFrom::Start(self.offset));
        moved.map(drop).map_err(|source| self.read_error(source))
    }
}

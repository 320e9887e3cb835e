//! The records of several segments as one stream with positions, followed by the tail.

use std::fs::File;
use std::io::BufReader;
use std::slice;

use crate::decoder::{Decoder, NextRecord, SegmentPosition, SegmentRole};
use crate::frame::LENGTH_BYTES;
use crate::log::{LogError, LogTail};
use crate::record::{Record, RecordKind};
use crate::segment::{Segment, SegmentName};

/// Read buffer size in bytes.
const READ_AHEAD: usize = 256 << 10;

/// Records at the start of every segment, in this order.
const SEGMENT_HEADER: [RecordKind; 2] = [RecordKind::Crc, RecordKind::Metadata];

/// A record and its position.
#[derive(Debug)]
pub(super) struct LocatedRecord {
    pub(super) at: SegmentPosition,
    pub(super) segment: SegmentName,
    /// True for the first record of a segment.
    pub(super) is_first_in_segment: bool,
    pub(super) record: Record,
}

#[derive(Debug)]
struct OpenSegment {
    decoder: Decoder<BufReader<File>>,
    name: SegmentName,
    records: usize,
    role: SegmentRole,
}

/// Iterates over the records of segments in order.
#[derive(Debug)]
pub(super) struct Records<'a> {
    remaining: slice::Iter<'a, Segment>,
    open: Option<OpenSegment>,
    crc: u32,
    tail: LogTail,
}

impl<'a> Records<'a> {
    /// Reads `segments`, which must be contiguous and end with the last one of the log.
    pub(super) fn new(segments: &'a [Segment]) -> Self {
        Self {
            remaining: segments.iter(),
            open: None,
            crc: 0,
            tail: LogTail::Clean,
        }
    }

    /// Returns the next record; `None` after the last segment.
    pub(super) fn next_record(&mut self) -> Result<Option<LocatedRecord>, LogError> {
        loop {
            let Some(open) = self.open.as_mut() else {
                match self.remaining.next() {
                    Some(segment) => self.open = Some(self.open_segment(segment)?),
                    None => return Ok(None),
                }
                continue;
            };
            let at = open.decoder.position();
            let record = match open.decoder.next_record()? {
                NextRecord::Record(record) => record,
                end => {
                    self.close_segment(&end)?;
                    continue;
                }
            };
            let ordinal = open.records;
            open.records += 1;
            if SEGMENT_HEADER
                .get(ordinal)
                .is_some_and(|expected| *expected != record.kind)
            {
                return Err(LogError::MissingHeader { at });
            }
            let segment = open.name;
            return Ok(Some(LocatedRecord {
                at,
                segment,
                is_first_in_segment: ordinal == 0,
                record,
            }));
        }
    }

    /// Returns how the last segment ended; valid after the last record.
    pub(super) fn into_tail(self) -> LogTail {
        self.tail
    }

    fn open_segment(&self, segment: &Segment) -> Result<OpenSegment, LogError> {
        let file = File::open(&segment.path).map_err(|source| LogError::Open {
            file: segment.path.clone(),
            source,
        })?;
        let role = if self.remaining.as_slice().is_empty() {
            SegmentRole::Last
        } else {
            SegmentRole::Inner
        };
        let capacity = usize::try_from(segment.length)
            .unwrap_or(READ_AHEAD)
            .clamp(1, READ_AHEAD);
        let input = BufReader::with_capacity(capacity, file);
        let decoder = Decoder::new(input, &segment.path, segment.length, role, self.crc);
        Ok(OpenSegment {
            decoder,
            name: segment.name,
            records: 0,
            role,
        })
    }

    fn close_segment(&mut self, end: &NextRecord) -> Result<(), LogError> {
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        let at = open.decoder.position();
        self.crc = open.decoder.crc();
        match end {
            NextRecord::Torn(reason) => {
                open.decoder.rewind_to_frame()?;
                let discarded_bytes = open.decoder.count_unread_nonzero()?;
                self.tail = LogTail::Torn {
                    at,
                    discarded_bytes,
                    reason: *reason,
                };
                return Ok(());
            }
            _ if open.records < SEGMENT_HEADER.len() => return Err(LogError::MissingHeader { at }),
            _ if open.role == SegmentRole::Inner => return Ok(()),
            _ => {}
        }
        let after_marker = open.decoder.count_unread_nonzero()?;
        if after_marker > 0 {
            let discarded_bytes = after_marker.saturating_add(LENGTH_BYTES);
            self.tail = LogTail::Trailing {
                at,
                discarded_bytes,
            };
        }
        Ok(())
    }
}

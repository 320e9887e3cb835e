//! The records of several segments as one stream, each with its place, and then the tail.

use std::fs::File;
use std::io::BufReader;
use std::slice;

use crate::decoder::{At, Decoded, Decoder, Place};
use crate::frame::LENGTH_BYTES;
use crate::log::{LogError, Tail};
use crate::record::{Record, RecordKind};
use crate::segment::{Segment, SegmentName};

/// Bytes read from disk at a time.
const READ_AHEAD: usize = 256 << 10;

/// Records every segment begins with, in this order.
const HEAD: [RecordKind; 2] = [RecordKind::Crc, RecordKind::Metadata];

/// A record and where it stands.
#[derive(Debug)]
pub(super) struct Located {
    pub(super) at: At,
    pub(super) segment: SegmentName,
    /// Whether it is the first of its segment.
    pub(super) opens_segment: bool,
    pub(super) record: Record,
}

#[derive(Debug)]
struct Open {
    decoder: Decoder<BufReader<File>>,
    name: SegmentName,
    records: usize,
    place: Place,
}

/// Walks segments front to back.
#[derive(Debug)]
pub(super) struct Records<'a> {
    waiting: slice::Iter<'a, Segment>,
    open: Option<Open>,
    crc: u32,
    tail: Tail,
}

impl<'a> Records<'a> {
    /// Over `segments`, which are contiguous and end with the last one of the log.
    pub(super) fn over(segments: &'a [Segment]) -> Self {
        Self {
            waiting: segments.iter(),
            open: None,
            crc: 0,
            tail: Tail::Clean,
        }
    }

    /// The next record; `None` once the last segment has ended.
    pub(super) fn next_record(&mut self) -> Result<Option<Located>, LogError> {
        loop {
            let Some(open) = self.open.as_mut() else {
                match self.waiting.next() {
                    Some(segment) => self.open = Some(self.open_segment(segment)?),
                    None => return Ok(None),
                }
                continue;
            };
            let at = open.decoder.at();
            let record = match open.decoder.next_record()? {
                Decoded::Record(record) => record,
                end => {
                    self.close(&end)?;
                    continue;
                }
            };
            let ordinal = open.records;
            open.records += 1;
            if HEAD
                .get(ordinal)
                .is_some_and(|expected| *expected != record.kind)
            {
                return Err(LogError::Headless { at });
            }
            let segment = open.name;
            return Ok(Some(Located {
                at,
                segment,
                opens_segment: ordinal == 0,
                record,
            }));
        }
    }

    /// How the last segment ended, once there are no more records.
    pub(super) fn into_tail(self) -> Tail {
        self.tail
    }

    fn open_segment(&self, segment: &Segment) -> Result<Open, LogError> {
        let file = File::open(&segment.path).map_err(|source| LogError::Open {
            file: segment.path.clone(),
            source,
        })?;
        let place = if self.waiting.as_slice().is_empty() {
            Place::Last
        } else {
            Place::Inner
        };
        let capacity = usize::try_from(segment.length)
            .unwrap_or(READ_AHEAD)
            .clamp(1, READ_AHEAD);
        let input = BufReader::with_capacity(capacity, file);
        let decoder = Decoder::new(input, &segment.path, segment.length, place, self.crc);
        Ok(Open {
            decoder,
            name: segment.name,
            records: 0,
            place,
        })
    }

    fn close(&mut self, end: &Decoded) -> Result<(), LogError> {
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        let at = open.decoder.at();
        self.crc = open.decoder.crc();
        match end {
            Decoded::Torn(reason) => {
                open.decoder.rewind_to_frame()?;
                let discarded_bytes = open.decoder.unread_nonzero()?;
                self.tail = Tail::Torn {
                    at,
                    discarded_bytes,
                    reason: *reason,
                };
                return Ok(());
            }
            _ if open.records < HEAD.len() => return Err(LogError::Headless { at }),
            _ if open.place == Place::Inner => return Ok(()),
            _ => {}
        }
        let behind_mark = open.decoder.unread_nonzero()?;
        if behind_mark > 0 {
            let discarded_bytes = behind_mark.saturating_add(LENGTH_BYTES);
            self.tail = Tail::Trailing {
                at,
                discarded_bytes,
            };
        }
        Ok(())
    }
}

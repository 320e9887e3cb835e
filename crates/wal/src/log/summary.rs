//! Builds a [`LogSummary`] from records in log order.

use bytes::Bytes;
use mainstay_ids::{ClusterId, MemberId, RaftIndex, Term};
use prost::Message as _;

use crate::decoder::SegmentPosition;
use crate::log::records::LocatedRecord;
use crate::log::terms::{MAX_RUNS, TermRuns};
use crate::log::{LogError, LogSummary, LogTail, WalIdentity};
use crate::message;
use crate::raft::{Entry, EntryFault, EntryKind, HardState, SnapshotMark};
use crate::record::RecordKind;
use crate::segment::{Segment, SegmentName};

/// Maximum number of snapshot records; etcd writes one per ten thousand entries or more.
const MAX_MARKS: usize = 1 << 16;

/// Maximum size of a snapshot record in bytes: enough for thousands of members.
const MAX_MARK_BYTES: usize = 64 << 10;

/// State after the records so far.
#[derive(Debug, Default)]
pub(super) struct SummaryBuilder {
    /// The metadata record, raw and decoded.
    metadata: Option<(Bytes, WalIdentity)>,
    snapshots: Vec<SnapshotMark>,
    hard_state: Option<HardState>,
    first_index: Option<RaftIndex>,
    /// `None` until the first segment gives the start of the log.
    last_index: Option<RaftIndex>,
    terms: TermRuns,
}

impl SummaryBuilder {
    /// Adds one record.
    pub(super) fn add_record(&mut self, located: LocatedRecord) -> Result<(), LogError> {
        let LocatedRecord {
            at,
            segment,
            is_first_in_segment,
            record,
        } = located;
        match record.kind {
            RecordKind::Crc if is_first_in_segment => self.begin_segment(at, segment),
            RecordKind::Crc => Ok(()), // checked by the decoder
            RecordKind::Metadata => self.add_metadata(at, &record.data),
            RecordKind::Snapshot => self.add_snapshot(at, record.data),
            RecordKind::State => self.add_state(at, record.data),
            RecordKind::Entry => {
                let entry = decode_entry(&at, record.data)?;
                self.add_entry(at, &entry)
            }
        }
    }

    /// Returns the summary after the last record.
    pub(super) fn finish(
        self,
        segments: &[Segment],
        tail: LogTail,
    ) -> Result<LogSummary, LogError> {
        let Some((_, identity)) = self.metadata else {
            let file = segments
                .last()
                .map(|segment| segment.path.clone())
                .unwrap_or_default();
            return Err(LogError::NoMetadata { file });
        };
        Ok(LogSummary {
            identity,
            snapshots: self.snapshots,
            hard_state: self.hard_state,
            first_index: self.first_index,
            last_index: self.last_index.unwrap_or_default(),
            tail,
            terms: self.terms,
        })
    }

    /// The first segment gives the start of the log, since etcd may have purged older ones. Any other segment is named
    /// for the index after the last saved one.
    fn begin_segment(&mut self, at: SegmentPosition, name: SegmentName) -> Result<(), LogError> {
        let Some(last) = self.last_index else {
            self.last_index = Some(RaftIndex(name.first_index.0.saturating_sub(1)));
            return Ok(());
        };
        let expected = RaftIndex(last.0.saturating_add(1));
        // After a restart etcd counts a snapshot received from the leader as saved only from the first entry after
        // it, so a segment cut in between has a lower index in its name.
        let precedes_received_snapshot = self.first_index.is_none() && name.first_index < expected;
        if name.first_index != expected && !precedes_received_snapshot {
            return Err(LogError::SegmentNameMismatch {
                at,
                expected,
                found: name.first_index,
            });
        }
        Ok(())
    }

    fn add_metadata(&mut self, at: SegmentPosition, data: &Bytes) -> Result<(), LogError> {
        let wire =
            message::Metadata::decode(data.clone()).map_err(|source| LogError::InvalidMessage {
                at: at.clone(),
                what: "metadata",
                source,
            })?;
        let found = WalIdentity {
            node: MemberId(wire.node),
            cluster: ClusterId(wire.cluster),
        };
        match &self.metadata {
            Some((known, expected)) if known != data => Err(LogError::ConflictingMetadata {
                at,
                expected: expected.node,
                found: found.node,
            }),
            Some(_) => Ok(()),
            None => {
                self.metadata = Some((Bytes::copy_from_slice(data), found));
                Ok(())
            }
        }
    }

    fn add_snapshot(&mut self, at: SegmentPosition, data: Bytes) -> Result<(), LogError> {
        if data.len() > MAX_MARK_BYTES {
            return Err(LogError::MarkTooLarge {
                at,
                length: data.len(),
            });
        }
        if self.snapshots.len() == MAX_MARKS {
            return Err(LogError::TooMany {
                at,
                limit: MAX_MARKS,
                what: "snapshot records",
            });
        }
        let mark = message::SnapshotMark::decode(data)
            .map(SnapshotMark::from)
            .map_err(|source| LogError::InvalidMessage {
                at: at.clone(),
                what: "snapshot",
                source,
            })?;
        if self.last_index.is_none_or(|last| mark.index > last) {
            self.restart_at_snapshot(&mark);
        } else if mark.index == RaftIndex(0) {
            // The initial snapshot record gives the term at index 0.
            self.terms.set(mark.index, mark.term);
        }
        self.snapshots.push(mark);
        Ok(())
    }

    /// Applies a snapshot from the leader that is ahead of the log: raft discards the log and continues after it.
    fn restart_at_snapshot(&mut self, mark: &SnapshotMark) {
        self.terms.clear();
        self.terms.set(mark.index, mark.term);
        self.last_index = Some(mark.index);
        self.first_index = None;
    }

    fn add_state(&mut self, at: SegmentPosition, data: Bytes) -> Result<(), LogError> {
        let wire = message::HardState::decode(data).map_err(|source| LogError::InvalidMessage {
            at: at.clone(),
            what: "hard state",
            source,
        })?;
        // The checksum does not cover the record type, so an entry with a flipped type bit can look like a state.
        if wire.entry_data.is_some() {
            return Err(LogError::EntryInStateRecord { at });
        }
        let state = HardState::from(&wire);
        let before = self.hard_state.map_or(Term(0), |state| state.term);
        if state.term < before || state.term == Term(0) {
            return Err(LogError::StateTermDecreased {
                at,
                before,
                found: state.term,
            });
        }
        self.hard_state = Some(state);
        Ok(())
    }

    fn add_entry(&mut self, at: SegmentPosition, entry: &Entry) -> Result<(), LogError> {
        let index = entry.index;
        let last = self.last_index.unwrap_or_default();
        let Some(previous) = index.0.checked_sub(1).map(RaftIndex) else {
            return Err(LogError::IndexZero { at });
        };
        if previous > last {
            return Err(LogError::IndexGap {
                at,
                last,
                found: index,
            });
        }
        if entry.kind != EntryKind::Normal && entry.data.is_empty() {
            return Err(LogError::EmptyConfChange { at, index });
        }
        if let Some(before) = self
            .terms
            .term_at(previous)
            .filter(|before| *before > entry.term)
        {
            return Err(LogError::TermDecreased {
                at,
                index,
                before,
                found: entry.term,
            });
        }
        if self.terms.set(index, entry.term).is_none() {
            return Err(LogError::TooMany {
                at,
                limit: MAX_RUNS,
                what: "term changes",
            });
        }
        self.first_index = Some(self.first_index.map_or(index, |first| first.min(index)));
        self.last_index = Some(index);
        Ok(())
    }
}

/// Decodes the entry in a record's data.
pub(super) fn decode_entry(at: &SegmentPosition, data: Bytes) -> Result<Entry, LogError> {
    Entry::decode(data).map_err(|fault| match fault {
        EntryFault::Malformed(source) => LogError::InvalidMessage {
            at: at.clone(),
            what: "entry",
            source,
        },
        EntryFault::UnknownKind(number) => LogError::UnknownEntryKind {
            at: at.clone(),
            number,
        },
    })
}

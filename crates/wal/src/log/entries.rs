//! The effective entries of a log, after overwrites, in index order.

use mainstay_ids::RaftIndex;

use crate::log::records::Records;
use crate::log::{LogError, LogSummary, first_needed_segment, summary};
use crate::raft::Entry;
use crate::record::RecordKind;
use crate::segment::Segment;

/// The effective entries of a log between two indexes. Reads the segments a second time. Created by
/// [`Log::entries_after`](crate::Log::entries_after).
///
/// An entry is effective when its term equals the summary's term for its index: raft never has two different
/// entries with the same index and term.
#[derive(Debug)]
pub struct Entries<'a> {
    records: Records<'a>,
    summary: &'a LogSummary,
    last_returned: RaftIndex,
    until: RaftIndex,
    failed: bool,
}

impl<'a> Entries<'a> {
    pub(super) fn new(
        segments: &'a [Segment],
        summary: &'a LogSummary,
        after: RaftIndex,
        until: RaftIndex,
    ) -> Self {
        let next = RaftIndex(after.0.saturating_add(1));
        let start = first_needed_segment(segments, next);
        let records = Records::new(segments.get(start..).unwrap_or_default());
        Self {
            records,
            summary,
            last_returned: after,
            until,
            failed: false,
        }
    }

    fn advance(&mut self) -> Result<Option<Entry>, LogError> {
        while self.last_returned < self.until {
            let Some(located) = self.records.next_record()? else {
                break;
            };
            if located.record.kind != RecordKind::Entry {
                continue;
            }
            let entry = summary::decode_entry(&located.at, located.record.data)?;
            let is_due = entry.index > self.last_returned && entry.index <= self.until;
            if is_due && self.summary.term_at(entry.index) == Some(entry.term) {
                self.last_returned = entry.index;
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.advance();
        self.failed = next.is_err();
        next.transpose()
    }
}

//! A whole log: reads every segment of a directory into the state that etcd has after reading it.
//!
//! ```text
//! Log::open → segments ──records──► fold (identity, marks, hard state, index and term order) → LogSummary
//!                     └─entries───► effective ones after an index → Entries
//! ```
//!
//! Invariants: entries overwrite those of a former leader exactly as in etcd. An index gap, a decreasing term, a wrong
//! segment name or a changed member identity is an error with its position. Memory: one read buffer, and sixteen
//! bytes per change of term.

mod entries;
mod error;
mod records;
mod summary;
mod terms;

use std::ffi::OsString;
use std::path::Path;

use mainstay_ids::{ClusterId, MemberId, RaftIndex, Term};

use crate::decoder::{SegmentPosition, TornReason};
use crate::raft::{HardState, SnapshotMark};
use crate::segment::{self, ListError, Segment};

pub use self::entries::Entries;
pub use self::error::LogError;
use self::records::Records;
use self::summary::SummaryBuilder;
use self::terms::TermRuns;

/// The member that wrote a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalIdentity {
    /// Member ID.
    pub node: MemberId,
    /// Cluster ID.
    pub cluster: ClusterId,
}

/// How the last segment ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTail {
    /// Zeros, or the end of the file.
    Clean,
    /// An interrupted write. etcd repairs it at start: everything before is intact.
    Torn {
        /// End of the intact part.
        at: SegmentPosition,
        /// Bytes after that position, without preallocated zeros.
        discarded_bytes: u64,
        /// Why the tail counts as torn.
        reason: TornReason,
    },
    /// Bytes after the end marker: later sectors of a torn write, or the rest of a log with a corrupt length field.
    /// etcd overwrites them with zeros without logging it.
    Trailing {
        /// Position of the end marker.
        at: SegmentPosition,
        /// Bytes from the end marker to the last byte that is not zero.
        discarded_bytes: u64,
    },
}

/// State of a log after reading all of it.
#[derive(Clone, Debug)]
pub struct LogSummary {
    /// The member that wrote it.
    pub identity: WalIdentity,
    /// The snapshot records, oldest first.
    pub snapshots: Vec<SnapshotMark>,
    /// The newest hard state; `None` in a newly created log.
    pub hard_state: Option<HardState>,
    /// Index of the oldest effective entry; `None` without entries.
    pub first_index: Option<RaftIndex>,
    /// Index of the newest entry, or of the newest snapshot when no entry follows it.
    pub last_index: RaftIndex,
    /// How the last segment ends.
    pub tail: LogTail,
    terms: TermRuns,
}

impl LogSummary {
    /// Returns the term of the entry or snapshot at `index`; `None` outside the log.
    pub fn term_at(&self, index: RaftIndex) -> Option<Term> {
        (index <= self.last_index)
            .then(|| self.terms.term_at(index))
            .flatten()
    }

    /// Returns the commit index; 0 without a hard state.
    pub fn commit_index(&self) -> RaftIndex {
        self.hard_state.map_or(RaftIndex(0), |state| state.commit)
    }

    /// Returns the snapshot records etcd accepts, newest first: those not above the commit index.
    pub fn usable_snapshots(&self) -> impl Iterator<Item = &SnapshotMark> {
        let commit = self.commit_index();
        self.snapshots
            .iter()
            .rev()
            .filter(move |mark| mark.index <= commit)
    }

    /// Returns the number of committed entries that the log does not hold. Greater than 0 means that the end of the log
    /// was lost; etcd panics on such a log.
    pub fn lost_commits(&self) -> u64 {
        self.commit_index().0.saturating_sub(self.last_index.0)
    }
}

/// The log in a directory.
#[derive(Clone, Debug)]
pub struct Log {
    segments: Vec<Segment>,
    other_files: Vec<OsString>,
}

impl Log {
    /// Lists the segments of `dir` and checks that the sequence has no gap. Reads no segment.
    pub fn open(dir: &Path) -> Result<Self, ListError> {
        let (segments, other_files) = segment::list_segments(dir)?;
        Ok(Self {
            segments,
            other_files,
        })
    }

    /// Returns the log starting at the newest segment named for at most `index`; entries from `index` on need no older
    /// one. Returns the whole log when there is no such segment.
    #[must_use]
    pub fn since(&self, index: RaftIndex) -> Self {
        let segments = self
            .segments
            .get(first_needed_segment(&self.segments, index)..);
        Self {
            segments: segments.unwrap_or_default().to_vec(),
            other_files: self.other_files.clone(),
        }
    }

    /// Returns the segments, oldest first; at least one.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the names of other files in the directory: preallocated segments, copies of broken ones.
    pub fn other_files(&self) -> &[OsString] {
        &self.other_files
    }

    /// Reads and verifies every segment.
    pub fn read(&self) -> Result<LogSummary, LogError> {
        let mut records = Records::new(&self.segments);
        let mut fold = SummaryBuilder::default();
        while let Some(located) = records.next_record()? {
            fold.add_record(located)?;
        }
        fold.finish(&self.segments, records.into_tail())
    }

    /// Returns the effective entries after `after`, in index order, committed or not. `summary` must come from
    /// [`read`](Self::read) of the same files.
    pub fn entries_after<'a>(&'a self, summary: &'a LogSummary, after: RaftIndex) -> Entries<'a> {
        Entries::new(&self.segments, summary, after, summary.last_index)
    }

    /// Returns the committed entries after `after`, in index order: those that a database with consistent index `after`
    /// has not applied yet.
    pub fn committed_after<'a>(&'a self, summary: &'a LogSummary, after: RaftIndex) -> Entries<'a> {
        let until = summary.commit_index().min(summary.last_index);
        Entries::new(&self.segments, summary, after, until)
    }
}

/// Position of the newest segment named for at most `index`. Effective entries from `index` on are never in an older
/// one, because a segment is named for the entry after everything before it.
fn first_needed_segment(segments: &[Segment], index: RaftIndex) -> usize {
    segments
        .iter()
        .rposition(|segment| segment.name.first_index <= index)
        .unwrap_or_default()
}

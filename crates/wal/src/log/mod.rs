//! A whole log: every segment of a directory, folded into what etcd would know after reading it.
//!
//! ```text
//! Log::open → segments ──records──► fold (identity, marks, hard state, index and term order) → LogSummary
//!                     └─entries───► those still in force behind an index → Entries
//! ```
//!
//! Holds: entries overwrite what a former leader left behind, exactly as etcd reads them; an index that
//! jumps, a term that falls, a name that lies, or a member that changes its identity is an error with its
//! place. Memory: one read buffer, and sixteen bytes per change of term.

mod entries;
mod error;
mod fold;
mod records;
mod terms;

use std::ffi::OsString;
use std::path::Path;

use mainstay_ids::{ClusterId, MemberId, RaftIndex, Term};

use crate::decoder::{SegmentPosition, TornReason};
use crate::raft::{HardState, SnapshotMark};
use crate::segment::{self, ListError, Segment};

pub use self::entries::Entries;
pub use self::error::LogError;
use self::fold::SummaryBuilder;
use self::records::Records;
use self::terms::TermRuns;

/// Who wrote a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalIdentity {
    /// The member.
    pub node: MemberId,
    /// Its cluster.
    pub cluster: ClusterId,
}

/// How the last segment ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTail {
    /// With zeros or the end of the file.
    Clean,
    /// With the remains of a write that a crash cut off. etcd repairs it by itself: everything before is intact.
    Torn {
        /// Where the intact part ends.
        at: SegmentPosition,
        /// Bytes behind that place, preallocated zeros not counted.
        discarded_bytes: u64,
        /// What gave it away.
        reason: TornReason,
    },
    /// With bytes behind the end mark. etcd overwrites them with zeros without a word: they are what later
    /// sectors of a torn write leave, or what is left of a log whose length field was damaged.
    Trailing {
        /// The end mark.
        at: SegmentPosition,
        /// Bytes from the end mark to the last one that is not zero.
        discarded_bytes: u64,
    },
}

/// What a log says after reading all of it.
#[derive(Clone, Debug)]
pub struct LogSummary {
    /// Who wrote it.
    pub identity: WalIdentity,
    /// The snapshot marks, oldest first.
    pub snapshots: Vec<SnapshotMark>,
    /// The newest hard state; `None` in a log that was only just created.
    pub hard_state: Option<HardState>,
    /// The oldest entry in force; `None` when there is none.
    pub first_index: Option<RaftIndex>,
    /// The newest entry, or what the newest snapshot covers when nothing follows it.
    pub last_index: RaftIndex,
    /// How it ends.
    pub tail: LogTail,
    terms: TermRuns,
}

impl LogSummary {
    /// The term of the entry at `index`, or of the snapshot there; `None` outside the log.
    pub fn term_at(&self, index: RaftIndex) -> Option<Term> {
        (index <= self.last_index)
            .then(|| self.terms.term_at(index))
            .flatten()
    }

    /// The newest entry known to be committed.
    pub fn commit_index(&self) -> RaftIndex {
        self.hard_state.map_or(RaftIndex(0), |state| state.commit)
    }

    /// The marks etcd accepts, newest first: those not above the commit index.
    pub fn usable_snapshots(&self) -> impl Iterator<Item = &SnapshotMark> {
        let commit = self.commit_index();
        self.snapshots
            .iter()
            .rev()
            .filter(move |mark| mark.index <= commit)
    }

    /// How many entries the hard state calls committed that the log does not hold. Not 0 means that the end of
    /// the log was lost, and etcd stops at such a log.
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
    /// Lists the segments of `dir` and checks that none is missing between two others. Reads no segment.
    pub fn open(dir: &Path) -> Result<Self, ListError> {
        let (segments, other_files) = segment::list_segments(dir)?;
        Ok(Self { segments, other_files })
    }

    /// The same log from the newest segment on that is named for at most `index`, which is as far back as one has to
    /// read for the entries from `index` on. The whole log when no segment is.
    #[must_use]
    pub fn since(&self, index: RaftIndex) -> Self {
        let segments = self.segments.get(first_needed_segment(&self.segments, index)..);
        Self {
            segments: segments.unwrap_or_default().to_vec(),
            other_files: self.other_files.clone(),
        }
    }

    /// The segments, oldest first; at least one.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Names of what else lies in the directory: prepared segments, copies of broken ones.
    pub fn other_files(&self) -> &[OsString] {
        &self.other_files
    }

    /// Reads every segment and checks all there is to check.
    pub fn read(&self) -> Result<LogSummary, LogError> {
        let mut records = Records::new(&self.segments);
        let mut fold = SummaryBuilder::default();
        while let Some(located) = records.next_record()? {
            fold.add_record(located)?;
        }
        fold.finish(&self.segments, records.into_tail())
    }

    /// The entries in force behind `after`, in index order, committed or not. `summary` is what
    /// [`read`](Self::read) gave for the same files.
    pub fn entries_after<'a>(&'a self, summary: &'a LogSummary, after: RaftIndex) -> Entries<'a> {
        Entries::new(&self.segments, summary, after, summary.last_index)
    }

    /// The committed entries behind `after`, in index order: what a database whose consistent index is
    /// `after` has yet to apply.
    pub fn committed_after<'a>(&'a self, summary: &'a LogSummary, after: RaftIndex) -> Entries<'a> {
        let until = summary.commit_index().min(summary.last_index);
        Entries::new(&self.segments, summary, after, until)
    }
}

/// The ordinal of the newest segment named for at most `index`: whatever is in force from `index` on is not in an
/// older one, because a segment is named for the entry that follows everything before it.
fn first_needed_segment(segments: &[Segment], index: RaftIndex) -> usize {
    segments
        .iter()
        .rposition(|segment| segment.name.first_index <= index)
        .unwrap_or_default()
}

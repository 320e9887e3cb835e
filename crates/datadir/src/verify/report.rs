//! Result of a verification.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::facts::DirFacts;

/// Overall result of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DirVerdict {
    /// etcd can start, with everything it acknowledged.
    Valid,
    /// No data: the directory does not exist, is empty, or the first start ended before the WAL was created.
    Missing,
    /// Damaged; see the faults.
    Corrupt,
    /// A running etcd has the database open, so reads would be inconsistent.
    InUse,
}

/// A fault or warning with its location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DirFinding<K> {
    /// Machine-readable kind.
    pub what: K,
    /// The file or directory concerned.
    pub file: PathBuf,
    /// Position in the file: page, byte, revision or bucket. Empty if it concerns the whole file.
    pub place: String,
    /// Human-readable description.
    pub reason: String,
}

impl<K> DirFinding<K> {
    pub(super) fn new(what: K, file: &Path, place: impl fmt::Display, reason: String) -> Self {
        Self {
            what,
            file: file.to_owned(),
            place: place.to_string(),
            reason,
        }
    }
}

impl<K> fmt::Display for DirFinding<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if !self.place.is_empty() {
            write!(f, ", {}", self.place)?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// Damage: etcd does not start, or starts and loses data.
pub type DirFault = DirFinding<FaultKind>;

/// An irregularity that etcd tolerates.
pub type DirWarning = DirFinding<WarningKind>;

/// Kinds of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum FaultKind {
    /// A required directory or file is missing or has the wrong type.
    PartMissing,
    /// Neither meta page of the database is valid.
    NoMetaPage,
    /// The database file is shorter than its recorded size.
    Truncated,
    /// A page of the database, or its position in the tree, is invalid.
    Page,
    /// The file is a bbolt database, but not one of etcd.
    NotEtcd,
    /// An entry of a bucket other than `key` cannot be decoded.
    Entry,
    /// The finished compaction is newer than the scheduled one.
    CompactionOrder,
    /// A row of the key bucket cannot have been written by etcd.
    Row,
    /// A row does not continue the history of its key.
    History,
    /// Transactions are missing from the history.
    RevisionGap,
    /// A WAL segment is missing between two others.
    WalNames,
    /// A WAL record is damaged, or the CRC chain is broken.
    WalRecord,
    /// WAL records are inconsistent: indexes, terms or owner.
    WalOrder,
    /// Committed entries are missing at the end of the WAL.
    WalEndLost,
    /// The WAL does not reach back to the snapshot that etcd starts from.
    WalBeginLost,
    /// No raft snapshot is usable, and the WAL does not reach back to the first entry.
    NoSnapshot,
    /// The content of the raft snapshot that etcd starts from is invalid.
    SnapshotContent,
    /// The database is older than the raft snapshot: etcd does not start.
    IndexBehindSnapshot,
    /// The database is ahead of the WAL: etcd starts and silently skips writes.
    IndexBeyondLog,
    /// Database and WAL have different terms at the consistent index: they are from different histories.
    TermDiffers,
    /// The owner of the WAL is not a member of the cluster.
    NotAMember,
    /// Two records of the membership at the same index differ.
    ConfStateDiffers,
}

/// Kinds of warnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum WarningKind {
    /// The first start ended before the WAL was created.
    FirstStartUnfinished,
    /// The database is still empty; all writes are in the WAL.
    DatabaseEmpty,
    /// One of the two meta pages is invalid; etcd uses the other.
    MetaPage,
    /// The database has an unknown bucket; the name of a known one may be damaged.
    UnknownBucket,
    /// The WAL ends with a record torn by a crash. etcd truncates it.
    TornTail,
    /// The WAL has bytes after its last record. etcd overwrites them.
    TrailingBytes,
    /// A raft snapshot is unusable; etcd uses an older one or the WAL alone.
    SnapshotUnusable,
    /// A database received from the leader replaces the current one at the next start; it was verified
    /// instead.
    SnapshotDatabase,
    /// The `term` in the database is outdated: servers and tools of 3.4 do not update it.
    TermStale,
    /// The members in the database differ from raft's; restores by older tools leave such a state.
    MembersDiffer,
    /// The WAL does not yet contain the entry that adds the member.
    NotYetAMember,
    /// The member was removed from its cluster; it cannot rejoin with this data.
    MemberRemoved,
    /// Keys of the v2 API exist; etcd 3.6 does not start with them.
    V2Keys,
    /// Rows that a finished compaction should have removed.
    Superseded,
    /// Keys refer to a lease that does not exist, so they never expire.
    UnknownLease,
    /// An alarm is active.
    Alarm,
    /// A copy of a broken file exists: there was damage before.
    Evidence,
}

/// The result of a verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DirReport {
    /// Overall result.
    pub verdict: DirVerdict,
    /// Damage, empty unless corrupt. Only the first fault of each file, because later ones are not reliable.
    pub faults: Vec<DirFault>,
    /// Irregularities that etcd tolerates.
    pub warnings: Vec<DirWarning>,
    /// Facts read from the directory; `None` if the database cannot be read.
    pub facts: Option<DirFacts>,
}

impl DirReport {
    /// Whether etcd can start on the directory.
    pub fn is_valid(&self) -> bool {
        self.verdict == DirVerdict::Valid
    }
}

/// An error and its sources, joined by colons.
pub(super) fn format_error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _infallible = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

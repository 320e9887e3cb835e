//! What a verification found, for people and for programs.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::facts::DirFacts;

/// What a data directory is, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DirVerdict {
    /// etcd can start on it and will have everything it acknowledged.
    Valid,
    /// There is no data: the directory does not exist, is empty, or the first start in it never got as far as a log.
    Missing,
    /// It is damaged; the faults say where.
    Corrupt,
    /// A running etcd holds it, so nothing that is read from it could be relied on.
    InUse,
}

/// Something found, with its place. Shown as one sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DirFinding<K> {
    /// Its class, for programs.
    pub what: K,
    /// The file or folder it is about.
    pub file: PathBuf,
    /// Where in it: a page, a byte, a revision, a bucket. Empty when it is about the whole.
    pub place: String,
    /// What is wrong, for people.
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

/// Damage: etcd does not start on it, or starts and loses something.
pub type DirFault = DirFinding<FaultKind>;

/// Something worth knowing that etcd lives with.
pub type DirWarning = DirFinding<WarningKind>;

/// The classes of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum FaultKind {
    /// A folder or file every data directory has is not there, or is something else.
    PartMissing,
    /// Neither meta page of the database can be used.
    NoMetaPage,
    /// The database is shorter than what it says is in use.
    Truncated,
    /// A page of the database is wrong, or its place in the tree is.
    Page,
    /// The database lacks what every database of etcd has.
    NotEtcd,
    /// An entry of a bucket other than `key` cannot be read.
    Entry,
    /// A compaction finished that was never begun.
    CompactionOrder,
    /// A row of the key bucket cannot have been written by etcd.
    Row,
    /// A row does not continue the history of its key.
    History,
    /// Transactions are missing from the history.
    RevisionGap,
    /// A segment of the log is missing between two others.
    WalNames,
    /// A record of the log is damaged, or the checksum chain breaks.
    WalRecord,
    /// Records of the log contradict each other: indexes, terms, or whose log it is.
    WalOrder,
    /// Entries the log calls committed are not in it.
    WalEndLost,
    /// The log does not reach back to the snapshot it would have to be read from.
    WalBeginLost,
    /// No raft snapshot can be used, and the log does not reach back to the beginning.
    NoSnapshot,
    /// The content of the raft snapshot that etcd would use is wrong.
    SnapshotContent,
    /// The database is older than the raft snapshot: etcd refuses to start.
    IndexBehindSnapshot,
    /// The database is ahead of the log: etcd would start and skip writes without a word.
    IndexBeyondLog,
    /// The database reflects an entry of another term than the log has there: it is from another history.
    TermDiffers,
    /// The member whose log this is does not belong to the cluster.
    NotAMember,
    /// Two records of the membership at the same index differ.
    ConfStateDiffers,
}

/// The classes of things worth knowing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum WarningKind {
    /// The first start in the directory did not get as far as a log.
    FirstStartUnfinished,
    /// The database holds nothing yet; what was written is in the log.
    DatabaseEmpty,
    /// One of the two meta pages is damaged; the other is used.
    MetaPage,
    /// The database has a bucket no etcd makes, so that one it does make may have lost its name.
    UnknownBucket,
    /// The log ends with the remains of a write that a crash cut off. etcd cuts them off by itself.
    TornTail,
    /// The log has bytes behind its end mark. etcd overwrites them.
    TrailingBytes,
    /// A raft snapshot cannot be used; an older one, or the log alone, serves.
    SnapshotUnusable,
    /// A database received from the leader takes the place of the present one at the next start, and is what was
    /// verified.
    SnapshotDatabase,
    /// The `term` of the database was not kept up, as servers and tools of 3.4 do not.
    TermStale,
    /// The members in the database are not those raft knows, as restores by older tools leave them.
    MembersDiffer,
    /// The member has not yet received the entry that adds it.
    NotYetAMember,
    /// The member was removed from its cluster and will not be let in again.
    MemberRemoved,
    /// Keys of the v2 API exist, with which 3.6 refuses to start.
    V2Keys,
    /// Rows that a finished compaction should have removed.
    Superseded,
    /// Keys that will never expire because their lease does not exist.
    UnknownLease,
    /// An alarm is raised.
    Alarm,
    /// A copy of something broken lies beside it: damage was there before.
    Evidence,
}

/// The result of a verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DirReport {
    /// In one word.
    pub verdict: DirVerdict,
    /// Why it is corrupt; empty otherwise. Of each file the first fault, since what follows cannot be relied on.
    pub faults: Vec<DirFault>,
    /// What is worth knowing.
    pub warnings: Vec<DirWarning>,
    /// What the directory says about itself, as far as it can be read.
    pub facts: Option<DirFacts>,
}

impl DirReport {
    /// Whether etcd can be started on it.
    pub fn is_valid(&self) -> bool {
        self.verdict == DirVerdict::Valid
    }
}

/// An error and its causes as one sentence.
pub(super) fn format_error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _infallible = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

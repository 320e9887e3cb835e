//! The raft side: the log, the snapshot etcd would start from, and what the log holds behind the database.

use std::collections::BTreeSet;
use std::path::PathBuf;

use mainstay_ids::{MemberId, RaftIndex};
use mainstay_wal::{
    ConfChange, ConfChangeKind, Entry, EntryKind, Log, LogSummary, Request, SnapFile, Tail,
};

use super::Depth;
use super::damage;
use super::error::VerifyError;
use super::findings::Findings;
use super::layout::{Layout, SnapFolder};
use super::report::{FaultKind, WarningKind};
use super::snapshot;

/// What the raft files say.
#[derive(Debug)]
pub(super) struct RaftSide {
    pub(super) summary: LogSummary,
    /// The snapshot etcd would start from.
    pub(super) snapshot: Option<(PathBuf, SnapFile)>,
    pub(super) behind: Behind,
}

impl RaftSide {
    /// The last entry the snapshot covers; 0 without one.
    pub(super) fn snapshot_index(&self) -> RaftIndex {
        self.snapshot
            .as_ref()
            .map_or(RaftIndex(0), |(_, snapshot)| snapshot.index)
    }
}

/// What entries do that the database, or the snapshot, has not seen.
#[derive(Debug, Default)]
pub(super) struct Behind {
    /// Entries behind the consistent index that can write.
    pub(super) possible_writes: u64,
    /// Those of them known to be committed.
    pub(super) committed_writes: u64,
    /// The members at the consistent index; only followed in a full verification.
    pub(super) members_at_database: BTreeSet<MemberId>,
    /// The members at the end of the log.
    pub(super) members_at_end: BTreeSet<MemberId>,
    /// Members that entries removed.
    pub(super) removed: BTreeSet<MemberId>,
}

/// Reads the raft side of a directory whose database has applied everything up to `applied`.
pub(super) fn inspect(
    layout: &Layout,
    folder: &SnapFolder,
    depth: Depth,
    applied: RaftIndex,
    findings: &mut Findings,
) -> Result<Option<RaftSide>, VerifyError> {
    let Some(log) = findings.settle(Log::open(&layout.wal).map_err(damage::of_listing))? else {
        return Ok(None);
    };
    warn_of_evidence(layout, &log, folder, findings);
    let part = match depth {
        Depth::Sanity => log.since(applied),
        Depth::Full => log.clone(),
    };
    let read = part
        .read()
        .map_err(|error| damage::of_log(&layout.wal, error));
    let Some(summary) = findings.settle(read)? else {
        return Ok(None);
    };
    judge_end(layout, &summary, findings);
    let snapshot = snapshot::choose(
        folder,
        &snapshot::View::new(&part, &summary, depth),
        findings,
    )?;
    judge_begin(layout, &log, snapshot.as_ref(), findings);
    let followed = follow(&part, &summary, snapshot.as_ref(), depth, applied)
        .map_err(|error| damage::of_log(&layout.wal, error));
    let behind = findings.settle(followed)?.unwrap_or_default();
    Ok(Some(RaftSide {
        summary,
        snapshot,
        behind,
    }))
}

fn warn_of_evidence(layout: &Layout, log: &Log, folder: &SnapFolder, findings: &mut Findings) {
    let broken = log
        .strays()
        .iter()
        .filter(|name| name.to_string_lossy().ends_with(".broken"))
        .map(|name| layout.wal.join(name));
    for path in broken.chain(folder.evidence.iter().cloned()) {
        let reason = "a copy of what was broken once, made by a repair".to_owned();
        findings.warn(WarningKind::Evidence, &path, "", reason);
    }
}

fn judge_end(layout: &Layout, summary: &LogSummary, findings: &mut Findings) {
    match &summary.tail {
        Tail::Clean => {}
        Tail::Torn {
            at,
            discarded_bytes,
            reason,
        } => findings.warn(
            WarningKind::TornTail,
            &at.file,
            format!("byte {}", at.offset),
            format!("{reason}; etcd will cut off {discarded_bytes} bytes"),
        ),
        Tail::Trailing {
            at,
            discarded_bytes,
        } => findings.warn(
            WarningKind::TrailingBytes,
            &at.file,
            format!("byte {}", at.offset),
            format!("{discarded_bytes} bytes behind the end mark; etcd will overwrite them"),
        ),
    }
    if summary.lost_commits() > 0 {
        let (commit, last) = (summary.commit(), summary.last_index);
        findings.fault(
            FaultKind::WalEndLost,
            &layout.wal,
            format!("index {last}"),
            format!("the log says that entry {commit} is committed, but ends with entry {last}"),
        );
    }
}

/// etcd reads the log from the segment on that is named for at most the index of the snapshot.
fn judge_begin(
    layout: &Layout,
    log: &Log,
    snapshot: Option<&(PathBuf, SnapFile)>,
    findings: &mut Findings,
) {
    let Some(first) = log.segments().first() else {
        return;
    };
    let begin = first.name.first_index;
    match snapshot {
        Some((_, snapshot)) if begin > snapshot.index => findings.fault(
            FaultKind::WalBeginLost,
            &first.path,
            format!("index {begin}"),
            format!(
                "the log begins with entry {begin}, the snapshot to start from is at {}",
                snapshot.index
            ),
        ),
        None if begin > RaftIndex(0) => findings.fault(
            FaultKind::NoSnapshot,
            &layout.snap,
            "",
            format!("no raft snapshot can be used, and the log begins with entry {begin}"),
        ),
        _ => {}
    }
}

/// Goes through the entries behind the database, in a full verification those behind the snapshot.
fn follow(
    log: &Log,
    summary: &LogSummary,
    snapshot: Option<&(PathBuf, SnapFile)>,
    depth: Depth,
    applied: RaftIndex,
) -> Result<Behind, mainstay_wal::LogError> {
    let mut behind = Behind::default();
    let mut from = applied;
    if depth == Depth::Full {
        let snapshot = snapshot.map(|(_, snapshot)| snapshot);
        from = applied.min(snapshot.map_or(RaftIndex(0), |snapshot| snapshot.index));
        if let Some(snapshot) = snapshot {
            behind.members_at_end = snapshot::everyone(&snapshot.conf_state);
            behind.members_at_database = behind.members_at_end.clone();
        }
    }
    let commit = summary.commit();
    for entry in log.entries_after(summary, from) {
        let entry = entry?;
        if entry.index > applied && Request::of(&entry).can_write() {
            behind.possible_writes += 1;
            behind.committed_writes += u64::from(entry.index <= commit);
        }
        if entry.kind == EntryKind::ConfChange {
            behind.change(&entry, applied);
        }
    }
    Ok(behind)
}

impl Behind {
    /// Follows a membership change. One that cannot be read, or does not fit, changes nothing, as in etcd.
    fn change(&mut self, entry: &Entry, applied: RaftIndex) {
        let Some(change) = ConfChange::decode(&entry.data) else {
            return;
        };
        let node = change.node;
        match change.kind {
            ConfChangeKind::AddNode | ConfChangeKind::AddLearner => {
                if !self.removed.contains(&node) {
                    self.members_at_end.insert(node);
                }
            }
            ConfChangeKind::RemoveNode => {
                self.members_at_end.remove(&node);
                self.removed.insert(node);
            }
            ConfChangeKind::UpdateNode => return,
        }
        if entry.index <= applied {
            self.members_at_database.clone_from(&self.members_at_end);
        }
    }
}

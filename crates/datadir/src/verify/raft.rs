//! Raft checks: the WAL, the snapshot that etcd starts from, and the unapplied entries.

use std::collections::BTreeSet;
use std::path::PathBuf;

use mainstay_ids::{MemberId, RaftIndex};
use mainstay_wal::{
    ConfChange, ConfChangeKind, Entry, EntryKind, Log, LogSummary, LogTail, RaftRequestKind,
    SnapFile,
};

use super::Depth;
use super::classification;
use super::error::VerifyError;
use super::findings::Findings;
use super::layout::{DirLayout, SnapDir};
use super::report::{FaultKind, WarningKind};
use super::snapshot;

/// State of the raft files.
#[derive(Debug)]
pub(super) struct RaftState {
    pub(super) summary: LogSummary,
    /// The snapshot that etcd starts from.
    pub(super) snapshot: Option<(PathBuf, SnapFile)>,
    pub(super) unapplied: UnappliedEntries,
}

impl RaftState {
    /// The last entry that the snapshot covers; 0 without one.
    pub(super) fn snapshot_index(&self) -> RaftIndex {
        self.snapshot
            .as_ref()
            .map_or(RaftIndex(0), |(_, snapshot)| snapshot.index)
    }
}

/// Effects of the entries that are not yet in the database or the snapshot.
#[derive(Debug, Default)]
pub(super) struct UnappliedEntries {
    /// Number of entries after the consistent index that can write.
    pub(super) possible_writes: u64,
    /// Those of them known to be committed.
    pub(super) committed_writes: u64,
    /// The members at the consistent index; full verification only.
    pub(super) members_at_consistent_index: BTreeSet<MemberId>,
    /// The members at the end of the WAL.
    pub(super) members_at_log_end: BTreeSet<MemberId>,
    /// Members removed by entries.
    pub(super) removed_members: BTreeSet<MemberId>,
}

/// Checks the raft files of a directory whose database has applied entries up to `applied`.
pub(super) fn inspect_raft_files(
    layout: &DirLayout,
    snap_dir: &SnapDir,
    depth: Depth,
    applied: RaftIndex,
    findings: &mut Findings,
) -> Result<Option<RaftState>, VerifyError> {
    let Some(log) = findings
        .record_damage(Log::open(&layout.wal).map_err(classification::classify_list_error))?
    else {
        return Ok(None);
    };
    warn_broken_copies(layout, &log, snap_dir, findings);
    // After a clean stop, entries before the applied index need no check.
    let part = match depth {
        Depth::Sanity => log.since(applied),
        Depth::Full => log.clone(),
    };
    let read = part
        .read()
        .map_err(|error| classification::classify_log_error(&layout.wal, error));
    let Some(summary) = findings.record_damage(read)? else {
        return Ok(None);
    };
    check_log_end(layout, &summary, findings);
    let snapshot = snapshot::choose_snapshot(
        snap_dir,
        &snapshot::WalView::new(&part, &summary, depth),
        findings,
    )?;
    check_log_start(layout, &log, snapshot.as_ref(), findings);
    let followed = scan_unapplied_entries(&part, &summary, snapshot.as_ref(), depth, applied)
        .map_err(|error| classification::classify_log_error(&layout.wal, error));
    let unapplied = findings.record_damage(followed)?.unwrap_or_default();
    Ok(Some(RaftState {
        summary,
        snapshot,
        unapplied,
    }))
}

fn warn_broken_copies(layout: &DirLayout, log: &Log, snap_dir: &SnapDir, findings: &mut Findings) {
    let broken = log
        .other_files()
        .iter()
        .filter(|name| name.to_string_lossy().ends_with(".broken"))
        .map(|name| layout.wal.join(name));
    for path in broken.chain(snap_dir.broken_copies.iter().cloned()) {
        let reason = "copy of a broken file from an earlier repair".to_owned();
        findings.add_warning(WarningKind::Evidence, &path, "", reason);
    }
}

fn check_log_end(layout: &DirLayout, summary: &LogSummary, findings: &mut Findings) {
    match &summary.tail {
        LogTail::Clean => {}
        LogTail::Torn {
            at,
            discarded_bytes,
            reason,
        } => findings.add_warning(
            WarningKind::TornTail,
            &at.file,
            format!("byte {}", at.offset),
            format!("{reason}; etcd truncates {discarded_bytes} bytes"),
        ),
        LogTail::Trailing {
            at,
            discarded_bytes,
        } => findings.add_warning(
            WarningKind::TrailingBytes,
            &at.file,
            format!("byte {}", at.offset),
            format!("{discarded_bytes} bytes after the end of the records; etcd overwrites them"),
        ),
    }
    // etcd does not start if the commit index is above the last entry.
    if summary.lost_commits() > 0 {
        let (commit, last) = (summary.commit_index(), summary.last_index);
        findings.add_fault(
            FaultKind::WalEndLost,
            &layout.wal,
            format!("index {last}"),
            format!("WAL records commit index {commit}, but ends with entry {last}"),
        );
    }
}

/// Checks that the WAL reaches back to the snapshot: etcd reads it from the last segment whose first index is
/// not above the snapshot's.
fn check_log_start(
    layout: &DirLayout,
    log: &Log,
    snapshot: Option<&(PathBuf, SnapFile)>,
    findings: &mut Findings,
) {
    let Some(first) = log.segments().first() else {
        return;
    };
    let begin = first.name.first_index;
    match snapshot {
        Some((_, snapshot)) if begin > snapshot.index => findings.add_fault(
            FaultKind::WalBeginLost,
            &first.path,
            format!("index {begin}"),
            format!(
                "WAL starts with entry {begin}, but the snapshot to start from is at index {}",
                snapshot.index
            ),
        ),
        None if begin > RaftIndex(0) => findings.add_fault(
            FaultKind::NoSnapshot,
            &layout.snap,
            "",
            format!("no usable raft snapshot, and the WAL starts with entry {begin}"),
        ),
        _ => {}
    }
}

/// Reads the entries after the consistent index; in a full verification those after the snapshot.
fn scan_unapplied_entries(
    log: &Log,
    summary: &LogSummary,
    snapshot: Option<&(PathBuf, SnapFile)>,
    depth: Depth,
    applied: RaftIndex,
) -> Result<UnappliedEntries, mainstay_wal::LogError> {
    let mut behind = UnappliedEntries::default();
    // Following the membership needs all changes since the snapshot, not only the unapplied ones.
    let mut from = applied;
    if depth == Depth::Full {
        let snapshot = snapshot.map(|(_, snapshot)| snapshot);
        from = applied.min(snapshot.map_or(RaftIndex(0), |snapshot| snapshot.index));
        if let Some(snapshot) = snapshot {
            behind.members_at_log_end = snapshot::collect_members(&snapshot.conf_state);
            behind.members_at_consistent_index = behind.members_at_log_end.clone();
        }
    }
    let commit = summary.commit_index();
    for entry in log.entries_after(summary, from) {
        let entry = entry?;
        if entry.index > applied && RaftRequestKind::from_entry(&entry).can_write() {
            behind.possible_writes += 1;
            behind.committed_writes += u64::from(entry.index <= commit);
        }
        if entry.kind == EntryKind::ConfChange {
            behind.apply_conf_change(&entry, applied);
        }
    }
    Ok(behind)
}

impl UnappliedEntries {
    /// Applies a membership change. Ignores one that is unreadable or does not apply, as etcd does.
    fn apply_conf_change(&mut self, entry: &Entry, applied: RaftIndex) {
        let Some(change) = ConfChange::decode(&entry.data) else {
            return;
        };
        let node = change.node;
        match change.kind {
            ConfChangeKind::AddNode | ConfChangeKind::AddLearner => {
                // etcd never readmits a removed member ID.
                if !self.removed_members.contains(&node) {
                    self.members_at_log_end.insert(node);
                }
            }
            ConfChangeKind::RemoveNode => {
                self.members_at_log_end.remove(&node);
                self.removed_members.insert(node);
            }
            ConfChangeKind::UpdateNode => return,
        }
        if entry.index <= applied {
            self.members_at_consistent_index
                .clone_from(&self.members_at_log_end);
        }
    }
}

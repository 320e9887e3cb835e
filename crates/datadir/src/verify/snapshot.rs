//! Selects the raft snapshot that etcd starts from.
//!
//! It is the newest readable file with a committed snapshot record in the WAL. An unusable newer file is a
//! warning: etcd uses an older one or the WAL alone.

use std::collections::BTreeSet;
use std::path::PathBuf;

use mainstay_ids::{MemberId, RaftIndex, Term};
use mainstay_wal::{ConfState, Log, LogSummary, SnapFile, SnapName};

use super::Depth;
use super::classification;
use super::error::VerifyError;
use super::findings::Findings;
use super::layout::SnapDir;
use super::report::WarningKind;

/// The part of the WAL that was read.
#[derive(Debug)]
pub(super) struct WalView<'a> {
    summary: &'a LogSummary,
    depth: Depth,
    /// Snapshot records before this index were not read.
    first_index: RaftIndex,
}

impl<'a> WalView<'a> {
    pub(super) fn new(log: &Log, summary: &'a LogSummary, depth: Depth) -> Self {
        let first_index = log
            .segments()
            .first()
            .map_or(RaftIndex(0), |segment| segment.name.first_index);
        Self {
            summary,
            depth,
            first_index,
        }
    }

    /// Whether the WAL records a snapshot at `index`. Assumed for indexes before the part that was read.
    fn has_snapshot_mark(&self, term: Term, index: RaftIndex) -> bool {
        let is_unread = self.depth == Depth::Sanity && index < self.first_index;
        is_unread
            || self
                .summary
                .usable_snapshots()
                .any(|mark| (mark.term, mark.index) == (term, index))
    }
}

/// The snapshot that etcd starts from. A full verification also reads the older files.
pub(super) fn choose_snapshot(
    snap_dir: &SnapDir,
    view: &WalView<'_>,
    findings: &mut Findings,
) -> Result<Option<(PathBuf, SnapFile)>, VerifyError> {
    let mut chosen: Option<(PathBuf, SnapFile)> = None;
    for (_, path) in &snap_dir.snapshots {
        // etcd ignores snapshots older than the one it starts from.
        if chosen.is_some() && view.depth == Depth::Sanity {
            break;
        }
        let mut unusable =
            |reason| findings.add_warning(WarningKind::SnapshotUnusable, path, "", reason);
        match SnapFile::read(path) {
            Err(error) => unusable(classification::classify_snapshot_error(error)?),
            Ok(_) if chosen.is_some() => {}
            // etcd uses only snapshots with a WAL record: a crash can leave a file without one.
            Ok(snapshot) if view.has_snapshot_mark(snapshot.term, snapshot.index) => {
                chosen = Some((path.clone(), snapshot));
            }
            Ok(snapshot) => unusable(format!(
                "WAL has no committed snapshot record at index {}",
                snapshot.index
            )),
        }
    }
    warn_missing_snapshot_file(snap_dir, view, findings);
    Ok(chosen)
}

/// Warns if the file of the newest snapshot record is missing.
fn warn_missing_snapshot_file(snap_dir: &SnapDir, view: &WalView<'_>, findings: &mut Findings) {
    let newest = view
        .summary
        .usable_snapshots()
        .max_by_key(|mark| mark.index);
    let Some(mark) = newest.filter(|mark| mark.index > RaftIndex(0)) else {
        return;
    };
    let (term, index) = (mark.term, mark.index);
    let name = SnapName { term, index };
    if snap_dir.snapshots.iter().all(|(found, _)| *found != name) {
        let reason = format!("WAL records a snapshot at index {index}, but its file is missing");
        let path = snap_dir.path.join(name.to_string());
        findings.add_warning(WarningKind::SnapshotUnusable, &path, "", reason);
    }
}

/// All members of a configuration, voters and learners.
pub(super) fn collect_members(state: &ConfState) -> BTreeSet<MemberId> {
    [
        &state.voters,
        &state.learners,
        &state.voters_outgoing,
        &state.learners_next,
    ]
    .into_iter()
    .flatten()
    .copied()
    .collect()
}

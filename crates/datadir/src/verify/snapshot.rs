//! Which raft snapshot etcd would start from.
//!
//! The newest file that can be read and whose place the log marks as committed. A newer one that cannot be used is
//! a warning: etcd goes on with an older one, or with the log alone.

use std::collections::BTreeSet;
use std::path::PathBuf;

use mainstay_ids::{MemberId, RaftIndex, Term};
use mainstay_wal::{ConfState, Log, LogSummary, SnapFile, SnapName};

use super::Depth;
use super::damage;
use super::error::VerifyError;
use super::findings::Findings;
use super::layout::SnapDir;
use super::report::WarningKind;

/// What of the log is seen.
#[derive(Debug)]
pub(super) struct WalView<'a> {
    summary: &'a LogSummary,
    depth: Depth,
    /// Marks before this index are out of sight.
    first_index: RaftIndex,
}

impl<'a> WalView<'a> {
    pub(super) fn new(log: &Log, summary: &'a LogSummary, depth: Depth) -> Self {
        let since = log
            .segments()
            .first()
            .map_or(RaftIndex(0), |segment| segment.name.first_index);
        Self {
            summary,
            depth,
            first_index: since,
        }
    }

    /// Whether the log marks a snapshot there. Below what is in sight it is taken for granted.
    fn has_snapshot_mark(&self, term: Term, index: RaftIndex) -> bool {
        let is_out_of_sight = self.depth == Depth::Sanity && index < self.first_index;
        is_out_of_sight
            || self
                .summary
                .usable_snapshots()
                .any(|mark| (mark.term, mark.index) == (term, index))
    }
}

/// The snapshot etcd would start from. A full verification reads the older ones as well.
pub(super) fn choose_snapshot(
    folder: &SnapDir,
    view: &WalView<'_>,
    findings: &mut Findings,
) -> Result<Option<(PathBuf, SnapFile)>, VerifyError> {
    let mut chosen: Option<(PathBuf, SnapFile)> = None;
    for (_, path) in &folder.snapshots {
        if chosen.is_some() && view.depth == Depth::Sanity {
            break;
        }
        let mut unusable = |reason| findings.add_warning(WarningKind::SnapshotUnusable, path, "", reason);
        match SnapFile::read(path) {
            Err(error) => unusable(damage::classify_snapshot_error(error)?),
            Ok(_) if chosen.is_some() => {}
            Ok(snapshot) if view.has_snapshot_mark(snapshot.term, snapshot.index) => {
                chosen = Some((path.clone(), snapshot));
            }
            Ok(snapshot) => unusable(format!(
                "the log has no committed mark of a snapshot at index {}",
                snapshot.index
            )),
        }
    }
    warn_missing_snapshot_file(folder, view, findings);
    Ok(chosen)
}

/// The newest mark of the log should have its file.
fn warn_missing_snapshot_file(folder: &SnapDir, view: &WalView<'_>, findings: &mut Findings) {
    let newest = view
        .summary
        .usable_snapshots()
        .max_by_key(|mark| mark.index);
    let Some(mark) = newest.filter(|mark| mark.index > RaftIndex(0)) else {
        return;
    };
    let (term, index) = (mark.term, mark.index);
    let name = SnapName { term, index };
    if folder.snapshots.iter().all(|(found, _)| *found != name) {
        let reason = format!("the log marks a snapshot at index {index} whose file is missing");
        let path = folder.path.join(name.to_string());
        findings.add_warning(WarningKind::SnapshotUnusable, &path, "", reason);
    }
}

/// Everyone a configuration names, with or without a vote.
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

//! Evidence that retention needs before it deletes anything: whose history the backup is, and that new snapshots arrive.

use jiff::Timestamp;
use mainstay_archive::catalogue::Catalogue;
use mainstay_archive::retention::OwnedHistory;

use crate::schedule::Schedule;
use crate::state::{BackupHistory, SidecarState, StateReceiver};

/// Why retention deletes nothing for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum FreezeReason {
    /// No session has compared the backup with etcd yet, or it belongs to another history.
    #[error("the backup is not known to belong to this etcd")]
    UnverifiedHistory,
    #[error("backups are failing")]
    BackupFailing,
    #[error("the newest full snapshot is older than the schedule allows")]
    FullOverdue,
}

impl FreezeReason {
    pub const ALL: [Self; 3] = [
        Self::UnverifiedHistory,
        Self::BackupFailing,
        Self::FullOverdue,
    ];

    /// Label value of metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::UnverifiedHistory => "unverified-history",
            Self::BackupFailing => "backup-failing",
            Self::FullOverdue => "full-overdue",
        }
    }
}

/// Returns what retention may delete from.
pub trait ScopeSource: Send + Sync + 'static {
    /// The snapshots that may be deleted, or why none may. `now` is the store's time.
    fn scope(&self, catalogue: &Catalogue, now: Timestamp) -> Result<OwnedHistory, FreezeReason>;
}

/// A fixed answer, for tools and tests.
impl ScopeSource for OwnedHistory {
    fn scope(&self, _: &Catalogue, _: Timestamp) -> Result<OwnedHistory, FreezeReason> {
        Ok(self.clone())
    }
}

/// The result of the session that runs beside retention.
pub(crate) struct SessionScope {
    pub(crate) state_rx: StateReceiver,
    /// Schedule of full snapshots.
    pub(crate) schedule: Schedule,
}

impl ScopeSource for SessionScope {
    fn scope(&self, catalogue: &Catalogue, now: Timestamp) -> Result<OwnedHistory, FreezeReason> {
        let owned = owned_history(&self.state_rx.borrow())?;
        if is_full_overdue(&self.schedule, catalogue, now) {
            return Err(FreezeReason::FullOverdue);
        }
        Ok(owned)
    }
}

fn owned_history(state: &SidecarState) -> Result<OwnedHistory, FreezeReason> {
    let owned = match &state.history {
        BackupHistory::Unverified => return Err(FreezeReason::UnverifiedHistory),
        BackupHistory::OwnSince(full) => OwnedHistory::Since(full.clone()),
        BackupHistory::Matched => OwnedHistory::All,
    };
    // Old snapshots may be all there is while no new one can be stored.
    if state.failure.is_some() {
        return Err(FreezeReason::BackupFailing);
    }
    Ok(owned)
}

/// Whether a scheduled full snapshot and the one before it are both missing: an upload may take as long as an interval.
fn is_full_overdue(schedule: &Schedule, catalogue: &Catalogue, now: Timestamp) -> bool {
    let second = jiff::SignedDuration::from_secs(1);
    let previous = schedule
        .last_before(now)
        .and_then(|due| due.checked_sub(second).ok())
        .and_then(|before| schedule.last_before(before));
    let newest = catalogue.fulls.iter().map(|full| full.modified).max();
    match (previous, newest) {
        (Some(previous), Some(newest)) => newest < previous,
        // A schedule that never fires asks for nothing; without a full snapshot nothing is deleted anyway.
        _ => false,
    }
}

#[cfg(test)]
mod tests;

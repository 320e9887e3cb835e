//! Decides where a new leader starts its backups, from the store's catalogue and etcd's revision. Pure.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, SnapshotObject};
use mainstay_archive::chain::{
    ChainRequest, ChainTarget, ChooseError, SnapshotChain, choose, restorable_revisions,
};
use mainstay_ids::Revision;

use crate::schedule::Schedule;
use crate::tail::newest_revision;

/// Minimum age difference between two full snapshots below which the delta between them may never have been stored:
/// an upload and a process restart take minutes.
const MIN_BACKFILL_WINDOW: Duration = Duration::from_mins(5);

/// Schedule and flags that influence the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartInputs<'a> {
    pub(crate) schedule: &'a Schedule,
    pub(crate) delta_period: Duration,
    pub(crate) now: Timestamp,
}

/// Why a full snapshot is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FullSnapshotReason {
    /// The store holds no full snapshot.
    NoFull,
    /// The newest full snapshot is marked final: the cluster was moved after it.
    AfterFinal,
    /// Revisions are missing in the store.
    MissingRevisions,
    /// The store ends in a different history at a revision etcd has compacted. The two chains do not overlap.
    DivergedHistory,
    /// The full snapshots in the store could not be verified to belong to this etcd.
    UnverifiedHistory,
    MissedSchedule,
    Gap,
    Scheduled,
    /// Requested over HTTP or by another task.
    OnDemand,
}

impl FullSnapshotReason {
    /// Text for the log.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NoFull => "the store holds no full snapshot",
            Self::AfterFinal => "the newest full snapshot is marked final",
            Self::MissingRevisions => "revisions are missing in the store",
            Self::DivergedHistory => "the store ends in a different history than etcd",
            Self::UnverifiedHistory => "cannot verify that the backup belongs to this etcd",
            Self::MissedSchedule => "a scheduled full snapshot was missed",
            Self::Gap => "events are missing",
            Self::Scheduled => "scheduled",
            Self::OnDemand => "requested",
        }
    }
}

/// How a session starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StartPlan {
    /// The store's newest chain is part of etcd's history: deltas continue after its end.
    Continue {
        /// Last revision of the chain.
        after: Revision,
        /// Last restorable revision before the newest full snapshot, if there is a gap between the two. Deltas continue
        /// there while etcd still has the history, so that the revisions up to the snapshot become restorable as well.
        backfill_after: Option<Revision>,
        /// Reason to also take a full snapshot; `None` if none is due.
        full: Option<FullSnapshotReason>,
    },
    /// Takes a full snapshot first; deltas are held back until it is stored.
    FullFirst(FullSnapshotReason),
    /// The store ends after etcd's revision, so it belongs to a different history. Writing to it would mix the two.
    StoreAhead { store: Revision, etcd: Revision },
}

/// Decides how the session starts.
pub(crate) fn plan_start(
    catalogue: &Catalogue,
    etcd: Revision,
    start_inputs: &StartInputs<'_>,
) -> StartPlan {
    let store = newest_revision(catalogue);
    if store > etcd {
        return StartPlan::StoreAhead { store, etcd };
    }
    let chain = match choose(catalogue, &ChainRequest::new(ChainTarget::Latest)) {
        // A gap after the base is harmless only if the base's content is newer than its name, which listing cannot show.
        Ok(chain) if chain.gap_after_base.is_none() => chain,
        Err(ChooseError::NoSnapshots | ChooseError::NoBase { .. }) => {
            return StartPlan::FullFirst(FullSnapshotReason::NoFull);
        }
        Ok(_) | Err(_) => return StartPlan::FullFirst(FullSnapshotReason::MissingRevisions),
    };
    // Objects after the chain's end do not connect to it: revisions are missing in between.
    if chain.last_revision < store {
        return StartPlan::FullFirst(FullSnapshotReason::MissingRevisions);
    }
    let base = &chain.base.name;
    // No sidecar may have been leading when the schedule fired.
    let missed = start_inputs
        .schedule
        .last_before(start_inputs.now)
        .is_some_and(|due| base.created_at() < due);
    let full = match (base.is_final, missed) {
        (true, _) => Some(FullSnapshotReason::AfterFinal),
        (false, true) => Some(FullSnapshotReason::MissedSchedule),
        (false, false) => None,
    };
    StartPlan::Continue {
        after: chain.last_revision,
        backfill_after: find_backfill_start(catalogue, &chain, start_inputs.delta_period),
        full,
    }
}

/// Last restorable revision before a base that has no deltas of its own. Deltas that continue there close the gap
/// between the two.
///
/// * After a delta: always. Retention deletes by age, so no delta after this one was ever stored.
/// * After a full snapshot without deltas: only if the base was taken so soon afterwards that the first delta may not
///   have been stored yet. Otherwise retention deleted the deltas, and would delete new ones again.
/// * Never if a later delta exists: new deltas would overlap it.
fn find_backfill_start(
    catalogue: &Catalogue,
    chain: &SnapshotChain,
    delta_period: Duration,
) -> Option<Revision> {
    if !chain.deltas.is_empty() {
        return None;
    }
    let base = &chain.base.name;
    let ranges = restorable_revisions(catalogue).0.into_iter();
    let end = ranges
        .map(|(_, end)| end)
        .filter(|end| *end < base.last)
        .max()?;
    let ends_there = |object: &&SnapshotObject| object.name.last == end;
    let newest_delta = catalogue.deltas.iter().map(|delta| delta.name.last).max();
    match newest_delta {
        Some(newest) if newest > end => None,
        Some(newest) if newest == end => Some(end),
        _ => {
            let full = catalogue.fulls.iter().rfind(ends_there)?;
            let apart = base.created_at().duration_since(full.name.created_at());
            let young = MIN_BACKFILL_WINDOW.max(delta_period.saturating_mul(2));
            let is_young = Duration::try_from(apart).is_ok_and(|apart| apart <= young);
            is_young.then_some(end)
        }
    }
}

#[cfg(test)]
mod tests;

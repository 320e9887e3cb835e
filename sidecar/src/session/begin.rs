//! Where a new leader begins: a pure choice from what the store holds and where etcd is.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, SnapshotObject};
use mainstay_archive::chain::{SnapshotChain, ChooseError, ChainRequest, ChainTarget, choose, restorable_revisions};
use mainstay_ids::Revision;

use crate::schedule::Schedule;
use crate::tail::newest_revision;

/// A full snapshot takes its time, and so does a process that is started again: within these minutes the first delta
/// behind one may still have been missing.
const MIN_BACKFILL_WINDOW: Duration = Duration::from_mins(5);

/// What the schedule and the flags say about a beginning.
#[derive(Clone, Copy, Debug)]
pub struct StartInputs<'a> {
    /// When full snapshots are due.
    pub schedule: &'a Schedule,
    /// Between two deltas.
    pub delta_period: Duration,
    /// What time it is.
    pub now: Timestamp,
}

/// Why a full snapshot comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullSnapshotReason {
    /// The store holds none.
    NoFull,
    /// The newest one was the last of a cluster that moved.
    AfterFinal,
    /// Revisions are missing in the store.
    MissingRevisions,
    /// The store ends in another history, whose end etcd has compacted: they cannot be mixed up, only apart.
    DivergedHistory,
    /// Nothing shows that the full snapshots in the store are of this etcd.
    UnverifiedHistory,
    /// A scheduled one was missed.
    MissedSchedule,
    /// Events were lost.
    Gap,
    /// The schedule says so.
    Scheduled,
    /// Someone asked.
    OnDemand,
}

impl FullSnapshotReason {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoFull => "the store holds no full snapshot",
            Self::AfterFinal => "the newest full snapshot is a final one",
            Self::MissingRevisions => "revisions are missing in the store",
            Self::DivergedHistory => "the store ends in another history than etcd's",
            Self::UnverifiedHistory => "nothing shows that the store holds the past of this etcd",
            Self::MissedSchedule => "a scheduled full snapshot was missed",
            Self::Gap => "events were lost",
            Self::Scheduled => "it is scheduled",
            Self::OnDemand => "it was asked for",
        }
    }
}

/// How to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartPlan {
    /// The store is a chain that etcd continues: deltas go on after its end.
    Continue {
        /// The end.
        after: Revision,
        /// Where what can be restored ends before the newest full snapshot, when there is a hole between: as long as etcd
        /// has the history behind it, deltas go on there, so that the revisions up to the snapshot can be restored as well.
        backfill_after: Option<Revision>,
        /// Whether a full snapshot is due besides.
        full: Option<FullSnapshotReason>,
    },
    /// A full snapshot first; deltas are held back until it is stored.
    FullFirst(FullSnapshotReason),
    /// The store reaches further than etcd: this etcd is not the continuation of this backup. Writing into it would mix
    /// two histories.
    StoreAhead {
        /// How far the store reaches.
        store: Revision,
        /// How far etcd reaches.
        etcd: Revision,
    },
}

/// Decides how to begin.
pub fn plan_start(catalogue: &Catalogue, etcd: Revision, start_inputs: &StartInputs<'_>) -> StartPlan {
    let store = newest_revision(catalogue);
    if store > etcd {
        return StartPlan::StoreAhead { store, etcd };
    }
    let chain = match choose(catalogue, &ChainRequest::new(ChainTarget::Latest)) {
        Ok(chain) if chain.gap_after_base.is_none() => chain,
        Err(ChooseError::NoSnapshots | ChooseError::NoBase { .. }) => {
            return StartPlan::FullFirst(FullSnapshotReason::NoFull);
        }
        Ok(_) | Err(_) => return StartPlan::FullFirst(FullSnapshotReason::MissingRevisions),
    };
    if chain.last_revision < store {
        return StartPlan::FullFirst(FullSnapshotReason::MissingRevisions);
    }
    let base = &chain.base.name;
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

/// The end of what can be restored before a base that has no deltas of its own: where deltas go on, so that no
/// revision between the two is lost.
///
/// * Behind the end of a delta, always: retention goes by age, so none behind it was ever stored.
/// * Behind a full snapshot without deltas, only when the base is so young a follower that its first delta may not
///   have been stored in between. Otherwise there were deltas, retention has removed them, and would again.
/// * Never when a delta lies behind: it would be met on the way, and nothing can be stored across it.
fn find_backfill_start(catalogue: &Catalogue, chain: &SnapshotChain, delta_period: Duration) -> Option<Revision> {
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

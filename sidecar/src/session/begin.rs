//! Where a new leader begins: a pure choice from what the store holds and where etcd is.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, Object};
use mainstay_archive::chain::{Chain, ChooseError, Request, Target, choose, restorable};
use mainstay_ids::Revision;

use crate::schedule::Schedule;
use crate::tail::newest;

/// A full snapshot takes its time, and so does a process that is started again: within these minutes the first delta
/// behind one may still have been missing.
const STILL_YOUNG: Duration = Duration::from_mins(5);

/// What the schedule and the flags say about a beginning.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// When full snapshots are due.
    pub schedule: &'a Schedule,
    /// Between two deltas.
    pub delta_period: Duration,
    /// What time it is.
    pub now: Timestamp,
}

/// Why a full snapshot comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// The store holds none.
    NoFull,
    /// The newest one was the last of a cluster that moved.
    Final,
    /// Revisions are missing in the store.
    Broken,
    /// The store ends in another history, whose end etcd has compacted: they cannot be mixed up, only apart.
    Parted,
    /// Nothing shows that the full snapshots in the store are of this etcd.
    Unproven,
    /// A scheduled one was missed.
    Missed,
    /// Events were lost.
    Gap,
    /// The schedule says so.
    Scheduled,
    /// Someone asked.
    Asked,
}

impl Because {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Self::NoFull => "the store holds no full snapshot",
            Self::Final => "the newest full snapshot is a final one",
            Self::Broken => "revisions are missing in the store",
            Self::Parted => "the store ends in another history than etcd's",
            Self::Unproven => "nothing shows that the store holds the past of this etcd",
            Self::Missed => "a scheduled full snapshot was missed",
            Self::Gap => "events were lost",
            Self::Scheduled => "it is scheduled",
            Self::Asked => "it was asked for",
        }
    }
}

/// How to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The store is a chain that etcd continues: deltas go on after its end.
    Continue {
        /// The end.
        after: Revision,
        /// Where what can be restored ends before the newest full snapshot, when there is a hole between: as long as etcd
        /// has the history behind it, deltas go on there, so that the revisions up to the snapshot can be restored as well.
        deltas_end: Option<Revision>,
        /// Whether a full snapshot is due besides.
        full: Option<Because>,
    },
    /// A full snapshot first; deltas are held back until it is stored.
    FullFirst(Because),
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
pub fn begin(catalogue: &Catalogue, etcd: Revision, terms: &Terms<'_>) -> Begin {
    let store = newest(catalogue);
    if store > etcd {
        return Begin::StoreAhead { store, etcd };
    }
    let chain = match choose(catalogue, &Request::new(Target::Latest)) {
        Ok(chain) if chain.hole_after_base.is_none() => chain,
        Err(ChooseError::Empty | ChooseError::NoBase { .. }) => {
            return Begin::FullFirst(Because::NoFull);
        }
        Ok(_) | Err(_) => return Begin::FullFirst(Because::Broken),
    };
    if chain.reaches < store {
        return Begin::FullFirst(Because::Broken);
    }
    let base = &chain.base.name;
    let missed = terms
        .schedule
        .last_before(terms.now)
        .is_some_and(|due| base.created_at() < due);
    let full = match (base.is_final, missed) {
        (true, _) => Some(Because::Final),
        (false, true) => Some(Because::Missed),
        (false, false) => None,
    };
    Begin::Continue {
        after: chain.reaches,
        deltas_end: deltas_end(catalogue, &chain, terms.delta_period),
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
fn deltas_end(catalogue: &Catalogue, chain: &Chain, delta_period: Duration) -> Option<Revision> {
    if !chain.deltas.is_empty() {
        return None;
    }
    let base = &chain.base.name;
    let ranges = restorable(catalogue).0.into_iter();
    let end = ranges
        .map(|(_, end)| end)
        .filter(|end| *end < base.last)
        .max()?;
    let ends_there = |object: &&Object| object.name.last == end;
    let newest_delta = catalogue.deltas.iter().map(|delta| delta.name.last).max();
    match newest_delta {
        Some(newest) if newest > end => None,
        Some(newest) if newest == end => Some(end),
        _ => {
            let full = catalogue.fulls.iter().rfind(ends_there)?;
            let apart = base.created_at().duration_since(full.name.created_at());
            let young = STILL_YOUNG.max(delta_period.saturating_mul(2));
            let is_young = Duration::try_from(apart).is_ok_and(|apart| apart <= young);
            is_young.then_some(end)
        }
    }
}

#[cfg(test)]
mod tests;

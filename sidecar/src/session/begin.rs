//! Where a new leader begins: a pure choice from what the store holds and where etcd is.

use jiff::Timestamp;
use steward_archive::catalogue::Catalogue;
use steward_archive::chain::{Chain, ChooseError, Request, Target, choose, restorable};
use steward_ids::Revision;

use crate::schedule::Schedule;
use crate::tail::newest;

/// Why a full snapshot comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// The store holds none.
    NoFull,
    /// The newest one was the last of a cluster that moved.
    Final,
    /// Revisions are missing in the store.
    Broken,
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
pub fn begin(catalogue: &Catalogue, etcd: Revision, schedule: &Schedule, now: Timestamp) -> Begin {
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
    let missed = schedule
        .last_before(now)
        .is_some_and(|due| base.created_at() < due);
    let full = match (base.is_final, missed) {
        (true, _) => Some(Because::Final),
        (false, true) => Some(Because::Missed),
        (false, false) => None,
    };
    Begin::Continue {
        after: chain.reaches,
        deltas_end: deltas_end(catalogue, &chain),
        full,
    }
}

/// The end of what can be restored before a base that has no deltas of its own.
fn deltas_end(catalogue: &Catalogue, chain: &Chain) -> Option<Revision> {
    if !chain.deltas.is_empty() {
        return None;
    }
    let ranges = restorable(catalogue).0.into_iter();
    ranges
        .map(|(_, end)| end)
        .filter(|end| *end < chain.base.name.last)
        .max()
}

#[cfg(test)]
mod tests {
    use steward_archive::catalogue::Listed;

    use super::*;

    const NOON: &str = "2026-11-16T12:00:00Z";

    fn catalogue(names: &[&str]) -> Catalogue {
        let listed = names.iter().map(|name| Listed {
            key: format!("p/v2/{name}"),
            size: 1,
            modified: Timestamp::UNIX_EPOCH,
        });
        Catalogue::from_listing("p", listed.collect())
    }

    fn decide(names: &[&str], etcd: i64) -> Begin {
        let now: Timestamp = NOON.parse().unwrap();
        let schedule = "0 */1 * * *".parse().unwrap();
        begin(&catalogue(names), Revision(etcd), &schedule, now)
    }

    /// Seconds after noon on that day.
    fn at(seconds: i64) -> i64 {
        NOON.parse::<Timestamp>().unwrap().as_second() + seconds
    }

    #[test]
    fn an_empty_store_needs_a_full_snapshot() {
        assert_eq!(decide(&[], 1), Begin::FullFirst(Because::NoFull));
    }

    #[test]
    fn deltas_alone_need_a_full_snapshot() {
        let begin = decide(&[&format!("Incr-00000002-00000009-{}", at(0))], 9);
        assert_eq!(begin, Begin::FullFirst(Because::NoFull));
    }

    #[test]
    fn a_chain_is_continued_after_its_end() {
        let full = format!("Full-00000000-00000005-{}", at(0));
        let delta = format!("Incr-00000006-00000009-{}", at(1));
        let expected = Begin::Continue {
            after: Revision(9),
            deltas_end: None,
            full: None,
        };
        assert_eq!(decide(&[&full, &delta], 9), expected);
        assert_eq!(decide(&[&full, &delta], 500), expected);
    }

    #[test]
    fn a_missed_schedule_is_made_up_for_while_deltas_go_on() {
        let full = format!("Full-00000000-00000005-{}", at(-1));
        let begin = decide(&[&full], 9);
        let expected = Begin::Continue {
            after: Revision(5),
            deltas_end: None,
            full: Some(Because::Missed),
        };
        assert_eq!(begin, expected);
    }

    #[test]
    fn a_final_snapshot_is_followed_by_an_ordinary_one() {
        let full = format!("Full-00000000-00000005-{}.final", at(5));
        let begin = decide(&[&full], 9);
        let expected = Begin::Continue {
            after: Revision(5),
            deltas_end: None,
            full: Some(Because::Final),
        };
        assert_eq!(begin, expected);
    }

    #[test]
    fn deltas_go_on_where_they_ended_although_a_full_snapshot_is_ahead_of_them() {
        let full = format!("Full-00000000-00000005-{}", at(0));
        let delta = format!("Incr-00000006-00000009-{}", at(1));
        let ahead = format!("Full-00000000-00000020-{}", at(2));
        let begin = decide(&[&full, &delta, &ahead], 30);
        let expected = Begin::Continue {
            after: Revision(20),
            deltas_end: Some(Revision(9)),
            full: None,
        };
        assert_eq!(begin, expected);
    }

    #[test]
    fn the_revisions_between_two_full_snapshots_without_deltas_are_made_up_for() {
        let fulls = [5, 20].map(|last| format!("Full-00000000-{last:08}-{}", at(last)));
        let expected = Begin::Continue {
            after: Revision(20),
            deltas_end: Some(Revision(5)),
            full: None,
        };
        assert_eq!(decide(&[&fulls[0], &fulls[1]], 30), expected);
    }

    #[test]
    fn a_hole_in_the_store_is_answered_with_a_full_snapshot() {
        let full = format!("Full-00000000-00000005-{}", at(0));
        let delta = format!("Incr-00000008-00000009-{}", at(1));
        assert_eq!(
            decide(&[&full, &delta], 9),
            Begin::FullFirst(Because::Broken)
        );
    }

    #[test]
    fn a_store_from_another_history_is_not_written_into() {
        let full = format!("Full-00000000-00000500-{}", at(0));
        let expected = Begin::StoreAhead {
            store: Revision(500),
            etcd: Revision(9),
        };
        assert_eq!(decide(&[&full], 9), expected);
    }
}

//! Walking from a revision forward over deltas: the fewest that cover the way, and where it breaks.

use std::collections::BTreeSet;

use mainstay_ids::Revision;

use super::Link;
use crate::catalogue::Object;

/// The usable deltas, sorted by first revision.
pub(super) struct Deltas<'a>(Vec<&'a Object>);

/// Where a walk is to end.
#[derive(Clone, Copy)]
pub(super) enum Goal {
    /// At this revision.
    Revision(Revision),
    /// At this revision, with the last object not created before this second: what follows it is later.
    Created {
        /// Every revision up to here is known to be older than the moment.
        at_least: Revision,
        /// Unix seconds, rounded up.
        since: i64,
    },
    /// Where the deltas end.
    Everything,
}

/// What a hole directly at the beginning of a walk means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstHole {
    /// The base may fill it: note it and go on behind it.
    Note,
    /// The walk ends there.
    Stop,
}

/// How a walk ended.
pub(super) enum End<'a> {
    /// At its goal.
    Reached,
    /// Before revisions no delta holds; the delta behind them is given.
    Hole(&'a Object),
    /// No delta goes further.
    Exhausted,
}

/// A walk from a revision forward.
pub(super) struct Walk<'a> {
    /// Deltas in the order to apply, each with the revision that was reached before it.
    pub(super) picked: Vec<(Revision, &'a Object)>,
    /// The last revision reached.
    pub(super) reached: Revision,
    /// Noted with [`FirstHole::Note`].
    pub(super) first_hole: Option<(Revision, Revision)>,
    /// How it ended.
    pub(super) end: End<'a>,
}

impl Goal {
    fn is_met(self, reached: Revision, last_created: i64) -> bool {
        match self {
            Self::Revision(wanted) => reached >= wanted,
            Self::Created { at_least, since } => reached >= at_least && last_created >= since,
            Self::Everything => false,
        }
    }
}

impl<'a> Deltas<'a> {
    pub(super) fn new(deltas: &'a [Object], without: &BTreeSet<String>) -> Self {
        let mut usable: Vec<&Object> = deltas
            .iter()
            .filter(|d| !without.contains(&d.key))
            .collect();
        usable.sort_by_key(|d| d.name.start);
        Self(usable)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &'a Object> + '_ {
        self.0.iter().copied()
    }

    /// Covers the way from `start` (a base created at `created`) to `goal`, taking at each point the
    /// delta that leads furthest: no cover has fewer.
    pub(super) fn walk(
        &self,
        start: (Revision, i64),
        goal: Goal,
        first_hole: FirstHole,
    ) -> Walk<'a> {
        let (from, mut last_created) = start;
        let mut walk = Walk {
            picked: Vec::new(),
            reached: from,
            first_hole: None,
            end: End::Reached,
        };
        let mut ahead = self.0.iter().copied().peekable();
        let mut furthest: Option<&Object> = None;
        while !goal.is_met(walk.reached, last_created) {
            while let Some(delta) = ahead.next_if(|d| d.name.start <= walk.reached.next()) {
                if furthest.is_none_or(|f| f.name.order() < delta.name.order()) {
                    furthest = Some(delta);
                }
            }
            match (furthest, ahead.peek()) {
                (Some(delta), _) if delta.name.last > walk.reached => {
                    walk.picked.push((walk.reached, delta));
                    walk.reached = delta.name.last;
                    last_created = delta.name.created;
                }
                (_, None) => {
                    walk.end = End::Exhausted;
                    break;
                }
                (_, Some(&next)) => {
                    let at_base = walk.picked.is_empty() && walk.first_hole.is_none();
                    if !at_base || first_hole == FirstHole::Stop {
                        walk.end = End::Hole(next);
                        break;
                    }
                    let before = next.name.start.previous();
                    let to = if let Goal::Revision(wanted) = goal {
                        before.min(wanted)
                    } else {
                        before
                    };
                    walk.first_hole = Some((walk.reached.next(), to));
                    walk.reached = to;
                }
            }
        }
        walk
    }

    /// The picked deltas with everything that could replace each. `until` is what the last one is needed for.
    pub(super) fn links(&self, picked: &[(Revision, &'a Object)], until: Revision) -> Vec<Link> {
        let following = picked
            .iter()
            .skip(1)
            .map(|(_, next)| next.name.start.previous());
        let ends = following.chain(std::iter::once(until));
        picked
            .iter()
            .zip(ends)
            .map(|(&(reached, object), end)| {
                let first = reached.next();
                let mut alternates: Vec<Object> = self
                    .iter()
                    .take_while(|d| d.name.start <= first)
                    .filter(|d| d.name.last >= end && d.key != object.key)
                    .cloned()
                    .collect();
                alternates.sort_by_key(|d| std::cmp::Reverse((d.name.created, d.name.last)));
                Link {
                    object: object.clone(),
                    alternates,
                }
            })
            .collect()
    }
}

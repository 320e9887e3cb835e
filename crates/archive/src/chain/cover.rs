//! Walking from a revision forward over deltas: the fewest that cover the way, and where it breaks.

use std::collections::BTreeSet;

use mainstay_ids::Revision;

use super::Link;
use crate::catalogue::SnapshotObject;

/// The usable deltas, sorted by first revision.
pub(super) struct Deltas<'a>(Vec<&'a SnapshotObject>);

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
pub(super) enum FirstGapPolicy {
    /// The base may fill it: note it and go on behind it.
    Skip,
    /// The walk ends there.
    Stop,
}

/// How a walk ended.
pub(super) enum WalkOutcome<'a> {
    /// At its goal.
    Reached,
    /// Before revisions no delta holds; the delta behind them is given.
    Gap(&'a SnapshotObject),
    /// No delta goes further.
    Exhausted,
}

/// A walk from a revision forward.
pub(super) struct DeltaWalk<'a> {
    /// Deltas in the order to apply, each with the revision that was reached before it.
    pub(super) picked: Vec<(Revision, &'a SnapshotObject)>,
    /// The last revision reached.
    pub(super) reached: Revision,
    /// Noted with [`FirstGapPolicy::Note`].
    pub(super) first_gap: Option<(Revision, Revision)>,
    /// How it ended.
    pub(super) outcome: WalkOutcome<'a>,
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
    pub(super) fn new(deltas: &'a [SnapshotObject], without: &BTreeSet<String>) -> Self {
        let mut is_usable: Vec<&SnapshotObject> = deltas
            .iter()
            .filter(|d| !without.contains(&d.key))
            .collect();
        is_usable.sort_by_key(|d| d.name.start);
        Self(is_usable)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &'a SnapshotObject> + '_ {
        self.0.iter().copied()
    }

    /// Covers the way from `start` (a base created at `created`) to `goal`, taking at each point the
    /// delta that leads furthest: no cover has fewer.
    pub(super) fn walk(
        &self,
        start: (Revision, i64),
        goal: Goal,
        first_gap: FirstGapPolicy,
    ) -> DeltaWalk<'a> {
        let (from, mut last_created) = start;
        let mut walk = DeltaWalk {
            picked: Vec::new(),
            reached: from,
            first_gap: None,
            outcome: WalkOutcome::Reached,
        };
        let mut ahead = self.0.iter().copied().peekable();
        let mut furthest: Option<&SnapshotObject> = None;
        while !goal.is_met(walk.reached, last_created) {
            while let Some(delta) = ahead.next_if(|d| d.name.start <= walk.reached.next()) {
                if furthest.is_none_or(|f| f.name.sort_key() < delta.name.sort_key()) {
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
                    walk.outcome = WalkOutcome::Exhausted;
                    break;
                }
                (_, Some(&next)) => {
                    let at_base = walk.picked.is_empty() && walk.first_gap.is_none();
                    if !at_base || first_gap == FirstGapPolicy::Stop {
                        walk.outcome = WalkOutcome::Gap(next);
                        break;
                    }
                    let before = next.name.start.previous();
                    let to = if let Goal::Revision(wanted) = goal {
                        before.min(wanted)
                    } else {
                        before
                    };
                    walk.first_gap = Some((walk.reached.next(), to));
                    walk.reached = to;
                }
            }
        }
        walk
    }

    /// The picked deltas with everything that could replace each. `until` is what the last one is needed for.
    pub(super) fn build_links(&self, picked: &[(Revision, &'a SnapshotObject)], until: Revision) -> Vec<Link> {
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
                let mut alternates: Vec<SnapshotObject> = self
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

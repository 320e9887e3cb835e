//! Covers a range of revisions with the fewest deltas, and finds where the cover has a gap.

use std::collections::BTreeSet;

use mainstay_ids::Revision;

use super::Link;
use crate::catalogue::SnapshotObject;

/// The usable deltas, sorted by first revision.
pub(super) struct Deltas<'a>(Vec<&'a SnapshotObject>);

/// Where a walk ends.
#[derive(Clone, Copy)]
pub(super) enum Goal {
    /// At this revision.
    Revision(Revision),
    /// At this revision, and with a last object created at or after this second: later objects hold later events.
    Created {
        /// Revisions up to here are known to be older than the target time.
        at_least: Revision,
        /// Unix seconds, rounded up.
        since: i64,
    },
    /// At the end of the deltas.
    Everything,
}

/// How to treat a gap directly at the start of a walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstGapPolicy {
    /// The base may fill it: record it and continue after it.
    Skip,
    /// The walk ends there.
    Stop,
}

/// How a walk ended.
pub(super) enum WalkOutcome<'a> {
    /// The goal is reached.
    Reached,
    /// At a gap; carries the delta after it.
    Gap(&'a SnapshotObject),
    /// No delta reaches further.
    Exhausted,
}

/// Result of covering a range from a revision forward.
pub(super) struct DeltaWalk<'a> {
    /// Deltas in the order to apply, each with the revision reached before it.
    pub(super) picked: Vec<(Revision, &'a SnapshotObject)>,
    /// The last revision reached.
    pub(super) reached: Revision,
    /// First and last revision of the gap recorded with [`FirstGapPolicy::Skip`].
    pub(super) first_gap: Option<(Revision, Revision)>,
    pub(super) outcome: WalkOutcome<'a>,
}

impl Goal {
    fn is_met(self, reached: Revision, last_created: i64) -> bool {
        match self {
            Self::Revision(target) => reached >= target,
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
                    // Only the base can be newer than its name; a gap between two deltas is always missing data.
                    let at_base = walk.picked.is_empty() && walk.first_gap.is_none();
                    if !at_base || first_gap == FirstGapPolicy::Stop {
                        walk.outcome = WalkOutcome::Gap(next);
                        break;
                    }
                    let before = next.name.start.previous();
                    let to = if let Goal::Revision(target) = goal {
                        before.min(target)
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

    /// The picked deltas, each with all deltas that could replace it. `until` is the revision the last one must reach.
    pub(super) fn build_links(
        &self,
        picked: &[(Revision, &'a SnapshotObject)],
        until: Revision,
    ) -> Vec<Link> {
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

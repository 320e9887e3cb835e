//! Selects the newest base that reaches the target without a gap, else one whose gap its own content may fill.

use std::cmp::Reverse;

use jiff::Timestamp;
use mainstay_ids::Revision;

use super::cover::{DeltaWalk, Deltas, FirstGapPolicy, Goal, WalkOutcome};
use super::listing::collect_restorable;
use super::{ChainRequest, ChainTarget, ChooseError, SnapshotChain};
use crate::catalogue::{Catalogue, SnapshotObject};

/// Selects the objects that restore the target.
///
/// The newest base that reaches the target without a gap wins. Otherwise the newest base with a gap directly after
/// itself only. [`ChainTarget::Latest`] is the newest revision in any name: objects that cannot be connected are an
/// error, never left out.
///
/// For [`ChainTarget::Time`] the base was created at or before that time, and the chain ends with the first delta
/// created at or after it. So it holds every event up to the time, and the caller stops at the first later one. A
/// base created in the same second is the last resort: its name does not show on which side of the time it is.
///
/// # Errors
///
/// [`ChooseError`] names what is missing and what can be restored instead.
pub fn choose(catalogue: &Catalogue, request: &ChainRequest) -> Result<SnapshotChain, ChooseError> {
    let deltas = Deltas::new(&catalogue.deltas, &request.excluded);
    let bases = usable_bases(catalogue, request)?;
    let starts = bases.iter().map(|base| base.name.sort_key()).collect();
    let selector = ChainSelector::new(catalogue, request, &deltas, starts);
    let mut candidates: Vec<&SnapshotObject> = bases
        .iter()
        .copied()
        .filter(|b| selector.can_start_from(b))
        .collect();
    candidates.sort_by_key(|b| selector.can_exceed_target(b)); // stable sort: newest first within each group

    let mut with_gap: Option<SnapshotChain> = None;
    for base in &candidates {
        let walk = deltas.walk(base.name.sort_key(), selector.goal, FirstGapPolicy::Skip);
        if !matches!(walk.outcome, WalkOutcome::Reached) {
            continue;
        }
        let has_gap = walk.first_gap.is_some();
        let chain = selector.build_chain(&deltas, base, base.name.last, &walk);
        if !has_gap {
            return Ok(chain);
        }
        with_gap = with_gap.or(Some(chain));
    }
    if let Some(chain) = with_gap {
        return Ok(chain);
    }
    // No base reaches the target: report the gap of the base that gets furthest.
    let walks = candidates.iter().map(|base| {
        (
            *base,
            deltas.walk(base.name.sort_key(), selector.goal, FirstGapPolicy::Stop),
        )
    });
    // On equal reach prefer the newest base: `max_by_key` alone would keep the last one.
    match walks
        .enumerate()
        .max_by_key(|(age, (_, walk))| (walk.reached, Reverse(*age)))
    {
        Some((_, (base, walk))) => Err(selector.incomplete_error(base, &walk)),
        None => Err(selector.unreachable_error()),
    }
}

/// Selects the deltas after a base that was read and holds every revision up to `holds`.
///
/// Resolves [`SnapshotChain::gap_after_base`], which [`choose`] leaves open: here every gap is an error.
///
/// # Errors
///
/// As [`choose`], and [`ChooseError::BasePastTarget`] when the base is newer than the requested revision.
pub fn choose_deltas(
    catalogue: &Catalogue,
    base: &SnapshotObject,
    holds: Revision,
    request: &ChainRequest,
) -> Result<SnapshotChain, ChooseError> {
    let deltas = Deltas::new(&catalogue.deltas, &request.excluded);
    let starts = vec![(holds, base.name.created)];
    let selector = ChainSelector::new(catalogue, request, &deltas, starts);
    if let ChainTarget::Revision(wanted) = request.target
        && holds > wanted
    {
        return Err(ChooseError::BasePastTarget {
            base: base.name.to_string(),
            holds,
            wanted,
        });
    }
    let walk = deltas.walk(
        (holds, base.name.created),
        selector.goal,
        FirstGapPolicy::Stop,
    );
    match walk.outcome {
        WalkOutcome::Reached => Ok(selector.build_chain(&deltas, base, holds, &walk)),
        WalkOutcome::Gap(_) | WalkOutcome::Exhausted => Err(selector.incomplete_error(base, &walk)),
    }
}

/// The usable bases, newest first.
fn usable_bases<'a>(
    catalogue: &'a Catalogue,
    request: &ChainRequest,
) -> Result<Vec<&'a SnapshotObject>, ChooseError> {
    let is_usable = |o: &&SnapshotObject| !request.excluded.contains(&o.key);
    if let Some(name) = &request.base {
        let mut same: Vec<&SnapshotObject> = catalogue
            .fulls
            .iter()
            .filter(is_usable)
            .filter(|o| o.name == *name)
            .collect();
        same.sort_by_key(|o| Reverse(o.layout));
        return match same.first() {
            Some(base) => Ok(vec![base]),
            None => Err(ChooseError::BaseNotFound {
                name: name.to_string(),
            }),
        };
    }
    let found: Vec<&SnapshotObject> = catalogue.fulls.iter().rev().filter(is_usable).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    match catalogue.deltas.last() {
        Some(newest) => Err(ChooseError::NoBase {
            deltas: catalogue.deltas.len(),
            newest: newest.name.last,
        }),
        None => Err(ChooseError::NoSnapshots),
    }
}

/// The target of a request, resolved for one catalogue.
struct ChainSelector<'a> {
    catalogue: &'a Catalogue,
    request: &'a ChainRequest,
    goal: Goal,
    /// Revision and creation time of each candidate base.
    starts: Vec<(Revision, i64)>,
}

impl<'a> ChainSelector<'a> {
    fn new(
        catalogue: &'a Catalogue,
        request: &'a ChainRequest,
        deltas: &Deltas<'_>,
        starts: Vec<(Revision, i64)>,
    ) -> Self {
        let is_usable = catalogue
            .fulls
            .iter()
            .filter(|o| !request.excluded.contains(&o.key));
        let objects = is_usable.chain(deltas.iter());
        let goal = match request.target {
            ChainTarget::Revision(revision) => Goal::Revision(revision),
            ChainTarget::Latest => {
                let newest = objects.map(|o| o.name.last).max();
                Goal::Revision(newest.unwrap_or_default())
            }
            ChainTarget::Time(moment) => {
                // An object created before the target time holds only events from before it.
                let earlier = objects.filter(|o| o.name.created_at() < moment);
                let at_least = earlier.map(|o| o.name.last).max().unwrap_or_default();
                Goal::Created {
                    at_least,
                    since: ceil_to_second(moment),
                }
            }
        };
        Self {
            catalogue,
            request,
            goal,
            starts,
        }
    }

    /// Returns true when, by its name, the base is not newer than the target.
    fn can_start_from(&self, base: &SnapshotObject) -> bool {
        match self.request.target {
            ChainTarget::Latest => true,
            ChainTarget::Revision(wanted) => base.name.last <= wanted,
            ChainTarget::Time(moment) => base.name.created_at() <= moment,
        }
    }

    /// Returns true when the base may hold events after the target time, because both are in the same second.
    fn can_exceed_target(&self, base: &SnapshotObject) -> bool {
        match self.request.target {
            ChainTarget::Time(moment) => base.name.created >= moment.as_second(),
            ChainTarget::Latest | ChainTarget::Revision(_) => false,
        }
    }

    fn build_chain<'d>(
        &self,
        deltas: &Deltas<'d>,
        base: &SnapshotObject,
        holds: Revision,
        walk: &DeltaWalk<'d>,
    ) -> SnapshotChain {
        let last = walk.picked.last().map(|(_, delta)| delta.name.last);
        let until = match self.goal {
            Goal::Revision(wanted) => wanted,
            Goal::Created { .. } | Goal::Everything => last.unwrap_or(holds),
        };
        SnapshotChain {
            base: base.clone(),
            deltas: deltas.build_links(&walk.picked, until),
            last_revision: last.unwrap_or(walk.reached).max(holds),
            gap_after_base: walk.first_gap,
        }
    }

    /// The error for a walk that did not reach its goal.
    fn incomplete_error(&self, base: &SnapshotObject, walk: &DeltaWalk<'_>) -> ChooseError {
        let before = match walk.outcome {
            WalkOutcome::Gap(delta) => Some((delta, delta.name.start.previous())),
            WalkOutcome::Reached | WalkOutcome::Exhausted => self.find_next_base(walk.reached),
        };
        let Some((before, to)) = before else {
            return self.unreachable_error();
        };
        let after = walk.picked.last().map_or(base, |(_, delta)| *delta);
        ChooseError::MissingRevisions {
            from: walk.reached.next(),
            to,
            after: after.name.to_string(),
            before: before.name.to_string(),
            newest_restorable: walk.reached,
        }
    }

    /// The next usable base after `reached` and not after the target: its revisions are known to exist.
    fn find_next_base(&self, reached: Revision) -> Option<(&'a SnapshotObject, Revision)> {
        let wanted = match self.goal {
            Goal::Revision(wanted) => wanted,
            Goal::Created { at_least, .. } => at_least,
            Goal::Everything => Revision(i64::MAX),
        };
        let ahead = self.catalogue.fulls.iter().find(|o| {
            o.name.last > reached
                && o.name.last <= wanted
                && !self.request.excluded.contains(&o.key)
        });
        ahead.map(|o| (o, o.name.last))
    }

    /// The error for a target outside everything that can be restored.
    fn unreachable_error(&self) -> ChooseError {
        let reach = collect_restorable(self.catalogue, &self.starts, &self.request.excluded);
        match self.request.target {
            ChainTarget::Time(wanted) => ChooseError::TimeUnreachable {
                wanted,
                restorable: reach.times,
            },
            ChainTarget::Revision(wanted) => ChooseError::RevisionUnreachable {
                wanted,
                restorable: reach.revisions,
            },
            ChainTarget::Latest => ChooseError::NoSnapshots,
        }
    }
}

/// Unix seconds of the time, rounded up: names carry whole seconds.
fn ceil_to_second(moment: Timestamp) -> i64 {
    let second = moment.as_second();
    if moment.subsec_nanosecond() > 0 {
        second.saturating_add(1)
    } else {
        second
    }
}

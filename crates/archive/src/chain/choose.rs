//! The choice: the newest base whose way to the target has no hole, else one whose hole it may fill itself.

use std::cmp::Reverse;

use jiff::Timestamp;
use mainstay_ids::Revision;

use super::cover::{Deltas, WalkOutcome, FirstGapPolicy, Goal, DeltaWalk};
use super::listing::collect_restorable;
use super::{SnapshotChain, ChooseError, ChainRequest, ChainTarget};
use crate::catalogue::{Catalogue, SnapshotObject};

/// Picks the objects that lead to the target.
///
/// The newest base wins among those that reach it without a hole; failing that, the newest that reaches
/// it but for a hole directly behind itself. [`Target::Latest`] means the newest revision any name
/// mentions: objects that cannot be connected are an error, not left out.
///
/// For [`Target::Time`] the base was created at or before that moment, and the chain ends with the first delta that
/// was not: every event up to the moment is in it, and the caller stops at the first later one. A base of the very
/// second is the last resort: its name does not tell on which side of the moment it was made.
///
/// # Errors
///
/// A [`ChooseError`] that says what is missing and what can be had instead.
pub fn choose(catalogue: &Catalogue, request: &ChainRequest) -> Result<SnapshotChain, ChooseError> {
    let deltas = Deltas::new(&catalogue.deltas, &request.excluded);
    let bases = usable_bases(catalogue, request)?;
    let starts = bases.iter().map(|base| base.name.sort_key()).collect();
    let quest = ChainSelector::new(catalogue, request, &deltas, starts);
    let mut candidates: Vec<&SnapshotObject> = bases
        .iter()
        .copied()
        .filter(|b| quest.can_start_from(b))
        .collect();
    candidates.sort_by_key(|b| quest.can_exceed_target(b)); // stable: else newest first

    let mut noted: Option<SnapshotChain> = None;
    for base in &candidates {
        let walk = deltas.walk(base.name.sort_key(), quest.goal, FirstGapPolicy::Skip);
        if !matches!(walk.outcome, WalkOutcome::Reached) {
            continue;
        }
        let holed = walk.first_gap.is_some();
        let chain = quest.build_chain(&deltas, base, base.name.last, &walk);
        if !holed {
            return Ok(chain);
        }
        noted = noted.or(Some(chain));
    }
    if let Some(chain) = noted {
        return Ok(chain);
    }
    let walks = candidates.iter().map(|base| {
        (
            *base,
            deltas.walk(base.name.sort_key(), quest.goal, FirstGapPolicy::Stop),
        )
    });
    // The first of equals is the newest base: `max_by_key` alone would keep the last.
    match walks
        .enumerate()
        .max_by_key(|(age, (_, walk))| (walk.reached, Reverse(*age)))
    {
        Some((_, (base, walk))) => Err(quest.incomplete_error(base, &walk)),
        None => Err(quest.unreachable_error()),
    }
}

/// Picks the deltas behind a base that has been read and is known to hold everything up to `holds`.
///
/// Decides what [`choose`] had to leave open in [`Chain::gap_after_base`]: a hole here is an error.
///
/// # Errors
///
/// As [`choose`], and [`ChooseError::BasePastTarget`] when the base is already past the revision asked for.
pub fn choose_deltas(
    catalogue: &Catalogue,
    base: &SnapshotObject,
    holds: Revision,
    request: &ChainRequest,
) -> Result<SnapshotChain, ChooseError> {
    let deltas = Deltas::new(&catalogue.deltas, &request.excluded);
    let starts = vec![(holds, base.name.created)];
    let quest = ChainSelector::new(catalogue, request, &deltas, starts);
    if let ChainTarget::Revision(wanted) = request.target
        && holds > wanted
    {
        return Err(ChooseError::BasePastTarget {
            base: base.name.to_string(),
            holds,
            wanted,
        });
    }
    let walk = deltas.walk((holds, base.name.created), quest.goal, FirstGapPolicy::Stop);
    match walk.outcome {
        WalkOutcome::Reached => Ok(quest.build_chain(&deltas, base, holds, &walk)),
        WalkOutcome::Gap(_) | WalkOutcome::Exhausted => Err(quest.incomplete_error(base, &walk)),
    }
}

/// The bases that may be used, newest first.
fn usable_bases<'a>(catalogue: &'a Catalogue, request: &ChainRequest) -> Result<Vec<&'a SnapshotObject>, ChooseError> {
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

/// A target made concrete for one catalogue.
struct ChainSelector<'a> {
    catalogue: &'a Catalogue,
    request: &'a ChainRequest,
    goal: Goal,
    /// Revision and creation time of each base in question.
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
                // Whatever was stored before the moment happened before it.
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

    /// Whether the names allow this base for the target.
    fn can_start_from(&self, base: &SnapshotObject) -> bool {
        match self.request.target {
            ChainTarget::Latest => true,
            ChainTarget::Revision(wanted) => base.name.last <= wanted,
            ChainTarget::Time(moment) => base.name.created_at() <= moment,
        }
    }

    /// Whether the base may hold what happened after the moment asked for, in the same second.
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

    /// Why a walk that did not reach its goal is not enough.
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

    /// The nearest usable base past `reached` that the target would have to include.
    fn find_next_base(&self, reached: Revision) -> Option<(&'a SnapshotObject, Revision)> {
        let wanted = match self.goal {
            Goal::Revision(wanted) => wanted,
            Goal::Created { at_least, .. } => at_least,
            Goal::Everything => Revision(i64::MAX),
        };
        let ahead = self.catalogue.fulls.iter().find(|o| {
            o.name.last > reached && o.name.last <= wanted && !self.request.excluded.contains(&o.key)
        });
        ahead.map(|o| (o, o.name.last))
    }

    /// The target lies before, behind or beside everything the usable objects give.
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

/// Unix seconds of the moment, rounded up.
fn ceil_to_second(moment: Timestamp) -> i64 {
    let second = moment.as_second();
    if moment.subsec_nanosecond() > 0 {
        second.saturating_add(1)
    } else {
        second
    }
}

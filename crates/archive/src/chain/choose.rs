//! The choice: the newest base whose way to the target has no hole, else one whose hole it may fill itself.

use std::cmp::Reverse;

use jiff::Timestamp;
use mainstay_ids::Revision;

use super::cover::{Deltas, End, FirstHole, Goal, Walk};
use super::listing::reach_of_all;
use super::{Chain, ChooseError, Request, Target};
use crate::catalogue::{Catalogue, Object};

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
pub fn choose(catalogue: &Catalogue, request: &Request) -> Result<Chain, ChooseError> {
    let deltas = Deltas::new(&catalogue.deltas, &request.without);
    let bases = bases(catalogue, request)?;
    let starts = bases.iter().map(|base| base.name.order()).collect();
    let quest = Quest::new(catalogue, request, &deltas, starts);
    let mut candidates: Vec<&Object> = bases
        .iter()
        .copied()
        .filter(|b| quest.may_start(b))
        .collect();
    candidates.sort_by_key(|b| quest.may_be_late(b)); // stable: else newest first

    let mut noted: Option<Chain> = None;
    for base in &candidates {
        let walk = deltas.walk(base.name.order(), quest.goal, FirstHole::Note);
        if !matches!(walk.end, End::Reached) {
            continue;
        }
        let holed = walk.first_hole.is_some();
        let chain = quest.chain(&deltas, base, base.name.last, &walk);
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
            deltas.walk(base.name.order(), quest.goal, FirstHole::Stop),
        )
    });
    // The first of equals is the newest base: `max_by_key` alone would keep the last.
    match walks
        .enumerate()
        .max_by_key(|(age, (_, walk))| (walk.reached, Reverse(*age)))
    {
        Some((_, (base, walk))) => Err(quest.refusal(base, &walk)),
        None => Err(quest.out_of_range()),
    }
}

/// Picks the deltas behind a base that has been read and is known to hold everything up to `holds`.
///
/// Decides what [`choose`] had to leave open in [`Chain::hole_after_base`]: a hole here is an error.
///
/// # Errors
///
/// As [`choose`], and [`ChooseError::BaseBeyond`] when the base is already past the revision asked for.
pub fn continue_from(
    catalogue: &Catalogue,
    base: &Object,
    holds: Revision,
    request: &Request,
) -> Result<Chain, ChooseError> {
    let deltas = Deltas::new(&catalogue.deltas, &request.without);
    let starts = vec![(holds, base.name.created)];
    let quest = Quest::new(catalogue, request, &deltas, starts);
    if let Target::Revision(wanted) = request.target
        && holds > wanted
    {
        return Err(ChooseError::BaseBeyond {
            base: base.name.to_string(),
            holds,
            wanted,
        });
    }
    let walk = deltas.walk((holds, base.name.created), quest.goal, FirstHole::Stop);
    match walk.end {
        End::Reached => Ok(quest.chain(&deltas, base, holds, &walk)),
        End::Hole(_) | End::Exhausted => Err(quest.refusal(base, &walk)),
    }
}

/// The bases that may be used, newest first.
fn bases<'a>(catalogue: &'a Catalogue, request: &Request) -> Result<Vec<&'a Object>, ChooseError> {
    let usable = |o: &&Object| !request.without.contains(&o.key);
    if let Some(name) = &request.from {
        let mut same: Vec<&Object> = catalogue
            .fulls
            .iter()
            .filter(usable)
            .filter(|o| o.name == *name)
            .collect();
        same.sort_by_key(|o| Reverse(o.layout));
        return match same.first() {
            Some(base) => Ok(vec![base]),
            None => Err(ChooseError::NoSuchBase {
                name: name.to_string(),
            }),
        };
    }
    let found: Vec<&Object> = catalogue.fulls.iter().rev().filter(usable).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    match catalogue.deltas.last() {
        Some(newest) => Err(ChooseError::NoBase {
            deltas: catalogue.deltas.len(),
            newest: newest.name.last,
        }),
        None => Err(ChooseError::Empty),
    }
}

/// A target made concrete for one catalogue.
struct Quest<'a> {
    catalogue: &'a Catalogue,
    request: &'a Request,
    goal: Goal,
    /// Revision and creation time of each base in question.
    starts: Vec<(Revision, i64)>,
}

impl<'a> Quest<'a> {
    fn new(
        catalogue: &'a Catalogue,
        request: &'a Request,
        deltas: &Deltas<'_>,
        starts: Vec<(Revision, i64)>,
    ) -> Self {
        let usable = catalogue
            .fulls
            .iter()
            .filter(|o| !request.without.contains(&o.key));
        let objects = usable.chain(deltas.iter());
        let goal = match request.target {
            Target::Revision(revision) => Goal::Revision(revision),
            Target::Latest => {
                let newest = objects.map(|o| o.name.last).max();
                Goal::Revision(newest.unwrap_or_default())
            }
            Target::Time(moment) => {
                // Whatever was stored before the moment happened before it.
                let earlier = objects.filter(|o| o.name.created_at() < moment);
                let at_least = earlier.map(|o| o.name.last).max().unwrap_or_default();
                Goal::Created {
                    at_least,
                    since: second_not_before(moment),
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
    fn may_start(&self, base: &Object) -> bool {
        match self.request.target {
            Target::Latest => true,
            Target::Revision(wanted) => base.name.last <= wanted,
            Target::Time(moment) => base.name.created_at() <= moment,
        }
    }

    /// Whether the base may hold what happened after the moment asked for, in the same second.
    fn may_be_late(&self, base: &Object) -> bool {
        match self.request.target {
            Target::Time(moment) => base.name.created >= moment.as_second(),
            Target::Latest | Target::Revision(_) => false,
        }
    }

    fn chain<'d>(
        &self,
        deltas: &Deltas<'d>,
        base: &Object,
        holds: Revision,
        walk: &Walk<'d>,
    ) -> Chain {
        let last = walk.picked.last().map(|(_, delta)| delta.name.last);
        let until = match self.goal {
            Goal::Revision(wanted) => wanted,
            Goal::Created { .. } | Goal::Everything => last.unwrap_or(holds),
        };
        Chain {
            base: base.clone(),
            deltas: deltas.links(&walk.picked, until),
            reaches: last.unwrap_or(walk.reached).max(holds),
            hole_after_base: walk.first_hole,
        }
    }

    /// Why a walk that did not reach its goal is not enough.
    fn refusal(&self, base: &Object, walk: &Walk<'_>) -> ChooseError {
        let before = match walk.end {
            End::Hole(delta) => Some((delta, delta.name.start.previous())),
            End::Reached | End::Exhausted => self.base_ahead(walk.reached),
        };
        let Some((before, to)) = before else {
            return self.out_of_range();
        };
        let after = walk.picked.last().map_or(base, |(_, delta)| *delta);
        ChooseError::Missing {
            from: walk.reached.next(),
            to,
            after: after.name.to_string(),
            before: before.name.to_string(),
            newest_restorable: walk.reached,
        }
    }

    /// The nearest usable base past `reached` that the target would have to include.
    fn base_ahead(&self, reached: Revision) -> Option<(&'a Object, Revision)> {
        let wanted = match self.goal {
            Goal::Revision(wanted) => wanted,
            Goal::Created { at_least, .. } => at_least,
            Goal::Everything => Revision(i64::MAX),
        };
        let ahead = self.catalogue.fulls.iter().find(|o| {
            o.name.last > reached && o.name.last <= wanted && !self.request.without.contains(&o.key)
        });
        ahead.map(|o| (o, o.name.last))
    }

    /// The target lies before, behind or beside everything the usable objects give.
    fn out_of_range(&self) -> ChooseError {
        let reach = reach_of_all(self.catalogue, &self.starts, &self.request.without);
        match self.request.target {
            Target::Time(wanted) => ChooseError::TimeUnreachable {
                wanted,
                restorable: reach.times,
            },
            Target::Revision(wanted) => ChooseError::Unreachable {
                wanted,
                restorable: reach.revisions,
            },
            Target::Latest => ChooseError::Empty,
        }
    }
}

/// Unix seconds of the moment, rounded up.
fn second_not_before(moment: Timestamp) -> i64 {
    let second = moment.as_second();
    if moment.subsec_nanosecond() > 0 {
        second.saturating_add(1)
    } else {
        second
    }
}

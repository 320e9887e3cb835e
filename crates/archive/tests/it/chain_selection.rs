//! Compares chain selection with a model that checks every revision and tries every set of deltas.

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, ListedObject};
use mainstay_archive::chain::{
    ChainRequest, ChainTarget, ChooseError, SnapshotChain, choose, restorable_revisions,
};
use mainstay_archive::compression::Compression;
use mainstay_archive::layout::object_key;
use mainstay_archive::name::SnapshotName;
use mainstay_ids::Revision;
use proptest::prelude::*;

/// The objects of a small bucket: (revision, created) of bases, (start, last, created) of deltas.
#[derive(Clone, Debug)]
struct ModelBucket {
    bases: Vec<(i64, i64)>,
    deltas: Vec<(i64, i64, i64)>,
}

const MAX_REVISION: i64 = 24;

fn model_buckets() -> impl Strategy<Value = ModelBucket> {
    let base = (1..MAX_REVISION, 0..40_i64);
    let delta = (1..MAX_REVISION, 0..7_i64, 0..40_i64).prop_map(|(s, n, c)| (s, s + n, c));
    (
        prop::collection::vec(base, 0..4),
        prop::collection::vec(delta, 0..8),
    )
        .prop_map(|(bases, deltas)| ModelBucket { bases, deltas })
}

impl ModelBucket {
    fn catalogue(&self) -> Catalogue {
        let full = |&(last, created): &(i64, i64)| {
            SnapshotName::full(Revision(last), created, Compression::Gzip)
        };
        let delta = |&(start, last, created): &(i64, i64, i64)| {
            SnapshotName::delta(Revision(start), Revision(last), created, Compression::Gzip)
        };
        let names = self
            .bases
            .iter()
            .map(full)
            .chain(self.deltas.iter().map(delta));
        let listed = names.map(|name| ListedObject {
            key: object_key("p", &name),
            size: 1,
            modified: Timestamp::UNIX_EPOCH,
        });
        Catalogue::from_listing("p", listed.collect())
    }

    fn newest_revision(&self) -> i64 {
        let bases = self.bases.iter().map(|b| b.0);
        bases
            .chain(self.deltas.iter().map(|d| d.1))
            .max()
            .unwrap_or_default()
    }

    fn has_revision(&self, revision: i64) -> bool {
        self.deltas.iter().any(|d| (d.0..=d.1).contains(&revision))
    }

    fn covers(&self, from: i64, to: i64) -> bool {
        (from..=to).all(|r| self.has_revision(r))
    }

    fn reachable_from(&self, base: i64) -> i64 {
        let mut reached = base;
        while self.has_revision(reached + 1) {
            reached += 1;
        }
        reached
    }

    /// The first revision a delta starts at after a gap directly after `base`.
    fn first_after_gap(&self, base: i64) -> Option<i64> {
        let starts = self.deltas.iter().map(|d| d.0).filter(|&s| s > base + 1);
        if self.has_revision(base + 1) {
            None
        } else {
            starts.min()
        }
    }

    /// The fewest deltas that cover `from..=to`, by trying every set.
    fn min_delta_count(&self, from: i64, to: i64) -> usize {
        let covered = |set: u32| {
            let chosen = || {
                self.deltas
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| set & (1 << i) != 0)
            };
            (from..=to).all(|r| chosen().any(|(_, d)| (d.0..=d.1).contains(&r)))
        };
        let sets = 0..1_u32 << self.deltas.len();
        sets.filter(|&s| covered(s))
            .map(u32::count_ones)
            .min()
            .unwrap() as usize
    }

    /// The model's result for a revision: the base, and the first delta revision after a gap.
    fn expected_choice(&self, target: i64) -> Option<((i64, i64), Option<i64>)> {
        let mut bases: Vec<_> = self
            .bases
            .iter()
            .copied()
            .filter(|b| b.0 <= target)
            .collect();
        bases.sort_unstable();
        let whole = bases.iter().rev().find(|b| self.covers(b.0 + 1, target));
        let holed = || {
            bases.iter().rev().find_map(|&b| {
                let behind = self.first_after_gap(b.0)?;
                self.covers(behind, target).then_some((b, Some(behind)))
            })
        };
        whole.map(|&b| (b, None)).or_else(holed)
    }
}

fn base_of(chain: &SnapshotChain) -> (i64, i64) {
    (chain.base.name.last.0, chain.base.name.created)
}

/// Every link connects to the one before, also when any alternate replaces it.
fn is_connected(chain: &SnapshotChain, from: i64, to: i64) -> bool {
    let choices = |l: &mainstay_archive::chain::Link| {
        let all = std::iter::once(&l.object).chain(&l.alternates);
        all.map(|o| (o.name.start.0, o.name.last.0))
            .collect::<Vec<_>>()
    };
    let links: Vec<_> = chain.deltas.iter().map(choices).collect();
    (0..links.len()).all(|replaced| {
        links[replaced].iter().all(|&stand_in| {
            let mut reached = from;
            for (position, link) in links.iter().enumerate() {
                let (start, last) = if position == replaced {
                    stand_in
                } else {
                    link[0]
                };
                if start > reached + 1 {
                    return false;
                }
                reached = reached.max(last);
            }
            reached >= to
        })
    })
}

fn check_choice(
    world: &ModelBucket,
    target: ChainTarget,
    wanted: i64,
) -> Result<(), TestCaseError> {
    let chosen = choose(&world.catalogue(), &ChainRequest::new(target));
    match (world.expected_choice(wanted), chosen) {
        (Some((base, behind)), Ok(chain)) => {
            prop_assert_eq!(base_of(&chain), base);
            let hole = behind.map(|b| (Revision(base.0 + 1), Revision((b - 1).min(wanted))));
            prop_assert_eq!(chain.gap_after_base, hole);
            let from = behind.unwrap_or(base.0 + 1);
            prop_assert_eq!(chain.deltas.len(), world.min_delta_count(from, wanted));
            prop_assert!(is_connected(&chain, from - 1, wanted), "{:?}", chain);
            prop_assert!(chain.last_revision.0 >= wanted);
        }
        (None, Err(error)) => check_error(world, &error, wanted)?,
        (model, chosen) => prop_assert!(false, "model {model:?}, chosen {chosen:?}"),
    }
    Ok(())
}

fn check_error(world: &ModelBucket, error: &ChooseError, wanted: i64) -> Result<(), TestCaseError> {
    let is_usable = world.bases.iter().filter(|b| b.0 <= wanted);
    let best = is_usable.map(|b| world.reachable_from(b.0)).max();
    match (error, best) {
        (ChooseError::NoSnapshots, _) => {
            prop_assert!(world.bases.is_empty() && world.deltas.is_empty());
        }
        (ChooseError::NoBase { .. }, _) => {
            prop_assert!(world.bases.is_empty() && !world.deltas.is_empty());
        }
        (
            ChooseError::MissingRevisions {
                from,
                to,
                newest_restorable,
                ..
            },
            Some(best),
        ) => {
            prop_assert_eq!((newest_restorable.0, from.0), (best, best + 1));
            prop_assert!(
                (from.0..=to.0).all(|r| !world.has_revision(r)) && world.has_revision(to.0 + 1)
            );
        }
        (ChooseError::RevisionUnreachable { restorable, .. }, best) => {
            prop_assert!(best.is_none_or(|b| world.deltas.iter().all(|d| d.0 <= b + 1)));
            let inside = |r: i64| restorable.0.iter().any(|&(a, b)| a.0 <= r && r <= b.0);
            prop_assert!(!inside(wanted));
        }
        other => prop_assert!(false, "{other:?}"),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn chain_for_the_latest_state_matches_the_model(world in model_buckets()) {
        check_choice(&world, ChainTarget::Latest, world.newest_revision())?;
    }

    #[test]
    fn chain_for_any_revision_matches_the_model(world in model_buckets(), wanted in 0..MAX_REVISION + 10) {
        check_choice(&world, ChainTarget::Revision(Revision(wanted)), wanted)?;
    }

    #[test]
    fn restorable_revisions_match_the_model(world in model_buckets()) {
        let ranges = restorable_revisions(&world.catalogue()).0;
        for revision in 0..MAX_REVISION + 10 {
            let promised = ranges.iter().any(|&(a, b)| a.0 <= revision && revision <= b.0);
            let bases = world.bases.iter().filter(|b| b.0 <= revision);
            let model = bases.clone().any(|b| world.reachable_from(b.0) >= revision);
            prop_assert_eq!(promised, model, "revision {}", revision);
        }
    }

    /// A time is covered when the chain holds everything stored before it and its last object was stored at or after it.
    #[test]
    fn chain_for_a_time_holds_everything_stored_before_it(world in model_buckets(), moment in 0..45_i64) {
        let target = ChainTarget::Time(Timestamp::from_second(moment).unwrap());
        let objects = world.bases.iter().copied().chain(world.deltas.iter().map(|d| (d.1, d.2)));
        let needed = objects.filter(|o| o.1 < moment).map(|o| o.0).max().unwrap_or_default();
        match choose(&world.catalogue(), &ChainRequest::new(target)) {
            Ok(chain) => {
                let last = chain.deltas.last().map_or(&chain.base, |link| &link.object);
                prop_assert!(chain.base.name.created <= moment && last.name.created >= moment);
                let hole = chain.gap_after_base.map(|(_, to)| to);
                let from = hole.unwrap_or(chain.base.name.last);
                prop_assert!(chain.last_revision.0 >= needed && is_connected(&chain, from.0, needed));
            }
            Err(error) => {
                let mut bases = world.bases.iter().filter(|b| b.1 <= moment);
                let whole = bases.find(|b| world.reachable_from(b.0) > needed);
                prop_assert_eq!(whole, None, "{}", error);
            }
        }
    }
}

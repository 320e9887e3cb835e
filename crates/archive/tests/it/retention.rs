//! Retention over random buckets: objects that must be kept are kept under any rules.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use mainstay_archive::catalogue::{Catalogue, ListedObject};
use mainstay_archive::chain::{
    ChainRequest, ChainTarget, choose, list_chains, restorable_revisions,
};
use mainstay_archive::compression::Compression;
use mainstay_archive::layout::object_key;
use mainstay_archive::name::SnapshotName;
use mainstay_archive::retention::{
    ChainProof, DeletionGuard, OwnedHistory, RetentionClock, RetentionPlan, RetentionPolicy,
    RetentionRules, UploadParts, plan_retention,
};
use mainstay_ids::Revision;
use proptest::prelude::*;

const MAX_REVISION: i64 = 60;
/// 2026-11-16T10:30:00Z.
const NOW: i64 = 1_794_825_000;
/// Times cover every bucket, older times, and a little of the future.
const OLDEST_TIME: i64 = NOW - 45 * 24 * 3600;
const FUTURE_TIME: i64 = NOW + 7200;

#[derive(Clone, Debug)]
struct RetentionCase {
    listed: Vec<ListedObject>,
    rules: RetentionRules,
    guard: DeletionGuard,
}

fn timestamps() -> impl Strategy<Value = i64> {
    prop_oneof![
        OLDEST_TIME..FUTURE_TIME,
        NOW - 2 * 24 * 3600..NOW,
        NOW - 3 * 3600..NOW,
    ]
}

fn objects() -> impl Strategy<Value = Vec<ListedObject>> {
    let full = (1..MAX_REVISION, timestamps(), 0..4_u64, timestamps()).prop_map(
        |(last, at, parts, part_at)| {
            let name = SnapshotName::full(Revision(last), at, Compression::Gzip);
            with_parts(&name, parts, part_at)
        },
    );
    let delta = (1..MAX_REVISION, 0..12_i64, timestamps()).prop_map(|(start, length, at)| {
        let (start, last) = (Revision(start), Revision(start + length));
        let name = SnapshotName::delta(start, last, at, Compression::None);
        with_parts(&name, 0, at)
    });
    let fulls = prop::collection::vec(full, 0..10);
    let deltas = prop::collection::vec(delta, 0..16);
    (fulls, deltas).prop_map(|(fulls, deltas)| fulls.into_iter().chain(deltas).flatten().collect())
}

/// An object and its parts; with an odd number of parts the object itself does not exist yet.
fn with_parts(name: &SnapshotName, parts: u64, modified: i64) -> Vec<ListedObject> {
    let key = object_key("p", name);
    let modified = Timestamp::from_second(modified).unwrap();
    let entry = |key: String, size| ListedObject {
        key,
        size,
        modified,
    };
    let whole = parts.is_multiple_of(2).then(|| entry(key.clone(), 20));
    let parts = (1..=parts).map(|part| entry(format!("{key}/{part:010}"), 10));
    whole.into_iter().chain(parts).collect()
}

fn retention_cases() -> impl Strategy<Value = RetentionCase> {
    let policy = prop_oneof![
        Just(RetentionPolicy::Exponential),
        (0..5_usize).prop_map(|limit| RetentionPolicy::LimitBased { limit }),
    ];
    let retention = prop_oneof![Just(0), 0..8 * 24 * 3600_i64].prop_map(SignedDuration::from_secs);
    let marks = prop::collection::vec(0..12_u8, 64);
    (objects(), policy, retention, marks, any::<bool>()).prop_map(
        |(listed, policy, delta_retention, marks, is_data)| {
            let mut guard = DeletionGuard {
                proof: ChainProof::NamesOnly,
                parts: if is_data {
                    UploadParts::Data
                } else {
                    UploadParts::Leftovers
                },
                owned: OwnedHistory::All,
                ..DeletionGuard::default()
            };
            for (entry, mark) in listed.iter().zip(marks.iter().cycle()) {
                let key = entry.key.clone();
                let hour = 3600 * i64::from(*mark);
                match mark {
                    0 => drop(guard.pinned.insert(key)),
                    1 | 2 => {
                        let until = Timestamp::from_second(NOW - 5000 + hour).unwrap();
                        guard.locked.insert(key, until);
                    }
                    3 => drop(guard.damaged.insert(key)),
                    4 if key.contains("/Full-") => guard.proof = ChainProof::VerifiedBase { key },
                    _ => {}
                }
            }
            RetentionCase {
                listed,
                rules: RetentionRules {
                    policy,
                    delta_retention,
                },
                guard,
            }
        },
    )
}

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

impl RetentionCase {
    fn catalogue(&self) -> Catalogue {
        Catalogue::from_listing("p", self.listed.clone())
    }

    fn plan(&self) -> RetentionPlan {
        let clock = RetentionClock::new(now(), now());
        plan_retention(&self.catalogue(), &self.rules, clock, &self.guard)
    }

    /// The bucket after the first `count` deletions.
    fn after_deletions(&self, plan: &RetentionPlan, count: usize) -> Self {
        let gone: BTreeSet<&str> = plan
            .deletions
            .iter()
            .take(count)
            .map(|d| d.object.key.as_str())
            .collect();
        let mut after = self.clone();
        after
            .listed
            .retain(|entry| !gone.contains(entry.key.as_str()));
        after
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn latest_chain_is_unchanged_after_any_part_of_a_retention_plan(
        world in retention_cases(),
        stop in any::<prop::sample::Index>(),
    ) {
        let plan = world.plan();
        let before = world.catalogue();
        let count = stop.index(plan.deletions.len() + 1);
        let after = world.after_deletions(&plan, count).catalogue();
        let latest = ChainRequest::new(ChainTarget::Latest);
        if let Ok(chain) = choose(&before, &latest) {
            prop_assert_eq!(choose(&after, &latest).unwrap(), chain);
        }
        let furthest = |c: &Catalogue| restorable_revisions(c).0.last().map(|(_, to)| *to);
        prop_assert_eq!(furthest(&after), furthest(&before));
    }

    #[test]
    fn verified_chain_and_newer_objects_are_kept(world in retention_cases()) {
        let ChainProof::VerifiedBase { key } = &world.guard.proof else { return Ok(()) };
        let before = world.catalogue();
        let Some(base) = before.fulls.iter().find(|full| full.key == *key) else {
            prop_assert!(!world.plan().deletes_snapshots());
            return Ok(());
        };
        let floor = (base.name.last, base.name.created);
        for deletion in world.plan().deletions {
            let name = &deletion.object.name;
            let is_chunk = before.chunks.iter().any(|c| c.object.key == deletion.object.key);
            prop_assert!(is_chunk || (name.last, name.created) < floor, "{deletion:?}");
        }
    }

    #[test]
    fn pinned_and_locked_objects_are_kept(world in retention_cases()) {
        for deletion in world.plan().deletions {
            let key = &deletion.object.key;
            prop_assert!(!world.guard.pinned.contains(key), "{key}");
            prop_assert!(world.guard.locked.get(key).is_none_or(|until| *until <= now()), "{key}");
        }
    }

    #[test]
    fn second_retention_plan_deletes_nothing(world in retention_cases()) {
        let first = world.plan();
        let after = world.after_deletions(&first, first.deletions.len());
        prop_assert_eq!(after.plan().deletions, vec![]);
    }

    #[test]
    fn every_object_is_either_kept_or_deleted(world in retention_cases()) {
        let plan = world.plan();
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let gone = plan.deletions.iter().map(|d| d.object.key.as_str());
        for key in gone.chain(plan.kept.iter().map(|kept| kept.key.as_str())) {
            *seen.entry(key).or_default() += 1;
        }
        let listed: BTreeSet<&str> = world.listed.iter().map(|entry| entry.key.as_str()).collect();
        prop_assert_eq!(seen.len(), listed.len());
        prop_assert!(seen.values().all(|times| *times == 1));
    }

    #[test]
    fn kept_delta_keeps_its_base_and_earlier_deltas(
        world in retention_cases(),
        stop in any::<prop::sample::Index>(),
    ) {
        let plan = world.plan();
        let count = stop.index(plan.deletions.len() + 1);
        let left = world.after_deletions(&plan, count).listed;
        let is_left = |key: &str| left.iter().any(|entry| entry.key == key);
        for stream in list_chains(&world.catalogue()) {
            let members = stream.base.iter().chain(&stream.deltas);
            let fates: Vec<bool> = members.map(|object| is_left(&object.key)).collect();
            let first_gone = fates.iter().position(|left| !left).unwrap_or(fates.len());
            let is_prefix = fates[first_gone..].iter().all(|left| !left);
            prop_assert!(is_prefix, "{fates:?} of {stream:?}");
        }
    }
}

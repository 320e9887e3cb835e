use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::catalogue::ListedObject;

/// A Monday morning.
const NOW: &str = "2026-11-16T10:30:00Z";

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn listed_object(key: String, size: u64, modified: Timestamp) -> ListedObject {
    ListedObject {
        key,
        size,
        modified,
    }
}

/// `F<last>@<time>` is a full, `D<start>-<last>@<time>` a delta.
fn key(object: &str) -> String {
    let (range, created) = object.split_once('@').unwrap();
    let created = time(created).as_second();
    match range.split_at(1) {
        ("F", last) => format!("p/v2/Full-00000000-{last:0>8}-{created}.gz"),
        (_, range) => {
            let (start, last) = range.split_once('-').unwrap();
            format!("p/v2/Incr-{start:0>8}-{last:0>8}-{created}.gz")
        }
    }
}

fn catalogue(objects: &[&str]) -> Catalogue {
    let entry = |object: &&str| listed_object(key(object), 10, Timestamp::UNIX_EPOCH);
    Catalogue::from_listing("p", objects.iter().map(entry).collect())
}

fn exponential() -> RetentionRules {
    RetentionRules {
        policy: RetentionPolicy::Exponential,
        delta_retention: SignedDuration::ZERO,
    }
}

fn limit(most: usize) -> RetentionRules {
    RetentionRules {
        policy: RetentionPolicy::LimitBased { limit: most },
        ..exponential()
    }
}

/// Both clocks agree.
fn clock() -> RetentionClock {
    RetentionClock::new(time(NOW), time(NOW))
}

/// The whole backup is known to belong to this etcd.
fn own_guard() -> DeletionGuard {
    DeletionGuard {
        owned: OwnedHistory::All,
        ..DeletionGuard::default()
    }
}

fn names_only_guard() -> DeletionGuard {
    DeletionGuard {
        proof: ChainProof::NamesOnly,
        ..own_guard()
    }
}

fn deleted_keys(objects: &[&str], rules: &RetentionRules, guard: &DeletionGuard) -> Vec<String> {
    let plan = plan_retention(&catalogue(objects), rules, clock(), guard);
    assert_eq!(plan.deletions.len() + plan.kept.len(), objects.len());
    plan.deletions.into_iter().map(|d| d.object.key).collect()
}

fn keys(objects: &[&str]) -> Vec<String> {
    objects.iter().map(|object| key(object)).collect()
}

fn keep_reason(plan: &RetentionPlan, object: &str) -> KeepReason {
    let found = plan.kept.iter().find(|kept| kept.key == key(object));
    found
        .unwrap_or_else(|| panic!("{object} is deleted"))
        .reason
}

fn deletion_reason(plan: &RetentionPlan, object: &str) -> DeletionReason {
    let found = plan.deletions.iter().find(|d| d.object.key == key(object));
    found.unwrap_or_else(|| panic!("{object} stays")).reason
}

#[test]
fn times_fall_into_utc_hours_days_and_weeks() {
    let table = [
        ("2026-11-16T10:59:59Z", TimeBucket::CurrentHour), // clock skew: in the future
        ("2026-11-17T09:00:00Z", TimeBucket::CurrentHour),
        ("2026-11-16T10:30:00Z", TimeBucket::CurrentHour),
        ("2026-11-16T10:00:00Z", TimeBucket::CurrentHour),
        ("2026-11-16T09:59:59Z", TimeBucket::Hour { ago: 1 }),
        ("2026-11-16T09:00:00Z", TimeBucket::Hour { ago: 1 }),
        ("2026-11-16T08:59:59Z", TimeBucket::Hour { ago: 2 }),
        ("2026-11-16T00:00:00Z", TimeBucket::Hour { ago: 10 }),
        ("2026-11-15T23:59:59Z", TimeBucket::Day { ago: 1 }),
        ("2026-11-15T00:00:00Z", TimeBucket::Day { ago: 1 }),
        ("2026-11-14T23:59:59Z", TimeBucket::Day { ago: 2 }),
        ("2026-11-09T00:00:00Z", TimeBucket::Day { ago: 7 }),
        ("2026-11-08T23:59:59Z", TimeBucket::Week { ago: 1 }),
        ("2026-11-02T00:00:00Z", TimeBucket::Week { ago: 1 }),
        ("2026-11-01T23:59:59Z", TimeBucket::Week { ago: 2 }),
        ("2026-10-26T00:00:00Z", TimeBucket::Week { ago: 2 }),
        ("2026-10-25T23:59:59Z", TimeBucket::Week { ago: 3 }),
        ("2026-10-18T23:59:59Z", TimeBucket::Week { ago: 4 }),
        ("2026-10-12T00:00:00Z", TimeBucket::Week { ago: 4 }),
        ("2026-10-11T23:59:59Z", TimeBucket::Older),
        ("1970-01-01T00:00:00Z", TimeBucket::Older),
    ];
    for (moment, bucket) in table {
        let found = TimeBucket::of(time(moment).as_second(), time(NOW));
        assert_eq!(found, bucket, "{moment}");
    }
    assert_eq!(TimeBucket::of(i64::MIN, time(NOW)), TimeBucket::Older);
    assert_eq!(TimeBucket::of(i64::MAX, time(NOW)), TimeBucket::CurrentHour);
}

#[test]
fn last_full_of_each_hour_day_week_and_all_of_this_hour_are_kept() {
    let table = [
        ("F10@2026-10-11T23:00:00Z", Err(DeletionReason::Expired)),
        (
            "F20@2026-10-12T01:00:00Z",
            Err(DeletionReason::Thinned(TimeBucket::Week { ago: 4 })),
        ),
        ("F30@2026-10-18T22:00:00Z", Ok(TimeBucket::Week { ago: 4 })),
        ("F40@2026-11-01T22:00:00Z", Ok(TimeBucket::Week { ago: 2 })),
        (
            "F50@2026-11-08T01:00:00Z",
            Err(DeletionReason::Thinned(TimeBucket::Week { ago: 1 })),
        ),
        ("F60@2026-11-08T02:00:00Z", Ok(TimeBucket::Week { ago: 1 })),
        (
            "F70@2026-11-09T02:00:00Z",
            Err(DeletionReason::Thinned(TimeBucket::Day { ago: 7 })),
        ),
        ("F80@2026-11-09T23:00:00Z", Ok(TimeBucket::Day { ago: 7 })),
        (
            "F90@2026-11-15T00:00:00Z",
            Err(DeletionReason::Thinned(TimeBucket::Day { ago: 1 })),
        ),
        ("F100@2026-11-15T23:00:00Z", Ok(TimeBucket::Day { ago: 1 })),
        (
            "F110@2026-11-16T00:10:00Z",
            Ok(TimeBucket::Hour { ago: 10 }),
        ),
        (
            "F120@2026-11-16T09:10:00Z",
            Err(DeletionReason::Thinned(TimeBucket::Hour { ago: 1 })),
        ),
        ("F130@2026-11-16T09:50:00Z", Ok(TimeBucket::Hour { ago: 1 })),
        ("F140@2026-11-16T10:00:00Z", Ok(TimeBucket::CurrentHour)),
        ("F150@2026-11-16T10:10:00Z", Ok(TimeBucket::CurrentHour)),
    ];
    let mut objects: Vec<&str> = table.iter().map(|(object, _)| *object).collect();
    let newest = "F160@2026-11-16T10:20:00Z";
    objects.push(newest);
    let plan = plan_retention(
        &catalogue(&objects),
        &exponential(),
        clock(),
        &names_only_guard(),
    );
    for (object, verdict) in table {
        match verdict {
            Ok(bucket) => assert_eq!(
                keep_reason(&plan, object),
                KeepReason::LatestInBucket(bucket),
                "{object}"
            ),
            Err(reason) => assert_eq!(deletion_reason(&plan, object), reason, "{object}"),
        }
    }
    assert_eq!(keep_reason(&plan, newest), KeepReason::NewestChain);
}

#[test]
fn newest_full_is_kept_at_any_age() {
    let objects = ["F10@2020-01-01T00:00:00Z", "F20@2020-01-02T00:00:00Z"];
    let gone = deleted_keys(&objects, &exponential(), &names_only_guard());
    assert_eq!(gone, keys(&objects[..1]));
    assert!(deleted_keys(&objects[1..], &exponential(), &names_only_guard()).is_empty());
}

#[test]
fn limit_keeps_the_newest_fulls_and_at_least_one() {
    let objects = [
        "F10@2026-11-16T01:00:00Z",
        "F20@2026-11-16T02:00:00Z",
        "F30@2026-11-16T03:00:00Z",
        "F40@2026-11-16T04:00:00Z",
    ];
    assert_eq!(
        deleted_keys(&objects, &limit(3), &names_only_guard()),
        keys(&objects[..1])
    );
    assert_eq!(
        deleted_keys(&objects, &limit(1), &names_only_guard()),
        keys(&objects[..3])
    );
    assert_eq!(
        deleted_keys(&objects, &limit(0), &names_only_guard()),
        keys(&objects[..3])
    );
    assert!(deleted_keys(&objects, &limit(9), &names_only_guard()).is_empty());
}

const TWO_CHAINS: [&str; 6] = [
    "F10@2026-11-16T08:00:00Z",
    "D11-20@2026-11-16T08:10:00Z",
    "D21-30@2026-11-16T08:20:00Z",
    "F30@2026-11-16T09:00:00Z",
    "D31-40@2026-11-16T09:10:00Z",
    "D41-50@2026-11-16T09:20:00Z",
];

#[test]
fn deltas_of_older_chains_are_deleted_newest_first_before_their_base() {
    let gone = deleted_keys(&TWO_CHAINS, &limit(1), &names_only_guard());
    assert_eq!(gone, keys(&[TWO_CHAINS[2], TWO_CHAINS[1], TWO_CHAINS[0]]));
    let deltas_only = deleted_keys(&TWO_CHAINS, &exponential(), &names_only_guard());
    assert_eq!(deltas_only, keys(&[TWO_CHAINS[2], TWO_CHAINS[1]]));
}

#[test]
fn deltas_within_retention_keep_their_base_and_earlier_deltas() {
    let rules = RetentionRules {
        delta_retention: SignedDuration::from_mins(135), // since 08:15
        ..limit(1)
    };
    let found = catalogue(&TWO_CHAINS);
    let plan = plan_retention(&found, &rules, clock(), &names_only_guard());
    assert!(plan.deletions.is_empty(), "{:?}", plan.deletions);
    assert_eq!(
        keep_reason(&plan, TWO_CHAINS[0]),
        KeepReason::BaseOfKeptDelta
    );
    assert_eq!(
        keep_reason(&plan, TWO_CHAINS[1]),
        KeepReason::PrecedesKeptDelta
    );
    assert_eq!(
        keep_reason(&plan, TWO_CHAINS[2]),
        KeepReason::WithinRetention
    );
    let later = time("2026-11-16T10:36:00Z");
    assert_eq!(
        plan_retention(
            &found,
            &rules,
            RetentionClock::new(later, later),
            &names_only_guard()
        )
        .deletions
        .len(),
        3
    );
}

#[test]
fn delta_before_every_full_is_deleted_for_lack_of_a_base() {
    let objects = [
        "D1-5@2026-11-16T07:00:00Z",
        "D6-9@2026-11-16T07:10:00Z",
        "F10@2026-11-16T08:00:00Z",
        "F30@2026-11-16T09:00:00Z",
    ];
    let plan = plan_retention(
        &catalogue(&objects),
        &limit(2),
        clock(),
        &names_only_guard(),
    );
    let gone: Vec<&str> = plan
        .deletions
        .iter()
        .map(|d| d.object.key.as_str())
        .collect();
    assert_eq!(gone, keys(&[objects[1], objects[0]]));
    assert_eq!(deletion_reason(&plan, objects[0]), DeletionReason::NoBase);
}

#[test]
fn nothing_is_deleted_without_a_full() {
    let objects = ["D1-5@2020-01-01T00:00:00Z", "D6-9@2020-01-01T00:10:00Z"];
    assert!(deleted_keys(&objects, &limit(1), &names_only_guard()).is_empty());
}

#[test]
fn deltas_after_a_gap_are_kept_with_the_newest_full() {
    let objects = [
        "F10@2026-11-16T07:00:00Z",
        "D11-30@2026-11-16T07:10:00Z",
        "F40@2026-11-16T08:30:00Z",
        "D45-70@2026-11-16T09:00:00Z",
    ];
    let gone = deleted_keys(&objects, &limit(1), &names_only_guard());
    assert_eq!(gone, keys(&[objects[1], objects[0]]));
}

#[test]
fn verified_chain_and_newer_objects_are_kept() {
    let objects = [
        "F10@2026-11-16T06:00:00Z",
        "F20@2026-11-16T07:00:00Z",
        "D21-30@2026-11-16T07:10:00Z",
        "F30@2026-11-16T08:00:00Z",
        "F40@2026-11-16T09:00:00Z",
    ];
    let proof = ChainProof::VerifiedBase {
        key: key(objects[1]),
    };
    let guard = DeletionGuard {
        proof,
        ..own_guard()
    };
    assert_eq!(
        deleted_keys(&objects, &limit(1), &guard),
        keys(&objects[..1])
    );
    let unknown = DeletionGuard {
        proof: ChainProof::VerifiedBase {
            key: "p/v2/gone".to_owned(),
        },
        ..own_guard()
    };
    assert!(deleted_keys(&objects, &limit(1), &unknown).is_empty());
    assert!(deleted_keys(&objects, &limit(1), &own_guard()).is_empty());
}

#[test]
fn pins_match_by_key_or_name_and_pinned_delta_keeps_its_base() {
    let objects = &TWO_CHAINS;
    let name = key(objects[1]).rsplit_once('/').unwrap().1.to_owned();
    let guard = DeletionGuard {
        pinned: [name].into(),
        ..names_only_guard()
    };
    let found = catalogue(objects);
    let plan = plan_retention(&found, &limit(1), clock(), &guard);
    assert_eq!(keep_reason(&plan, objects[0]), KeepReason::BaseOfKeptDelta);
    assert_eq!(keep_reason(&plan, objects[1]), KeepReason::Pinned);
    assert_eq!(
        deletion_reason(&plan, objects[2]),
        DeletionReason::PastRetention
    );
    let guard = DeletionGuard {
        pinned: [key(objects[0])].into(),
        ..names_only_guard()
    };
    assert_eq!(
        deleted_keys(objects, &limit(1), &guard),
        keys(&[objects[2], objects[1]])
    );
}

#[test]
fn object_lock_keeps_the_object_and_its_chain_until_it_expires() {
    let lock = |object: &str, until: &str| DeletionGuard {
        locked: [(key(object), time(until))].into(),
        ..names_only_guard()
    };
    let [base, first, last, ..] = TWO_CHAINS;
    let held = "2026-11-16T10:30:01Z";
    assert!(deleted_keys(&TWO_CHAINS, &limit(1), &lock(last, held)).is_empty());
    let gone = deleted_keys(&TWO_CHAINS, &limit(1), &lock(first, held));
    assert_eq!(gone, keys(&[last]));
    let gone = deleted_keys(&TWO_CHAINS, &limit(1), &lock(base, held));
    assert_eq!(gone, keys(&[last, first]));
    for object in [base, first, last] {
        assert_eq!(
            deleted_keys(&TWO_CHAINS, &limit(1), &lock(object, NOW)).len(),
            3
        );
    }
}

#[test]
fn damaged_full_does_not_displace_an_intact_one() {
    let objects = [
        "F10@2026-11-16T08:10:00Z",
        "F20@2026-11-16T08:50:00Z",
        "F30@2026-11-16T09:00:00Z",
    ];
    let guard = DeletionGuard {
        damaged: [key(objects[1])].into(),
        ..names_only_guard()
    };
    let plan = plan_retention(&catalogue(&objects), &exponential(), clock(), &guard);
    assert_eq!(
        keep_reason(&plan, objects[0]),
        KeepReason::LatestInBucket(TimeBucket::Hour { ago: 2 })
    );
    assert_eq!(deletion_reason(&plan, objects[1]), DeletionReason::Damaged);
    let alone = DeletionGuard {
        damaged: [key(objects[0]), key(objects[1])].into(),
        ..names_only_guard()
    };
    assert_eq!(
        deleted_keys(&objects, &exponential(), &alone),
        keys(&objects[..1])
    );
}

/// A full of 30 bytes or none at all, and parts of it of 10 bytes, written at these times.
fn catalogue_with_parts(whole: Option<u64>, parts: &[&str]) -> Catalogue {
    let full = key("F10@2026-11-16T08:00:00Z");
    let part = |(index, modified): (usize, &&str)| {
        listed_object(format!("{full}/{:010}", index + 1), 10, time(modified))
    };
    let parts = parts.iter().enumerate().map(part);
    let whole = whole.map(|size| listed_object(full.clone(), size, time("2026-11-16T08:00:00Z")));
    Catalogue::from_listing("p", whole.into_iter().chain(parts).collect())
}

fn chunk_decisions(
    catalogue: &Catalogue,
    guard: &DeletionGuard,
) -> Vec<Result<DeletionReason, KeepReason>> {
    let plan = plan_retention(catalogue, &limit(1), clock(), guard);
    assert!(!plan.deletes_snapshots());
    let gone = plan.deletions.iter().map(|d| Ok(d.reason));
    let chunks = plan.kept.iter().filter(|kept| kept.key.contains(".gz/"));
    gone.chain(chunks.map(|kept| Err(kept.reason))).collect()
}

#[test]
fn parts_are_deleted_when_upload_is_complete_or_idle_for_a_day() {
    let fresh = "2026-11-16T10:29:00Z";
    let old = "2026-11-15T10:29:59Z";
    let guard = names_only_guard();
    let complete = catalogue_with_parts(Some(30), &[fresh, old, fresh]);
    assert_eq!(
        chunk_decisions(&complete, &guard),
        [Ok(DeletionReason::UploadComplete); 3]
    );
    let under_way = catalogue_with_parts(None, &[old, fresh]);
    assert_eq!(
        chunk_decisions(&under_way, &guard),
        [Err(KeepReason::UploadInProgress); 2]
    );
    let abandoned = catalogue_with_parts(None, &[old, old]);
    assert_eq!(
        chunk_decisions(&abandoned, &guard),
        [Ok(DeletionReason::UploadAbandoned); 2]
    );
    // Parts are deleted without a restorable chain, too.
    assert_eq!(
        chunk_decisions(&abandoned, &own_guard()),
        [Ok(DeletionReason::UploadAbandoned); 2]
    );
}

#[test]
fn parts_that_hold_the_data_are_kept() {
    let old = "2026-01-01T00:00:00Z";
    let swift = DeletionGuard {
        parts: UploadParts::Data,
        ..names_only_guard()
    };
    let parts = catalogue_with_parts(Some(30), &[old, old]);
    assert_eq!(
        chunk_decisions(&parts, &swift),
        [Err(KeepReason::PartIsData); 2]
    );
    // A manifest is smaller than the parts it points at.
    let manifest = catalogue_with_parts(Some(0), &[old, old]);
    assert_eq!(
        chunk_decisions(&manifest, &names_only_guard()),
        [Err(KeepReason::PartIsData); 2]
    );
}

#[test]
fn pinned_and_locked_parts_are_kept() {
    let old = "2026-01-01T00:00:00Z";
    let parts = catalogue_with_parts(None, &[old, old, old]);
    let guard = DeletionGuard {
        pinned: [parts.chunks[0].object.key.clone()].into(),
        locked: [(
            parts.chunks[1].object.key.clone(),
            time("2027-01-01T00:00:00Z"),
        )]
        .into(),
        ..names_only_guard()
    };
    let fates = chunk_decisions(&parts, &guard);
    assert_eq!(
        fates,
        [
            Ok(DeletionReason::UploadAbandoned),
            Err(KeepReason::Pinned),
            Err(KeepReason::LockedUntil(time("2027-01-01T00:00:00Z")))
        ]
    );
}

/// A full snapshot or delta of [`key`] that the store received at another time.
fn received(object: &str, modified: &str) -> ListedObject {
    listed_object(key(object), 10, time(modified))
}

#[test]
fn node_clock_five_weeks_ahead_deletes_nothing_early() {
    let minutes_old = ["F10", "F20", "F30", "F40", "F50"];
    let objects = minutes_old.iter().enumerate().map(|(minute, range)| {
        let at = format!("2026-11-16T10:2{minute}:00Z");
        received(&format!("{range}@{at}"), &at)
    });
    let found = Catalogue::from_listing("p", objects.collect());
    let ahead = time("2026-12-21T10:30:00Z");
    let clock = RetentionClock::from_listing(ahead, &found);
    let plan = plan_retention(&found, &exponential(), clock, &names_only_guard());
    assert_eq!(plan.deletions, []);
    // By the node's clock alone, all but the newest would be deleted.
    let trusting = RetentionClock::new(ahead, ahead);
    let plan = plan_retention(&found, &exponential(), trusting, &names_only_guard());
    assert_eq!(plan.deletions.len(), 4);
}

#[test]
fn name_with_a_time_in_the_future_is_kept() {
    let objects = ["F10@2026-12-21T10:00:00Z", "F20@2026-11-16T10:20:00Z"];
    let found = catalogue(&objects);
    for rules in [limit(1), exponential()] {
        let plan = plan_retention(&found, &rules, clock(), &names_only_guard());
        assert_eq!(keep_reason(&plan, objects[0]), KeepReason::FutureTime);
    }
}

#[test]
fn copied_backup_is_not_expired_before_the_store_clock_agrees() {
    let copied_at = "2026-11-16T10:00:00Z";
    let old = ["F10@2026-08-01T00:00:00Z", "D11-20@2026-08-01T01:00:00Z"];
    let newest = "F30@2026-11-16T10:20:00Z";
    let listed = old.iter().map(|object| received(object, copied_at));
    let listed = listed.chain([received(newest, "2026-11-16T10:20:00Z")]);
    let found = Catalogue::from_listing("p", listed.collect());
    let rules = RetentionRules {
        delta_retention: SignedDuration::from_hours(1),
        ..exponential()
    };
    let plan = plan_retention(&found, &rules, clock(), &names_only_guard());
    assert_eq!(keep_reason(&plan, old[0]), KeepReason::NotExpiredInStore);
    assert_eq!(keep_reason(&plan, old[1]), KeepReason::WithinRetention);
    let weeks_later = time("2026-12-28T00:00:00Z");
    let clock = RetentionClock::new(weeks_later, weeks_later);
    let plan = plan_retention(&found, &rules, clock, &names_only_guard());
    assert_eq!(plan.deletions.len(), 2);
}

#[test]
fn only_objects_of_the_own_history_are_deleted() {
    let objects = [
        "F10@2026-11-16T05:00:00Z",
        "D11-20@2026-11-16T05:10:00Z",
        "F30@2026-11-16T06:00:00Z",
        "D31-40@2026-11-16T06:10:00Z",
        "F50@2026-11-16T07:00:00Z",
    ];
    let found = catalogue(&objects);
    let guard = DeletionGuard {
        owned: OwnedHistory::Since(found.fulls[1].name.clone()),
        ..names_only_guard()
    };
    let plan = plan_retention(&found, &limit(1), clock(), &guard);
    for foreign in &objects[..2] {
        assert_eq!(keep_reason(&plan, foreign), KeepReason::UnverifiedHistory);
    }
    assert_eq!(
        deleted_keys(&objects, &limit(1), &guard),
        keys(&[objects[3], objects[2]])
    );
    let nothing = DeletionGuard {
        owned: OwnedHistory::Nothing,
        ..names_only_guard()
    };
    assert!(deleted_keys(&objects, &limit(1), &nothing).is_empty());
    let parts = catalogue_with_parts(None, &["2026-01-01T00:00:00Z"]);
    assert_eq!(
        chunk_decisions(&parts, &nothing),
        [Err(KeepReason::UnverifiedHistory)]
    );
}

use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::catalogue::Listed;

/// A Monday morning.
const NOW: &str = "2026-11-16T10:30:00Z";

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn listed(key: String, size: u64, modified: Timestamp) -> Listed {
    Listed {
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
    let entry = |object: &&str| listed(key(object), 10, Timestamp::UNIX_EPOCH);
    Catalogue::from_listing("p", objects.iter().map(entry).collect())
}

fn exponential() -> Rules {
    Rules {
        policy: Policy::Exponential,
        delta_retention: SignedDuration::ZERO,
    }
}

fn limit(most: usize) -> Rules {
    Rules {
        policy: Policy::LimitBased { most },
        ..exponential()
    }
}

fn by_names() -> Guard {
    Guard {
        proof: Proof::Names,
        ..Guard::default()
    }
}

fn deleted(objects: &[&str], rules: &Rules, guard: &Guard) -> Vec<String> {
    let plan = plan(&catalogue(objects), rules, time(NOW), guard);
    assert_eq!(plan.deletions.len() + plan.kept.len(), objects.len());
    plan.deletions.into_iter().map(|d| d.object.key).collect()
}

fn keys(objects: &[&str]) -> Vec<String> {
    objects.iter().map(|object| key(object)).collect()
}

fn why_kept(plan: &Plan, object: &str) -> Keep {
    let found = plan.kept.iter().find(|kept| kept.key == key(object));
    found.unwrap_or_else(|| panic!("{object} goes")).reason
}

fn why_deleted(plan: &Plan, object: &str) -> Reason {
    let found = plan.deletions.iter().find(|d| d.object.key == key(object));
    found.unwrap_or_else(|| panic!("{object} stays")).reason
}

#[test]
fn moments_fall_into_the_hours_days_and_weeks_of_utc() {
    let table = [
        ("2026-11-16T10:59:59Z", Bucket::ThisHour), // a clock that is ahead
        ("2026-11-17T09:00:00Z", Bucket::ThisHour),
        ("2026-11-16T10:30:00Z", Bucket::ThisHour),
        ("2026-11-16T10:00:00Z", Bucket::ThisHour),
        ("2026-11-16T09:59:59Z", Bucket::Hour { back: 1 }),
        ("2026-11-16T09:00:00Z", Bucket::Hour { back: 1 }),
        ("2026-11-16T08:59:59Z", Bucket::Hour { back: 2 }),
        ("2026-11-16T00:00:00Z", Bucket::Hour { back: 10 }),
        ("2026-11-15T23:59:59Z", Bucket::Day { back: 1 }),
        ("2026-11-15T00:00:00Z", Bucket::Day { back: 1 }),
        ("2026-11-14T23:59:59Z", Bucket::Day { back: 2 }),
        ("2026-11-09T00:00:00Z", Bucket::Day { back: 7 }),
        ("2026-11-08T23:59:59Z", Bucket::Week { back: 1 }),
        ("2026-11-02T00:00:00Z", Bucket::Week { back: 1 }),
        ("2026-11-01T23:59:59Z", Bucket::Week { back: 2 }),
        ("2026-10-26T00:00:00Z", Bucket::Week { back: 2 }),
        ("2026-10-25T23:59:59Z", Bucket::Week { back: 3 }),
        ("2026-10-18T23:59:59Z", Bucket::Week { back: 4 }),
        ("2026-10-12T00:00:00Z", Bucket::Week { back: 4 }),
        ("2026-10-11T23:59:59Z", Bucket::Earlier),
        ("1970-01-01T00:00:00Z", Bucket::Earlier),
    ];
    for (moment, bucket) in table {
        let found = Bucket::of(time(moment).as_second(), time(NOW));
        assert_eq!(found, bucket, "{moment}");
    }
    assert_eq!(Bucket::of(i64::MIN, time(NOW)), Bucket::Earlier);
    assert_eq!(Bucket::of(i64::MAX, time(NOW)), Bucket::ThisHour);
}

#[test]
fn the_last_of_each_hour_day_and_week_stays_and_all_of_this_hour() {
    let table = [
        ("F10@2026-10-11T23:00:00Z", Err(Reason::Expired)),
        (
            "F20@2026-10-12T01:00:00Z",
            Err(Reason::Thinned(Bucket::Week { back: 4 })),
        ),
        ("F30@2026-10-18T22:00:00Z", Ok(Bucket::Week { back: 4 })),
        ("F40@2026-11-01T22:00:00Z", Ok(Bucket::Week { back: 2 })),
        (
            "F50@2026-11-08T01:00:00Z",
            Err(Reason::Thinned(Bucket::Week { back: 1 })),
        ),
        ("F60@2026-11-08T02:00:00Z", Ok(Bucket::Week { back: 1 })),
        (
            "F70@2026-11-09T02:00:00Z",
            Err(Reason::Thinned(Bucket::Day { back: 7 })),
        ),
        ("F80@2026-11-09T23:00:00Z", Ok(Bucket::Day { back: 7 })),
        (
            "F90@2026-11-15T00:00:00Z",
            Err(Reason::Thinned(Bucket::Day { back: 1 })),
        ),
        ("F100@2026-11-15T23:00:00Z", Ok(Bucket::Day { back: 1 })),
        ("F110@2026-11-16T00:10:00Z", Ok(Bucket::Hour { back: 10 })),
        (
            "F120@2026-11-16T09:10:00Z",
            Err(Reason::Thinned(Bucket::Hour { back: 1 })),
        ),
        ("F130@2026-11-16T09:50:00Z", Ok(Bucket::Hour { back: 1 })),
        ("F140@2026-11-16T10:00:00Z", Ok(Bucket::ThisHour)),
        ("F150@2026-11-16T10:10:00Z", Ok(Bucket::ThisHour)),
    ];
    let mut objects: Vec<&str> = table.iter().map(|(object, _)| *object).collect();
    let newest = "F160@2026-11-16T10:20:00Z";
    objects.push(newest);
    let plan = plan(&catalogue(&objects), &exponential(), time(NOW), &by_names());
    for (object, verdict) in table {
        match verdict {
            Ok(bucket) => assert_eq!(why_kept(&plan, object), Keep::LatestOf(bucket), "{object}"),
            Err(reason) => assert_eq!(why_deleted(&plan, object), reason, "{object}"),
        }
    }
    assert_eq!(why_kept(&plan, newest), Keep::NewestChain);
}

#[test]
fn the_newest_full_stays_however_old_it_is() {
    let objects = ["F10@2020-01-01T00:00:00Z", "F20@2020-01-02T00:00:00Z"];
    let gone = deleted(&objects, &exponential(), &by_names());
    assert_eq!(gone, keys(&objects[..1]));
    assert!(deleted(&objects[1..], &exponential(), &by_names()).is_empty());
}

#[test]
fn a_limit_keeps_the_newest_and_at_least_one() {
    let objects = [
        "F10@2026-11-16T01:00:00Z",
        "F20@2026-11-16T02:00:00Z",
        "F30@2026-11-16T03:00:00Z",
        "F40@2026-11-16T04:00:00Z",
    ];
    assert_eq!(
        deleted(&objects, &limit(3), &by_names()),
        keys(&objects[..1])
    );
    assert_eq!(
        deleted(&objects, &limit(1), &by_names()),
        keys(&objects[..3])
    );
    assert_eq!(
        deleted(&objects, &limit(0), &by_names()),
        keys(&objects[..3])
    );
    assert!(deleted(&objects, &limit(9), &by_names()).is_empty());
}

const TWO_STREAMS: [&str; 6] = [
    "F10@2026-11-16T08:00:00Z",
    "D11-20@2026-11-16T08:10:00Z",
    "D21-30@2026-11-16T08:20:00Z",
    "F30@2026-11-16T09:00:00Z",
    "D31-40@2026-11-16T09:10:00Z",
    "D41-50@2026-11-16T09:20:00Z",
];

#[test]
fn deltas_of_every_chain_but_the_newest_go_newest_first_and_before_their_base() {
    let gone = deleted(&TWO_STREAMS, &limit(1), &by_names());
    assert_eq!(
        gone,
        keys(&[TWO_STREAMS[2], TWO_STREAMS[1], TWO_STREAMS[0]])
    );
    let deltas_only = deleted(&TWO_STREAMS, &exponential(), &by_names());
    assert_eq!(deltas_only, keys(&[TWO_STREAMS[2], TWO_STREAMS[1]]));
}

#[test]
fn wanted_deltas_keep_their_base_and_the_deltas_that_lead_to_them() {
    let rules = Rules {
        delta_retention: SignedDuration::from_mins(135), // since 08:15
        ..limit(1)
    };
    let found = catalogue(&TWO_STREAMS);
    let plan = plan(&found, &rules, time(NOW), &by_names());
    assert!(plan.deletions.is_empty(), "{:?}", plan.deletions);
    assert_eq!(why_kept(&plan, TWO_STREAMS[0]), Keep::BaseOfWanted);
    assert_eq!(why_kept(&plan, TWO_STREAMS[1]), Keep::LeadsToWanted);
    assert_eq!(why_kept(&plan, TWO_STREAMS[2]), Keep::WithinRetention);
    let later = time("2026-11-16T10:36:00Z");
    assert_eq!(
        super::plan(&found, &rules, later, &by_names())
            .deletions
            .len(),
        3
    );
}

#[test]
fn a_delta_before_every_full_is_a_delta_without_base() {
    let objects = [
        "D1-5@2026-11-16T07:00:00Z",
        "D6-9@2026-11-16T07:10:00Z",
        "F10@2026-11-16T08:00:00Z",
        "F30@2026-11-16T09:00:00Z",
    ];
    let plan = plan(&catalogue(&objects), &limit(2), time(NOW), &by_names());
    let gone: Vec<&str> = plan
        .deletions
        .iter()
        .map(|d| d.object.key.as_str())
        .collect();
    assert_eq!(gone, keys(&[objects[1], objects[0]]));
    assert_eq!(why_deleted(&plan, objects[0]), Reason::WithoutBase);
}

#[test]
fn without_any_full_nothing_goes() {
    let objects = ["D1-5@2020-01-01T00:00:00Z", "D6-9@2020-01-01T00:10:00Z"];
    assert!(deleted(&objects, &limit(1), &by_names()).is_empty());
}

#[test]
fn what_lies_behind_a_hole_stays_with_the_newest_full() {
    let objects = [
        "F10@2026-11-16T07:00:00Z",
        "D11-30@2026-11-16T07:10:00Z",
        "F40@2026-11-16T08:30:00Z",
        "D45-70@2026-11-16T09:00:00Z",
    ];
    let gone = deleted(&objects, &limit(1), &by_names());
    assert_eq!(gone, keys(&[objects[1], objects[0]]));
}

#[test]
fn what_is_newer_than_the_proven_chain_stays_with_it() {
    let objects = [
        "F10@2026-11-16T06:00:00Z",
        "F20@2026-11-16T07:00:00Z",
        "D21-30@2026-11-16T07:10:00Z",
        "F30@2026-11-16T08:00:00Z",
        "F40@2026-11-16T09:00:00Z",
    ];
    let proof = Proof::Base {
        key: key(objects[1]),
    };
    let guard = Guard {
        proof,
        ..Guard::default()
    };
    assert_eq!(deleted(&objects, &limit(1), &guard), keys(&objects[..1]));
    let unknown = Guard {
        proof: Proof::Base {
            key: "p/v2/gone".to_owned(),
        },
        ..Guard::default()
    };
    assert!(deleted(&objects, &limit(1), &unknown).is_empty());
    assert!(deleted(&objects, &limit(1), &Guard::default()).is_empty());
}

#[test]
fn pins_hold_by_key_and_by_name_and_pinned_deltas_hold_their_way() {
    let objects = &TWO_STREAMS;
    let name = key(objects[1]).rsplit_once('/').unwrap().1.to_owned();
    let guard = Guard {
        pinned: [name].into(),
        ..by_names()
    };
    let found = catalogue(objects);
    let plan = plan(&found, &limit(1), time(NOW), &guard);
    assert_eq!(why_kept(&plan, objects[0]), Keep::BaseOfWanted);
    assert_eq!(why_kept(&plan, objects[1]), Keep::Pinned);
    assert_eq!(why_deleted(&plan, objects[2]), Reason::PastRetention);
    let guard = Guard {
        pinned: [key(objects[0])].into(),
        ..by_names()
    };
    assert_eq!(
        deleted(objects, &limit(1), &guard),
        keys(&[objects[2], objects[1]])
    );
}

#[test]
fn a_lock_holds_until_it_ends_and_holds_what_leads_to_the_object() {
    let lock = |object: &str, until: &str| Guard {
        locked: [(key(object), time(until))].into(),
        ..by_names()
    };
    let [base, first, last, ..] = TWO_STREAMS;
    let held = "2026-11-16T10:30:01Z";
    assert!(deleted(&TWO_STREAMS, &limit(1), &lock(last, held)).is_empty());
    let gone = deleted(&TWO_STREAMS, &limit(1), &lock(first, held));
    assert_eq!(gone, keys(&[last]));
    let gone = deleted(&TWO_STREAMS, &limit(1), &lock(base, held));
    assert_eq!(gone, keys(&[last, first]));
    for object in [base, first, last] {
        assert_eq!(
            deleted(&TWO_STREAMS, &limit(1), &lock(object, NOW)).len(),
            3
        );
    }
}

#[test]
fn a_damaged_full_stands_for_no_sound_one() {
    let objects = [
        "F10@2026-11-16T08:10:00Z",
        "F20@2026-11-16T08:50:00Z",
        "F30@2026-11-16T09:00:00Z",
    ];
    let guard = Guard {
        damaged: [key(objects[1])].into(),
        ..by_names()
    };
    let plan = plan(&catalogue(&objects), &exponential(), time(NOW), &guard);
    assert_eq!(
        why_kept(&plan, objects[0]),
        Keep::LatestOf(Bucket::Hour { back: 2 })
    );
    assert_eq!(why_deleted(&plan, objects[1]), Reason::Damaged);
    let alone = Guard {
        damaged: [key(objects[0]), key(objects[1])].into(),
        ..by_names()
    };
    assert_eq!(
        deleted(&objects, &exponential(), &alone),
        keys(&objects[..1])
    );
}

/// A full of 30 bytes or none at all, and parts of it of 10 bytes, written at these times.
fn uploads(whole: Option<u64>, parts: &[&str]) -> Catalogue {
    let full = key("F10@2026-11-16T08:00:00Z");
    let part = |(index, modified): (usize, &&str)| {
        listed(format!("{full}/{:010}", index + 1), 10, time(modified))
    };
    let parts = parts.iter().enumerate().map(part);
    let whole = whole.map(|size| listed(full.clone(), size, time("2026-11-16T08:00:00Z")));
    Catalogue::from_listing("p", whole.into_iter().chain(parts).collect())
}

fn chunk_fates(catalogue: &Catalogue, guard: &Guard) -> Vec<Result<Reason, Keep>> {
    let plan = plan(catalogue, &limit(1), time(NOW), guard);
    assert!(!plan.deletes_snapshots());
    let gone = plan.deletions.iter().map(|d| Ok(d.reason));
    let chunks = plan.kept.iter().filter(|kept| kept.key.contains(".gz/"));
    gone.chain(chunks.map(|kept| Err(kept.reason))).collect()
}

#[test]
fn parts_go_when_their_object_is_complete_or_nobody_has_written_for_a_day() {
    let fresh = "2026-11-16T10:29:00Z";
    let old = "2026-11-15T10:29:59Z";
    let guard = by_names();
    let complete = uploads(Some(30), &[fresh, old, fresh]);
    assert_eq!(
        chunk_fates(&complete, &guard),
        [Ok(Reason::PartOfComplete); 3]
    );
    let under_way = uploads(None, &[old, fresh]);
    assert_eq!(chunk_fates(&under_way, &guard), [Err(Keep::UnderWay); 2]);
    let abandoned = uploads(None, &[old, old]);
    assert_eq!(chunk_fates(&abandoned, &guard), [Ok(Reason::Abandoned); 2]);
    // Parts go without a chain to stand on, too.
    assert_eq!(
        chunk_fates(&abandoned, &Guard::default()),
        [Ok(Reason::Abandoned); 2]
    );
}

#[test]
fn parts_that_are_the_data_stay() {
    let old = "2026-01-01T00:00:00Z";
    let swift = Guard {
        parts: Parts::Data,
        ..by_names()
    };
    let parts = uploads(Some(30), &[old, old]);
    assert_eq!(chunk_fates(&parts, &swift), [Err(Keep::IsData); 2]);
    // A manifest is smaller than what it points at.
    let manifest = uploads(Some(0), &[old, old]);
    assert_eq!(chunk_fates(&manifest, &by_names()), [Err(Keep::IsData); 2]);
}

#[test]
fn pinned_and_locked_parts_stay() {
    let old = "2026-01-01T00:00:00Z";
    let parts = uploads(None, &[old, old, old]);
    let guard = Guard {
        pinned: [parts.chunks[0].object.key.clone()].into(),
        locked: [(
            parts.chunks[1].object.key.clone(),
            time("2027-01-01T00:00:00Z"),
        )]
        .into(),
        ..by_names()
    };
    let fates = chunk_fates(&parts, &guard);
    assert_eq!(
        fates,
        [
            Ok(Reason::Abandoned),
            Err(Keep::Pinned),
            Err(Keep::LockedUntil(time("2027-01-01T00:00:00Z")))
        ]
    );
}

use mainstay_archive::catalogue::Listed;

use super::*;

const NOON: &str = "2026-11-16T12:00:00Z";

fn catalogue(names: &[&str]) -> Catalogue {
    let listed = names.iter().map(|name| Listed {
        key: format!("p/v2/{name}"),
        size: 1,
        modified: Timestamp::UNIX_EPOCH,
    });
    Catalogue::from_listing("p", listed.collect())
}

fn decide(names: &[&str], etcd: i64) -> Begin {
    let now: Timestamp = NOON.parse().unwrap();
    let schedule = "0 */1 * * *".parse().unwrap();
    let terms = Terms {
        schedule: &schedule,
        delta_period: Duration::from_secs(20),
        now,
    };
    begin(&catalogue(names), Revision(etcd), &terms)
}

/// Seconds after noon on that day.
fn at(seconds: i64) -> i64 {
    NOON.parse::<Timestamp>().unwrap().as_second() + seconds
}

#[test]
fn an_empty_store_needs_a_full_snapshot() {
    assert_eq!(decide(&[], 1), Begin::FullFirst(Because::NoFull));
}

#[test]
fn deltas_alone_need_a_full_snapshot() {
    let begin = decide(&[&format!("Incr-00000002-00000009-{}", at(0))], 9);
    assert_eq!(begin, Begin::FullFirst(Because::NoFull));
}

#[test]
fn a_chain_is_continued_after_its_end() {
    let full = format!("Full-00000000-00000005-{}", at(0));
    let delta = format!("Incr-00000006-00000009-{}", at(1));
    let expected = Begin::Continue {
        after: Revision(9),
        deltas_end: None,
        full: None,
    };
    assert_eq!(decide(&[&full, &delta], 9), expected);
    assert_eq!(decide(&[&full, &delta], 500), expected);
}

#[test]
fn a_missed_schedule_is_made_up_for_while_deltas_go_on() {
    let full = format!("Full-00000000-00000005-{}", at(-1));
    let begin = decide(&[&full], 9);
    let expected = Begin::Continue {
        after: Revision(5),
        deltas_end: None,
        full: Some(Because::Missed),
    };
    assert_eq!(begin, expected);
}

#[test]
fn a_final_snapshot_is_followed_by_an_ordinary_one() {
    let full = format!("Full-00000000-00000005-{}.final", at(5));
    let begin = decide(&[&full], 9);
    let expected = Begin::Continue {
        after: Revision(5),
        deltas_end: None,
        full: Some(Because::Final),
    };
    assert_eq!(begin, expected);
}

#[test]
fn deltas_go_on_where_they_ended_although_a_full_snapshot_is_ahead_of_them() {
    let full = format!("Full-00000000-00000005-{}", at(0));
    let delta = format!("Incr-00000006-00000009-{}", at(1));
    let ahead = format!("Full-00000000-00000020-{}", at(2));
    let begin = decide(&[&full, &delta, &ahead], 30);
    let expected = Begin::Continue {
        after: Revision(20),
        deltas_end: Some(Revision(9)),
        full: None,
    };
    assert_eq!(begin, expected);
}

/// Where deltas go on that leave no hole before the newest full snapshot.
fn goes_back_to(names: &[&str]) -> Option<Revision> {
    match decide(names, 30) {
        Begin::Continue {
            after: Revision(20),
            deltas_end,
            full: None,
        } => deltas_end,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_revisions_between_two_full_snapshots_minutes_apart_are_made_up_for() {
    let fulls = [5, 20].map(|last| format!("Full-00000000-{last:08}-{}", at(last)));
    assert_eq!(goes_back_to(&[&fulls[0], &fulls[1]]), Some(Revision(5)));
}

#[test]
fn deltas_retention_has_removed_are_not_stored_again() {
    let older = format!("Full-00000000-00000005-{}", at(-3_600));
    let newest = format!("Full-00000000-00000020-{}", at(0));
    assert_eq!(goes_back_to(&[&older, &newest]), None);
    // One that is left proves that none behind it was ever there.
    let delta = format!("Incr-00000006-00000009-{}", at(-3_590));
    assert_eq!(goes_back_to(&[&older, &delta, &newest]), Some(Revision(9)));
}

#[test]
fn deltas_do_not_begin_before_one_that_lies_on_the_way() {
    let older = format!("Full-00000000-00000005-{}", at(0));
    let astray = format!("Incr-00000010-00000015-{}", at(1));
    let newest = format!("Full-00000000-00000020-{}", at(2));
    assert_eq!(goes_back_to(&[&older, &astray, &newest]), None);
}

#[test]
fn a_hole_in_the_store_is_answered_with_a_full_snapshot() {
    let full = format!("Full-00000000-00000005-{}", at(0));
    let delta = format!("Incr-00000008-00000009-{}", at(1));
    assert_eq!(
        decide(&[&full, &delta], 9),
        Begin::FullFirst(Because::Broken)
    );
}

#[test]
fn a_store_from_another_history_is_not_written_into() {
    let full = format!("Full-00000000-00000500-{}", at(0));
    let expected = Begin::StoreAhead {
        store: Revision(500),
        etcd: Revision(9),
    };
    assert_eq!(decide(&[&full], 9), expected);
}

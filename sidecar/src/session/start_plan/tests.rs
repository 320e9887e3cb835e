use mainstay_archive::catalogue::ListedObject;

use super::*;

const NOON: &str = "2026-11-16T12:00:00Z";

fn catalogue(names: &[&str]) -> Catalogue {
    let listed = names.iter().map(|name| ListedObject {
        key: format!("p/v2/{name}"),
        size: 1,
        modified: Timestamp::UNIX_EPOCH,
    });
    Catalogue::from_listing("p", listed.collect())
}

fn plan_for(names: &[&str], etcd: i64) -> StartPlan {
    let now: Timestamp = NOON.parse().unwrap();
    let schedule = "0 */1 * * *".parse().unwrap();
    let start_inputs = StartInputs {
        schedule: &schedule,
        delta_period: Duration::from_secs(20),
        now,
    };
    plan_start(&catalogue(names), Revision(etcd), &start_inputs)
}

/// Unix time, in seconds after noon on that day.
fn seconds_after_noon(seconds: i64) -> i64 {
    NOON.parse::<Timestamp>().unwrap().as_second() + seconds
}

#[test]
fn empty_store_requires_a_full_snapshot() {
    assert_eq!(
        plan_for(&[], 1),
        StartPlan::FullFirst(FullSnapshotReason::NoFull)
    );
}

#[test]
fn deltas_without_a_full_snapshot_require_one() {
    let begin = plan_for(
        &[&format!("Incr-00000002-00000009-{}", seconds_after_noon(0))],
        9,
    );
    assert_eq!(begin, StartPlan::FullFirst(FullSnapshotReason::NoFull));
}

#[test]
fn chain_is_continued_after_its_last_revision() {
    let full = format!("Full-00000000-00000005-{}", seconds_after_noon(0));
    let delta = format!("Incr-00000006-00000009-{}", seconds_after_noon(1));
    let expected = StartPlan::Continue {
        after: Revision(9),
        backfill_after: None,
        full: None,
    };
    assert_eq!(plan_for(&[&full, &delta], 9), expected);
    assert_eq!(plan_for(&[&full, &delta], 500), expected);
}

#[test]
fn missed_full_snapshot_is_taken_while_deltas_continue() {
    let full = format!("Full-00000000-00000005-{}", seconds_after_noon(-1));
    let begin = plan_for(&[&full], 9);
    let expected = StartPlan::Continue {
        after: Revision(5),
        backfill_after: None,
        full: Some(FullSnapshotReason::MissedSchedule),
    };
    assert_eq!(begin, expected);
}

#[test]
fn final_snapshot_is_followed_by_a_regular_one() {
    let full = format!("Full-00000000-00000005-{}.final", seconds_after_noon(5));
    let begin = plan_for(&[&full], 9);
    let expected = StartPlan::Continue {
        after: Revision(5),
        backfill_after: None,
        full: Some(FullSnapshotReason::AfterFinal),
    };
    assert_eq!(begin, expected);
}

#[test]
fn deltas_are_backfilled_up_to_a_newer_full_snapshot() {
    let full = format!("Full-00000000-00000005-{}", seconds_after_noon(0));
    let delta = format!("Incr-00000006-00000009-{}", seconds_after_noon(1));
    let ahead = format!("Full-00000000-00000020-{}", seconds_after_noon(2));
    let begin = plan_for(&[&full, &delta, &ahead], 30);
    let expected = StartPlan::Continue {
        after: Revision(20),
        backfill_after: Some(Revision(9)),
        full: None,
    };
    assert_eq!(begin, expected);
}

/// The revision after which deltas continue, to close the gap before the newest full snapshot.
fn backfill_start(names: &[&str]) -> Option<Revision> {
    match plan_for(names, 30) {
        StartPlan::Continue {
            after: Revision(20),
            backfill_after,
            full: None,
        } => backfill_after,
        other => panic!("{other:?}"),
    }
}

#[test]
fn revisions_between_two_recent_full_snapshots_are_backfilled() {
    let fulls = [5, 20].map(|last| format!("Full-00000000-{last:08}-{}", seconds_after_noon(last)));
    assert_eq!(backfill_start(&[&fulls[0], &fulls[1]]), Some(Revision(5)));
}

#[test]
fn deltas_deleted_by_retention_are_not_stored_again() {
    let older = format!("Full-00000000-00000005-{}", seconds_after_noon(-3_600));
    let newest = format!("Full-00000000-00000020-{}", seconds_after_noon(0));
    assert_eq!(backfill_start(&[&older, &newest]), None);
    // Retention deletes by age: a remaining delta proves that no later one was ever stored.
    let delta = format!("Incr-00000006-00000009-{}", seconds_after_noon(-3_590));
    assert_eq!(
        backfill_start(&[&older, &delta, &newest]),
        Some(Revision(9))
    );
}

#[test]
fn unconnected_delta_prevents_the_backfill() {
    let older = format!("Full-00000000-00000005-{}", seconds_after_noon(0));
    let unconnected = format!("Incr-00000010-00000015-{}", seconds_after_noon(1));
    let newest = format!("Full-00000000-00000020-{}", seconds_after_noon(2));
    assert_eq!(backfill_start(&[&older, &unconnected, &newest]), None);
}

#[test]
fn gap_in_the_store_requires_a_full_snapshot() {
    let full = format!("Full-00000000-00000005-{}", seconds_after_noon(0));
    let delta = format!("Incr-00000008-00000009-{}", seconds_after_noon(1));
    assert_eq!(
        plan_for(&[&full, &delta], 9),
        StartPlan::FullFirst(FullSnapshotReason::MissingRevisions)
    );
}

#[test]
fn store_ahead_of_etcd_is_refused() {
    let full = format!("Full-00000000-00000500-{}", seconds_after_noon(0));
    let expected = StartPlan::StoreAhead {
        store: Revision(500),
        etcd: Revision(9),
    };
    assert_eq!(plan_for(&[&full], 9), expected);
}

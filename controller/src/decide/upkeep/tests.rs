use mainstay_verdict::Done;
use proptest::prelude::*;

use super::*;
use crate::decide::Known;
use crate::decide::tests::fixture::*;
use crate::observe::{JobFailure, SeenPile, SeenPin, SnapshotLease};

/// A cluster with a backup that is so many changes behind its last full snapshot.
fn behind(events: i64) -> Scene {
    let mut scene = Scene::whole(3).backed_up(60);
    scene.seen.delta_snapshot = Some(SnapshotLease {
        created: Some(ago(86_400)),
        renewed: Some(ago(5)),
        revision: Some(100 + events),
    });
    scene.wanted.upkeep.since = Some(ago(86_400));
    scene
}

fn what(scene: &Scene) -> Vec<Chore> {
    chores(&scene.world())
}

fn told(status: ConditionStatus, reason: &str, at: Timestamp) -> Told {
    Told {
        status,
        reason: reason.to_owned(),
        message: String::new(),
        at,
    }
}

fn job(state: JobState) -> SeenJob {
    SeenJob {
        uid: "job".to_owned(),
        created: Some(ago(100)),
        state,
        ..SeenJob::default()
    }
}

fn folded() -> JobState {
    JobState::Succeeded {
        at: ago(10),
        done: Done {
            revision: Some(150),
            ..Done::default()
        },
    }
}

fn failed(class: FailureClass) -> JobState {
    JobState::Failed {
        at: ago(10),
        failure: JobFailure {
            class,
            verdict: None,
            overtaken_by: None,
            words: "so it is".to_owned(),
        },
    }
}

#[test]
fn enough_changes_or_enough_bytes_or_the_time_start_a_compaction() {
    let compact = vec![Chore::Compact { from: 100 }];
    assert_eq!(what(&behind(999_999)), []);
    assert_eq!(what(&behind(1_000_000)), compact);
    let mut scene = behind(10);
    scene.wanted.upkeep.events = Some(10);
    assert_eq!(what(&scene), compact);
    let mut scene = behind(10);
    scene.seen.upkeep.pile = Some(pile(100, 1 << 30));
    assert_eq!(what(&scene), compact);
    scene.wanted.upkeep.bytes = Some(2 << 30);
    assert_eq!(what(&scene), []);
    scene.wanted.upkeep.compaction = Some("0 11 * * *".to_owned());
    assert_eq!(what(&scene), compact);
    scene.known.upkeep.compaction = Some(told(ConditionStatus::True, "None", ago(1_800)));
    assert_eq!(what(&scene), [], "it was done since eleven");
}

/// So many bytes behind the full snapshot of this revision, as a sidecar tells.
fn pile(since: i64, bytes: u64) -> SeenPile {
    SeenPile { since, bytes }
}

#[test]
fn what_was_folded_is_not_folded_again_although_the_sidecar_has_not_heard_of_it() {
    let mut scene = behind(10);
    scene.seen.upkeep.pile = Some(pile(99, 1 << 40));
    assert_eq!(what(&scene), [], "these bytes are behind an earlier one");
    scene.seen.upkeep.pile = Some(pile(100, 1 << 10));
    assert_eq!(what(&scene), []);
    scene.seen.upkeep.pile = Some(pile(100, 1 << 40));
    assert_eq!(what(&scene), [Chore::Compact { from: 100 }]);
}

#[test]
fn nothing_is_folded_where_nothing_has_piled_up_or_nobody_knows() {
    let mut scene = behind(0);
    scene.wanted.upkeep.compaction = Some("* * * * *".to_owned());
    assert_eq!(what(&scene), []);
    scene.seen.delta_snapshot = None;
    assert_eq!(what(&scene), []);
    let mut scene = behind(2_000_000);
    scene.policy.upkeep.compacts = false;
    assert_eq!(what(&scene), []);
    scene.policy.upkeep.compacts = true;
    scene.wanted.backup = None;
    assert_eq!(what(&scene), []);
}

#[test]
fn too_much_for_a_job_is_a_full_snapshot_by_the_sidecar() {
    assert_eq!(what(&behind(3_000_000)), [Chore::FullSnapshot]);
    let why = String::new();
    for state in [FallBack::Running, FallBack::Taken, FallBack::Failed { why }] {
        let mut scene = behind(3_000_000);
        scene.seen.upkeep.fall_back = state;
        assert_eq!(what(&scene), [], "its outcome is to be published first");
    }
    let mut asleep = behind(3_000_000);
    asleep.seen.pods.clear();
    assert_eq!(what(&asleep), [], "there is nobody to take it");
}

#[test]
fn after_a_failure_there_is_a_pause_and_then_another_way_if_it_was_too_slow() {
    for reason in ["DeadlineExceeded", FULL_FAILED] {
        let mut scene = behind(1_000_000);
        scene.known.upkeep.compaction = Some(told(ConditionStatus::False, reason, ago(60)));
        assert_eq!(what(&scene), [], "{reason}");
        scene.known.upkeep.compaction = Some(told(ConditionStatus::False, reason, ago(601)));
        assert_eq!(what(&scene), [Chore::FullSnapshot], "{reason}");
    }
    let mut scene = behind(1_000_000);
    scene.known.upkeep.compaction = Some(told(ConditionStatus::False, "ProcessFailure", ago(601)));
    assert_eq!(what(&scene), [Chore::Compact { from: 100 }]);
}

#[test]
fn a_job_is_removed_after_its_outcome_was_told_and_not_before() {
    for (state, wrote) in [(folded(), Some(150)), (failed(FailureClass::Process), None)] {
        let mut scene = behind(2_000_000);
        scene.seen.upkeep.compaction = Some(job(state));
        assert_eq!(what(&scene), []);
        let mut telling = told(ConditionStatus::True, "None", ago(5));
        telling.message = format!("so it is {}", mark(ago(10)));
        scene.known.upkeep.compaction = Some(telling);
        let uid = "job".to_owned();
        assert_eq!(what(&scene), [Chore::RetireCompaction { uid, wrote }]);
        scene.seen.upkeep.compaction.as_mut().unwrap().is_deleting = true;
        assert_eq!(what(&scene), []);
    }
}

#[test]
fn a_rehearsal_is_on_its_schedule() {
    let mut scene = behind(10);
    scene.wanted.upkeep.drill = Some("0 * * * *".to_owned());
    assert_eq!(what(&scene), [Chore::Drill { to: None }]);
    let last = |seconds| Some(told(ConditionStatus::True, "DrillSucceeded", ago(seconds)));
    scene.known.upkeep.drill = last(3_601);
    assert_eq!(
        what(&scene),
        [Chore::Drill { to: None }],
        "eleven has struck"
    );
    scene.known.upkeep.drill = last(0);
    assert_eq!(what(&scene), []);
}

/// What is rehearsed on so many days in a row.
fn days_of(schedule: &str, days: u32) -> Vec<Option<i64>> {
    let mut scene = behind(10);
    scene.wanted.upkeep.drill = Some(schedule.to_owned());
    let each = (1..=days).map(|day| {
        let mut world = scene.world();
        world.now = noon() + SignedDuration::from_hours(24 * i64::from(day));
        let known = Known {
            upkeep: KnownUpkeep {
                drill: Some(told(
                    ConditionStatus::True,
                    "DrillSucceeded",
                    world.now - SignedDuration::from_hours(24),
                )),
                drills: day - 1,
                ..KnownUpkeep::default()
            },
            ..scene.known.clone()
        };
        world.known = &known;
        match chores(&world).as_slice() {
            [Chore::Drill { to }] => *to,
            other => panic!("{other:?} on day {day}"),
        }
    });
    each.collect()
}

#[test]
fn a_daily_rehearsal_is_now_of_the_newest_state_and_now_of_an_older_one() {
    for schedule in ["0 3 * * *", "17 4 * * *", "3 0 * * *"] {
        let tried = days_of(schedule, 8);
        assert!(tried.contains(&Some(100)), "{schedule}: {tried:?}");
        assert!(tried.contains(&None), "{schedule}: {tried:?}");
    }
}

#[test]
fn a_schedule_wakes_the_controller_when_it_is_due() {
    let mut scene = behind(10);
    assert_eq!(next_change(&scene.world()), None);
    scene.wanted.upkeep.drill = Some("30 12 * * *".to_owned());
    scene.known.upkeep.drill = Some(told(ConditionStatus::True, "DrillSucceeded", ago(3_600)));
    let ahead = next_change(&scene.world()).unwrap();
    let half_past = Duration::from_mins(30);
    assert!(ahead > half_past && ahead <= half_past + Duration::from_mins(10));
    let mut world = scene.world();
    let wakes = noon() + SignedDuration::try_from(ahead).unwrap();
    world.now = wakes - SignedDuration::from_secs(2);
    assert_eq!(chores(&world), []);
    world.now = wakes;
    assert_eq!(chores(&world), [Chore::Drill { to: None }]);
}

#[test]
fn one_schedule_of_many_clusters_is_spread_over_minutes_and_stays_before_its_next_turn() {
    let starts = |schedule: &str| {
        let mut starts: Vec<u64> = (0..1_000)
            .map(|n| {
                let mut scene = behind(10);
                scene.wanted.name = format!("etcd-{n}");
                scene.wanted.upkeep.drill = Some(schedule.to_owned());
                scene.known.upkeep.drill = Some(told(ConditionStatus::True, "", noon()));
                next_change(&scene.world()).unwrap().as_secs()
            })
            .collect();
        starts.sort_unstable();
        starts
    };
    let hourly = starts("0 * * * *");
    assert!(
        hourly[0] > 3_600 && hourly[999] <= 3_600 + 600,
        "{hourly:?}"
    );
    let in_one_second = hourly.chunk_by(|a, b| a == b).map(<[u64]>::len).max();
    assert!(in_one_second.unwrap() < 20, "{hourly:?}");
    let each_minute = starts("* * * * *");
    assert!(each_minute[999] <= 60 + 30, "{each_minute:?}");
}

#[test]
fn numbers_no_sidecar_writes_do_not_overflow() {
    let mut scene = behind(0);
    scene.seen.full_snapshot.as_mut().unwrap().revision = Some(i64::MIN);
    scene.seen.delta_snapshot.as_mut().unwrap().revision = Some(i64::MAX);
    assert_eq!(piled_up(&scene.seen), Some(i64::MAX));
}

proptest! {
    #[test]
    fn there_is_never_a_second_job_and_none_while_data_is_recovered(
        events in 0_i64..5_000_000,
        bytes in prop::option::of(0_u64..(4 << 30)),
        ended in any::<bool>(),
        fails in any::<bool>(),
        recovers in any::<bool>(),
    ) {
        let mut scene = behind(events);
        scene.seen.upkeep.pile = bytes.map(|bytes| pile(100, bytes));
        scene.wanted.upkeep.drill = Some("* * * * *".to_owned());
        scene.wanted.upkeep.compaction = Some("* * * * *".to_owned());
        if recovers {
            let mut other = crate::decide::recovery::tests::scene::incident(3, 0);
            other.stage = mainstay_coordination::incident::Stage::Restored;
            scene.seen.recovery.incident = Some(other);
            prop_assert_eq!(what(&scene), []);
            return Ok(());
        }
        let state = match (ended, fails) {
            (false, _) => JobState::Running,
            (true, false) => folded(),
            (true, true) => failed(FailureClass::Evicted),
        };
        scene.seen.upkeep.compaction = Some(job(state.clone()));
        scene.seen.upkeep.drill = Some(job(state));
        let starts = what(&scene).into_iter().any(|chore| {
            matches!(chore, Chore::Compact { .. } | Chore::Drill { .. } | Chore::FullSnapshot)
        });
        prop_assert!(!starts);
    }
}

#[test]
fn what_a_job_reads_stays_pinned_for_as_long_as_it_reads() {
    let mut scene = behind(10);
    let reads = |scene: &mut Scene, renewed: Option<i64>| {
        scene.seen.upkeep.compaction = Some(job(JobState::Running));
        let pin = renewed.map(|seconds| SeenPin {
            from: 42,
            renewed: ago(seconds),
        });
        scene.seen.upkeep.pins = pin
            .map(|pin| ("compaction".to_owned(), pin))
            .into_iter()
            .collect();
        what(scene)
    };
    let keep = |from| Chore::KeepPin {
        pin: PinOf::Compaction,
        from,
    };
    assert_eq!(reads(&mut scene, Some(60)), []);
    assert_eq!(
        reads(&mut scene, Some(1201)),
        [keep(42)],
        "with the range it has, whatever was stored since"
    );
    assert_eq!(reads(&mut scene, None), [keep(100)], "it was lost");
    scene.seen.upkeep.compaction = Some(job(folded()));
    assert!(!what(&scene).contains(&keep(100)), "nobody reads any more");
}

use mainstay_verdict::CommandDetails;
use proptest::prelude::*;

use super::*;
use crate::decide::tests::fixture::*;
use crate::model::{
    DeltaBacklog, FULL_SNAPSHOT_FAILED, FailureClass, FallbackSnapshot, JobFailure, JobState,
    LastKnown, ObservedJob, ObservedPin, PinOwner, ReportedOutcome, ReportedUpkeep, SnapshotLease,
    UpkeepAction, format_job_marker,
};

/// A cluster whose backup has `events` events since its last full snapshot.
fn with_pending_events(events: i64) -> ClusterFixture {
    let mut fixture = ClusterFixture::healthy(3).with_backup(60);
    fixture.observed.delta_snapshot = Some(SnapshotLease {
        created_at: Some(ago(86_400)),
        renewed_at: Some(ago(5)),
        revision: Some(100 + events),
    });
    fixture.desired.upkeep.schedules_since = Some(ago(86_400));
    fixture
}

fn planned_actions(fixture: &ClusterFixture) -> Vec<UpkeepAction> {
    plan_actions(&fixture.world())
}

fn reported_outcome(
    status: ConditionStatus,
    reason: &str,
    reported_at: Timestamp,
) -> ReportedOutcome {
    ReportedOutcome {
        status,
        reason: reason.to_owned(),
        message: String::new(),
        reported_at,
    }
}

fn job(state: JobState) -> ObservedJob {
    ObservedJob {
        uid: "job".to_owned(),
        created_at: Some(ago(100)),
        state,
        ..ObservedJob::default()
    }
}

fn compacted() -> JobState {
    JobState::Succeeded {
        at: ago(10),
        done: CommandDetails {
            revision: Some(150),
            ..CommandDetails::default()
        },
    }
}

fn failed(class: FailureClass) -> JobState {
    JobState::Failed {
        at: ago(10),
        failure: JobFailure {
            class,
            verdict: None,
            superseded_by: None,
            message: "process failed".to_owned(),
        },
    }
}

#[test]
fn events_bytes_or_schedule_trigger_a_compaction() {
    let compact = vec![UpkeepAction::StartCompaction { from_revision: 100 }];
    assert_eq!(planned_actions(&with_pending_events(999_999)), []);
    assert_eq!(planned_actions(&with_pending_events(1_000_000)), compact);
    let mut fixture = with_pending_events(10);
    fixture.desired.upkeep.events_threshold = Some(10);
    assert_eq!(planned_actions(&fixture), compact);
    let mut fixture = with_pending_events(10);
    fixture.observed.upkeep.delta_backlog = Some(delta_backlog(100, 1 << 30));
    assert_eq!(planned_actions(&fixture), compact);
    fixture.desired.upkeep.bytes_threshold = Some(2 << 30);
    assert_eq!(planned_actions(&fixture), []);
    fixture.desired.upkeep.compaction_schedule = Some("0 11 * * *".to_owned());
    assert_eq!(planned_actions(&fixture), compact);
    fixture.last_known.upkeep.compaction =
        Some(reported_outcome(ConditionStatus::True, "None", ago(1_800)));
    assert_eq!(planned_actions(&fixture), [], "it ran after 11:00");
}

/// The backlog as a sidecar reports it.
fn delta_backlog(since_revision: i64, bytes: u64) -> DeltaBacklog {
    DeltaBacklog {
        since_revision,
        bytes,
    }
}

#[test]
fn compacted_deltas_are_not_compacted_again_on_a_stale_lease() {
    let mut fixture = with_pending_events(10);
    fixture.observed.upkeep.delta_backlog = Some(delta_backlog(99, 1 << 40));
    assert_eq!(
        planned_actions(&fixture),
        [],
        "these bytes precede the last full snapshot"
    );
    fixture.observed.upkeep.delta_backlog = Some(delta_backlog(100, 1 << 10));
    assert_eq!(planned_actions(&fixture), []);
    fixture.observed.upkeep.delta_backlog = Some(delta_backlog(100, 1 << 40));
    assert_eq!(
        planned_actions(&fixture),
        [UpkeepAction::StartCompaction { from_revision: 100 }]
    );
}

#[test]
fn nothing_is_compacted_without_known_deltas_or_when_disabled() {
    let mut fixture = with_pending_events(0);
    fixture.desired.upkeep.compaction_schedule = Some("* * * * *".to_owned());
    assert_eq!(planned_actions(&fixture), []);
    fixture.observed.delta_snapshot = None;
    assert_eq!(planned_actions(&fixture), []);
    let mut fixture = with_pending_events(2_000_000);
    fixture.policy.upkeep.is_compaction_enabled = false;
    assert_eq!(planned_actions(&fixture), []);
    fixture.policy.upkeep.is_compaction_enabled = true;
    fixture.desired.backup = None;
    assert_eq!(planned_actions(&fixture), []);
}

#[test]
fn backlog_too_large_for_a_job_requests_a_full_snapshot() {
    assert_eq!(
        planned_actions(&with_pending_events(3_000_000)),
        [UpkeepAction::RequestFullSnapshot]
    );
    let reason = String::new();
    for state in [
        FallbackSnapshot::Running,
        FallbackSnapshot::Taken,
        FallbackSnapshot::Failed { reason },
    ] {
        let mut fixture = with_pending_events(3_000_000);
        fixture.observed.upkeep.fallback = state;
        assert_eq!(
            planned_actions(&fixture),
            [],
            "its outcome must be published first"
        );
    }
    let mut hibernated = with_pending_events(3_000_000);
    hibernated.observed.pods.clear();
    assert_eq!(planned_actions(&hibernated), [], "no sidecar is running");
}

#[test]
fn failed_compaction_backs_off_and_a_slow_one_gets_a_full_snapshot() {
    for reason in ["DeadlineExceeded", FULL_SNAPSHOT_FAILED] {
        let mut fixture = with_pending_events(1_000_000);
        fixture.last_known.upkeep.compaction =
            Some(reported_outcome(ConditionStatus::False, reason, ago(60)));
        assert_eq!(planned_actions(&fixture), [], "{reason}");
        fixture.last_known.upkeep.compaction =
            Some(reported_outcome(ConditionStatus::False, reason, ago(601)));
        assert_eq!(
            planned_actions(&fixture),
            [UpkeepAction::RequestFullSnapshot],
            "{reason}"
        );
    }
    let mut fixture = with_pending_events(1_000_000);
    fixture.last_known.upkeep.compaction = Some(reported_outcome(
        ConditionStatus::False,
        "ProcessFailure",
        ago(601),
    ));
    assert_eq!(
        planned_actions(&fixture),
        [UpkeepAction::StartCompaction { from_revision: 100 }]
    );
}

#[test]
fn job_is_deleted_only_after_its_outcome_is_reported() {
    for (state, snapshot_revision) in [
        (compacted(), Some(150)),
        (failed(FailureClass::Process), None),
    ] {
        let mut fixture = with_pending_events(2_000_000);
        fixture.observed.upkeep.compaction = Some(job(state));
        assert_eq!(planned_actions(&fixture), []);
        let mut outcome = reported_outcome(ConditionStatus::True, "None", ago(5));
        outcome.message = format!("compaction finished {}", format_job_marker(ago(10)));
        fixture.last_known.upkeep.compaction = Some(outcome);
        let uid = "job".to_owned();
        assert_eq!(
            planned_actions(&fixture),
            [UpkeepAction::DeleteCompactionJob {
                uid,
                snapshot_revision
            }]
        );
        fixture
            .observed
            .upkeep
            .compaction
            .as_mut()
            .unwrap()
            .is_deleting = true;
        assert_eq!(planned_actions(&fixture), []);
    }
}

#[test]
fn restore_drill_runs_on_its_schedule() {
    let mut fixture = with_pending_events(10);
    fixture.desired.upkeep.drill_schedule = Some("0 * * * *".to_owned());
    assert_eq!(
        planned_actions(&fixture),
        [UpkeepAction::StartDrill { to_revision: None }]
    );
    let last = |seconds| {
        Some(reported_outcome(
            ConditionStatus::True,
            "DrillSucceeded",
            ago(seconds),
        ))
    };
    fixture.last_known.upkeep.drill = last(3_601);
    assert_eq!(
        planned_actions(&fixture),
        [UpkeepAction::StartDrill { to_revision: None }],
        "the 11:00 run is due"
    );
    fixture.last_known.upkeep.drill = last(0);
    assert_eq!(planned_actions(&fixture), []);
}

/// The target revisions of daily restore drills over `days` days.
fn run_daily_drills(schedule: &str, days: u32) -> Vec<Option<i64>> {
    let mut fixture = with_pending_events(10);
    fixture.desired.upkeep.drill_schedule = Some(schedule.to_owned());
    let each = (1..=days).map(|day| {
        let mut world = fixture.world();
        world.now = noon() + SignedDuration::from_hours(24 * i64::from(day));
        let known = LastKnown {
            upkeep: ReportedUpkeep {
                drill: Some(reported_outcome(
                    ConditionStatus::True,
                    "DrillSucceeded",
                    world.now - SignedDuration::from_hours(24),
                )),
                drill_count: day - 1,
                ..ReportedUpkeep::default()
            },
            ..fixture.last_known.clone()
        };
        world.last_known = &known;
        match plan_actions(&world).as_slice() {
            [UpkeepAction::StartDrill { to_revision }] => *to_revision,
            other => panic!("{other:?} on day {day}"),
        }
    });
    each.collect()
}

#[test]
fn daily_drills_cover_both_the_newest_and_an_older_revision() {
    for schedule in ["0 3 * * *", "17 4 * * *", "3 0 * * *"] {
        let revisions = run_daily_drills(schedule, 8);
        assert!(revisions.contains(&Some(100)), "{schedule}: {revisions:?}");
        assert!(revisions.contains(&None), "{schedule}: {revisions:?}");
    }
}

#[test]
fn schedule_requeues_the_controller_when_it_is_due() {
    let mut fixture = with_pending_events(10);
    assert_eq!(time_until_change(&fixture.world()), None);
    fixture.desired.upkeep.drill_schedule = Some("30 12 * * *".to_owned());
    fixture.last_known.upkeep.drill = Some(reported_outcome(
        ConditionStatus::True,
        "DrillSucceeded",
        ago(3_600),
    ));
    let ahead = time_until_change(&fixture.world()).unwrap();
    let half_past = Duration::from_mins(30);
    assert!(ahead > half_past && ahead <= half_past + Duration::from_mins(10));
    let mut world = fixture.world();
    let due = noon() + SignedDuration::try_from(ahead).unwrap();
    world.now = due - SignedDuration::from_secs(2);
    assert_eq!(plan_actions(&world), []);
    world.now = due;
    assert_eq!(
        plan_actions(&world),
        [UpkeepAction::StartDrill { to_revision: None }]
    );
}

#[test]
fn shared_schedule_is_spread_over_minutes_within_its_period() {
    let starts = |schedule: &str| {
        let mut starts: Vec<u64> = (0..1_000)
            .map(|n| {
                let mut fixture = with_pending_events(10);
                fixture.desired.name = format!("etcd-{n}");
                fixture.desired.upkeep.drill_schedule = Some(schedule.to_owned());
                fixture.last_known.upkeep.drill =
                    Some(reported_outcome(ConditionStatus::True, "", noon()));
                time_until_change(&fixture.world()).unwrap().as_secs()
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
fn out_of_range_revisions_do_not_overflow() {
    let mut fixture = with_pending_events(0);
    fixture.observed.full_snapshot.as_mut().unwrap().revision = Some(i64::MIN);
    fixture.observed.delta_snapshot.as_mut().unwrap().revision = Some(i64::MAX);
    assert_eq!(fixture.observed.count_events_since_full(), Some(i64::MAX));
}

proptest! {
    #[test]
    fn no_second_job_starts_and_none_starts_during_a_recovery(
        events in 0_i64..5_000_000,
        bytes in prop::option::of(0_u64..(4 << 30)),
        ended in any::<bool>(),
        fails in any::<bool>(),
        is_recovering in any::<bool>(),
    ) {
        let mut fixture = with_pending_events(events);
        fixture.observed.upkeep.delta_backlog = bytes.map(|bytes| delta_backlog(100, bytes));
        fixture.desired.upkeep.drill_schedule = Some("* * * * *".to_owned());
        fixture.desired.upkeep.compaction_schedule = Some("* * * * *".to_owned());
        if is_recovering {
            let mut other = crate::decide::recovery::tests::fixture::incident(3, 0);
            other.stage = mainstay_coordination::incident::RecoveryStage::Restored;
            fixture.observed.recovery.incident = Some(other);
            prop_assert_eq!(planned_actions(&fixture), []);
            return Ok(());
        }
        let state = match (ended, fails) {
            (false, _) => JobState::Running,
            (true, false) => compacted(),
            (true, true) => failed(FailureClass::Evicted),
        };
        fixture.observed.upkeep.compaction = Some(job(state.clone()));
        fixture.observed.upkeep.drill = Some(job(state));
        let starts = planned_actions(&fixture).into_iter().any(|action| {
            matches!(action, UpkeepAction::StartCompaction { .. } | UpkeepAction::StartDrill { .. } | UpkeepAction::RequestFullSnapshot)
        });
        prop_assert!(!starts);
    }
}

#[test]
fn revisions_stay_pinned_while_a_job_reads_them() {
    let mut fixture = with_pending_events(10);
    let pinned = |fixture: &mut ClusterFixture, renewed: Option<i64>| {
        fixture.observed.upkeep.compaction = Some(job(JobState::Running));
        let pin = renewed.map(|seconds| ObservedPin {
            from_revision: 42,
            renewed_at: ago(seconds),
        });
        fixture.observed.upkeep.pins = pin
            .map(|pin| ("compaction".to_owned(), pin))
            .into_iter()
            .collect();
        planned_actions(fixture)
    };
    let renew = |from_revision| UpkeepAction::RenewPin {
        owner: PinOwner::Compaction,
        from_revision,
    };
    assert_eq!(pinned(&mut fixture, Some(60)), []);
    assert_eq!(
        pinned(&mut fixture, Some(1201)),
        [renew(42)],
        "the pin keeps its range"
    );
    assert_eq!(
        pinned(&mut fixture, None),
        [renew(100)],
        "a lost pin is set again"
    );
    fixture.observed.upkeep.compaction = Some(job(compacted()));
    assert!(
        !planned_actions(&fixture).contains(&renew(100)),
        "the Job has finished"
    );
}

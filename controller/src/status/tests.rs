//! Tests of the computed status.

use jiff::SignedDuration;
use mainstay_coordination::incident::RecoveryStage;
use mainstay_crds::etcd::RecoveryPhase::{Restoring, ScalingUp};
use mainstay_crds::etcd::{BootstrapMember, BootstrapWithExistingCluster, MemberRole, MemberState};
use mainstay_crds::{
    Condition, ConditionStatus, ConditionType, Etcd, EtcdSpec, EtcdStatus, OperationState,
};
use mainstay_ids::ClusterId;

use super::*;
use crate::decide::recovery::test_incident;
use crate::decide::tests::fixture::{ClusterFixture, ago, noon};
use crate::model::{
    DesiredBackup, InitFinding, ObservedMembership, Ordinal, ReconcilePlan, RestoreProgress,
    SnapshotLease, Thresholds,
};

/// The first status of a cluster.
fn status_of(fixture: &ClusterFixture) -> EtcdStatus {
    status_after(fixture, None, noon(), None)
}

fn status_after(
    fixture: &ClusterFixture,
    before: Option<EtcdStatus>,
    now: Timestamp,
    failure: Option<&ReconcileFailure>,
) -> EtcdStatus {
    let mut etcd = etcd_resource(fixture);
    etcd.status = before;
    let plan = fixture.plan();
    compute(&facts(fixture, &etcd, &plan, now, failure))
}

fn etcd_resource(fixture: &ClusterFixture) -> Etcd {
    let replicas = i32::try_from(fixture.desired.replicas).unwrap();
    let mut etcd = Etcd::new(
        "main",
        EtcdSpec {
            replicas,
            ..EtcdSpec::default()
        },
    );
    etcd.metadata.namespace = Some("shoot".to_owned());
    etcd
}

fn facts<'a>(
    fixture: &'a ClusterFixture,
    etcd: &'a Etcd,
    plan: &'a ReconcilePlan,
    now: Timestamp,
    failure: Option<&'a ReconcileFailure>,
) -> Facts<'a> {
    Facts {
        etcd,
        desired: &fixture.desired,
        observed: &fixture.observed,
        plan,
        policy: &fixture.policy,
        last_known: &fixture.last_known,
        failure,
        thresholds: Thresholds::default(),
        run_id: "run",
        now,
    }
}

fn condition(status: &EtcdStatus, type_: &ConditionType) -> Condition {
    let mut conditions = status.conditions.iter().flatten();
    conditions
        .find(|one| one.type_ == *type_)
        .cloned()
        .unwrap_or_else(|| panic!("no {type_}: {status:?}"))
}

fn status_and_reason(status: &EtcdStatus, type_: &ConditionType) -> (ConditionStatus, String) {
    let Condition { status, reason, .. } = condition(status, type_);
    (status, reason)
}

fn with_lease_age(mut fixture: ClusterFixture, ordinal: u32, seconds_ago: i64) -> ClusterFixture {
    fixture
        .observed
        .leases
        .get_mut(&Ordinal(ordinal))
        .unwrap()
        .renewed_at = Some(ago(seconds_ago));
    fixture
}

fn without_member_query(mut fixture: ClusterFixture) -> ClusterFixture {
    fixture.observed.membership = ObservedMembership::NotQueried;
    fixture
}

#[test]
fn healthy_cluster_has_every_ready_condition() {
    let status = status_of(&ClusterFixture::healthy(3));
    for type_ in [
        ConditionType::Ready,
        ConditionType::AllMembersReady,
        ConditionType::AllMembersUpdated,
        ConditionType::DataVolumesReady,
    ] {
        assert_eq!(
            condition(&status, &type_).status,
            ConditionStatus::True,
            "{type_}"
        );
    }
    assert_eq!(
        condition(&status, &ConditionType::ClusterIDMismatch).status,
        ConditionStatus::False
    );
    assert_eq!(
        (status.ready, status.observed_generation),
        (Some(true), Some(1))
    );
    assert_eq!(
        status.last_operation.unwrap().state,
        OperationState::Succeeded
    );
    let members = status.members.unwrap();
    assert_eq!(members[0].role, Some(MemberRole::Leader));
    assert_eq!(
        (members[2].version.as_deref(), members[2].db_size_bytes),
        (Some("3.5.26"), Some(20_480))
    );
}

#[test]
fn unchanged_observation_gives_an_unchanged_status_later() {
    let fixture = ClusterFixture::healthy(3).with_backup(60);
    let first = status_of(&fixture);
    let again = status_after(
        &fixture,
        Some(first.clone()),
        noon() + SignedDuration::from_secs(30),
        None,
    );
    assert_eq!(first, again);
}

#[test]
fn db_size_is_updated_when_it_differs_by_a_tenth() {
    let mut fixture = ClusterFixture::healthy(1);
    let before = status_of(&fixture);
    let size = |fixture: &ClusterFixture| {
        status_after(fixture, Some(before.clone()), noon(), None)
            .members
            .unwrap()[0]
            .db_size_bytes
    };
    fixture.member_mut(0).status.as_mut().unwrap().db_bytes = 21_000;
    assert_eq!(size(&fixture), Some(20_480));
    fixture.member_mut(0).status.as_mut().unwrap().db_bytes = 30_000;
    assert_eq!(size(&fixture), Some(30_000));
    assert_eq!(
        size(&without_member_query(ClusterFixture::healthy(1))),
        Some(20_480),
        "without a query the last size is kept"
    );
}

#[test]
fn quorum_is_counted_over_the_expected_members() {
    let mut fixture = without_member_query(ClusterFixture::healthy(3));
    fixture.observed.leases.retain(|ordinal, _| ordinal.0 == 0);
    assert_eq!(
        status_and_reason(&status_of(&fixture), &ConditionType::Ready),
        (ConditionStatus::False, "QuorumLost".to_owned())
    );
    fixture.observed.leases.clear();
    assert_eq!(
        status_and_reason(&status_of(&fixture), &ConditionType::Ready).1,
        "NoMembersInStatus"
    );
}

#[test]
fn one_of_three_former_voters_is_no_quorum() {
    let mut fixture = ClusterFixture::healthy(3);
    let ObservedMembership::Known(members) = &mut fixture.observed.membership else {
        panic!("membership was queried");
    };
    members.list.truncate(2);
    let ready =
        |fixture: &ClusterFixture| status_and_reason(&status_of(fixture), &ConditionType::Ready);
    assert_eq!(
        ready(&fixture),
        (ConditionStatus::True, "Quorate".to_owned()),
        "two of three vote"
    );
    let ObservedMembership::Known(members) = &mut fixture.observed.membership else {
        panic!("membership was queried");
    };
    members.list.truncate(1);
    assert_eq!(
        ready(&fixture),
        (ConditionStatus::False, "QuorumLost".to_owned()),
        "a recovery has restored one of three"
    );
}

#[test]
fn cluster_that_scales_in_keeps_its_quorum() {
    let fixture = ClusterFixture::healthy(5).with_replicas(3);
    let ready = condition(&status_of(&fixture), &ConditionType::Ready);
    assert_eq!(ready.status, ConditionStatus::True);
    assert!(ready.message.starts_with("5 of 5"), "{}", ready.message);
}

#[test]
fn expired_lease_does_not_cause_a_cluster_id_mismatch() {
    let mismatch_after = |renewed: i64| {
        let mut fixture = without_member_query(ClusterFixture::healthy(3));
        let lease = fixture.observed.leases.get_mut(&Ordinal(2)).unwrap();
        lease.holder.as_mut().unwrap().cluster_id = Some(ClusterId(8));
        lease.renewed_at = Some(ago(renewed));
        condition(&status_of(&fixture), &ConditionType::ClusterIDMismatch).status
    };
    assert_eq!(mismatch_after(5), ConditionStatus::True);
    assert_eq!(mismatch_after(61), ConditionStatus::False);
}

#[test]
fn cluster_that_scales_out_keeps_its_quorum() {
    let fixture = ClusterFixture::healthy(1)
        .with_replicas(3)
        .with_waiting_pod(1);
    assert_eq!(
        status_and_reason(&status_of(&fixture), &ConditionType::Ready),
        (ConditionStatus::True, "Quorate".to_owned())
    );
    assert_eq!(
        status_and_reason(&status_of(&fixture), &ConditionType::AllMembersUpdated).0,
        ConditionStatus::False
    );
}

#[test]
fn expired_lease_makes_a_member_unknown_before_not_ready() {
    let state = |fixture: ClusterFixture| {
        let member = status_of(&fixture).members.unwrap()[2].clone();
        (member.status, member.reason)
    };
    let fixture = || without_member_query(ClusterFixture::healthy(3));
    assert_eq!(
        state(with_lease_age(fixture(), 2, 59)).0,
        MemberState::Ready
    );
    assert_eq!(
        state(with_lease_age(fixture(), 2, 61)),
        (MemberState::Unknown, "LeaseExpired".to_owned())
    );
    assert_eq!(
        state(with_lease_age(fixture(), 2, 361)),
        (
            MemberState::NotReady,
            "UnknownGracePeriodExceeded".to_owned()
        )
    );
    let mut down = with_lease_age(fixture(), 2, 61);
    down.pod_mut(2).has_ready_containers = false;
    assert_eq!(
        state(down),
        (MemberState::NotReady, "ContainersNotReady".to_owned())
    );
}

#[test]
fn unknown_members_make_readiness_unknown_not_false() {
    let fixture = with_lease_age(
        with_lease_age(without_member_query(ClusterFixture::healthy(3)), 1, 70),
        2,
        70,
    );
    assert_eq!(
        status_and_reason(&status_of(&fixture), &ConditionType::Ready).0,
        ConditionStatus::Unknown
    );
    assert_eq!(
        status_and_reason(&status_of(&fixture), &ConditionType::AllMembersReady).0,
        ConditionStatus::False
    );
}

#[test]
fn transition_times_change_only_with_their_condition() {
    let before = status_of(&ClusterFixture::healthy(3));
    let later = noon() + SignedDuration::from_secs(400);
    let after = status_after(
        &without_member_query(ClusterFixture::healthy(3)),
        Some(before.clone()),
        later,
        None,
    );
    let ready = |status: &EtcdStatus| condition(status, &ConditionType::Ready);
    assert_ne!(ready(&after).status, ready(&before).status);
    assert_eq!(ready(&after).last_transition_time.0, later);
    let volumes = |status: &EtcdStatus| condition(status, &ConditionType::DataVolumesReady);
    assert_eq!(volumes(&after), volumes(&before));
}

#[test]
fn members_in_different_clusters_are_reported() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture
        .observed
        .leases
        .get_mut(&Ordinal(1))
        .unwrap()
        .holder
        .as_mut()
        .unwrap()
        .cluster_id = Some(ClusterId(8));
    let mismatch = condition(&status_of(&fixture), &ConditionType::ClusterIDMismatch);
    assert_eq!(mismatch.status, ConditionStatus::True);
    assert_eq!(
        mismatch.message,
        "Members report different cluster IDs: 7, 8"
    );
}

fn backup_condition(
    full: Option<i64>,
    delta: Option<i64>,
    seconds: Option<i64>,
) -> (ConditionStatus, String) {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.desired.backup = Some(DesiredBackup {
        full_schedule: Some("0 */24 * * *".to_owned()),
        delta_period_seconds: seconds,
    });
    let lease = |age: Option<i64>| SnapshotLease {
        created_at: Some(ago(3_600)),
        renewed_at: age.map(ago),
        revision: None,
    };
    fixture.observed.full_snapshot = Some(lease(full));
    fixture.observed.delta_snapshot = Some(lease(delta));
    status_and_reason(&status_of(&fixture), &ConditionType::BackupReady)
}

#[test]
fn backups_are_ready_while_their_schedules_are_met() {
    let is = |status, reason: &str| (status, reason.to_owned());
    let (good, late, bad) = (
        is(ConditionStatus::True, "BackupSucceeded"),
        is(ConditionStatus::Unknown, "Unknown"),
        is(ConditionStatus::False, "BackupFailed"),
    );
    assert_eq!(backup_condition(Some(3_600), Some(200), Some(300)), good);
    assert_eq!(backup_condition(Some(3_600), Some(600), Some(300)), late);
    assert_eq!(
        backup_condition(Some(3_600), Some(900), Some(300)),
        bad,
        "deltas are overdue"
    );
    assert_eq!(
        backup_condition(Some(200_000), Some(100), Some(300)),
        bad,
        "the full snapshot is overdue"
    );
    assert_eq!(
        backup_condition(Some(3_600), None, None),
        good,
        "deltas are disabled"
    );
    assert_eq!(
        backup_condition(Some(100), None, Some(300)),
        good,
        "the first delta is not due yet"
    );
    assert_eq!(
        backup_condition(None, None, Some(300)),
        bad,
        "no first snapshot after an hour"
    );
}

#[test]
fn cluster_without_a_store_has_no_backup_condition() {
    let status = status_of(&ClusterFixture::healthy(3));
    assert!(
        !status
            .conditions
            .unwrap()
            .iter()
            .any(|one| one.type_ == ConditionType::BackupReady)
    );
}

#[test]
fn hibernated_cluster_keeps_its_last_conditions() {
    let before = status_of(&ClusterFixture::healthy(3));
    let mut hibernated = without_member_query(ClusterFixture::healthy(3).with_replicas(0));
    hibernated.stateful_set_mut().replicas = 0;
    hibernated.observed.pods.clear();
    let status = status_after(&hibernated, Some(before), noon(), None);
    assert_eq!(
        status_and_reason(&status, &ConditionType::Ready),
        (ConditionStatus::True, "NotChecked".to_owned())
    );
    assert_eq!(
        (status.ready, status.members),
        (Some(true), Some(Vec::new()))
    );
}

#[test]
fn conditions_of_other_controllers_stay() {
    let mut before = status_of(&ClusterFixture::healthy(3));
    let mut foreign = condition(&before, &ConditionType::Ready);
    foreign.type_ = ConditionType::LastSnapshotCompactionSucceeded;
    before.conditions.as_mut().unwrap().push(foreign.clone());
    let after = status_after(&ClusterFixture::healthy(3), Some(before), noon(), None);
    assert_eq!(
        condition(&after, &ConditionType::LastSnapshotCompactionSucceeded),
        foreign
    );
}

#[test]
fn failed_reconcile_is_reported_and_its_generation_is_not_observed() {
    let failure = ReconcileFailure {
        code: "ERR_SYNC_STATEFULSET".to_owned(),
        description: "apply StatefulSet main".to_owned(),
    };
    let status = status_after(&ClusterFixture::healthy(3), None, noon(), Some(&failure));
    assert_eq!(status.observed_generation, None);
    assert_eq!(status.last_errors.unwrap()[0].code, "ERR_SYNC_STATEFULSET");
    assert_eq!(status.last_operation.unwrap().state, OperationState::Error);
    let status = status_after(&ClusterFixture::healthy(3), None, noon(), None);
    assert_eq!(status.last_errors, None, "a resolved error is not reported");
}

#[test]
fn data_loss_is_reported_until_it_is_recovered() {
    let lost = ClusterFixture::healthy(1)
        .with_member_down(0)
        .with_finding(0, InitFinding::NeedsRestore)
        .without_quorum();
    let status = status_of(&lost);
    assert_eq!(
        status_and_reason(&status, &ConditionType::RecoveryRequired).0,
        ConditionStatus::True
    );
    let after = status_after(&ClusterFixture::healthy(1), Some(status), noon(), None);
    assert_eq!(
        status_and_reason(&after, &ConditionType::RecoveryRequired).0,
        ConditionStatus::False
    );
}

#[test]
fn joining_cluster_is_bootstrapped_when_all_members_vote() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.desired.joins_existing_cluster = true;
    let mut etcd = etcd_resource(&fixture);
    etcd.spec.etcd.bootstrap_with_existing_cluster = Some(BootstrapWithExistingCluster {
        members: vec![BootstrapMember {
            name: "old-0".to_owned(),
            peer_urls: vec!["http://old-0:2380".into()],
        }],
        client_endpoints: vec!["http://old:2379".into()],
    });
    let plan = fixture.plan();
    let status = compute(&facts(&fixture, &etcd, &plan, noon(), None));
    assert_eq!(
        status_and_reason(&status, &ConditionType::BootstrappedWithExistingCluster).0,
        ConditionStatus::True
    );
    assert_eq!(
        status.bootstrap_with_existing_cluster.unwrap().members[0].name,
        "old-0"
    );
    let mut early = fixture.clone();
    early.member_mut(2).is_learner = true;
    let plan = early.plan();
    let status = compute(&facts(&early, &etcd, &plan, noon(), None));
    assert_eq!(
        status_and_reason(&status, &ConditionType::BootstrappedWithExistingCluster).1,
        "BootstrapInProgress"
    );
}

#[test]
fn status_is_requeued_when_the_next_lease_expires() {
    let fixture = without_member_query(ClusterFixture::healthy(3));
    let etcd = etcd_resource(&fixture);
    let plan = fixture.plan();
    let requeue_seconds = |fixture: &ClusterFixture| {
        requeue_after(&facts(fixture, &etcd, &plan, noon(), None))
            .unwrap()
            .as_secs()
    };
    assert_eq!(requeue_seconds(&fixture), 56, "renewed five seconds ago");
    let expired = with_lease_age(without_member_query(ClusterFixture::healthy(3)), 1, 100);
    assert_eq!(requeue_seconds(&expired), 10, "an expired Lease is polled");
}

#[test]
fn transitions_emit_events_and_an_unchanged_status_emits_none() {
    let before = status_of(&ClusterFixture::healthy(3));
    assert_eq!(collect_events(Some(&before), &before), []);
    let down = status_after(
        &ClusterFixture::healthy(3).without_quorum(),
        Some(before.clone()),
        noon() + SignedDuration::from_secs(400),
        None,
    );
    let reported: Vec<_> = collect_events(Some(&before), &down)
        .into_iter()
        .map(|event| (event.kind, event.reason))
        .collect();
    assert!(
        reported.contains(&(StatusEventKind::Warning, "QuorumLost".to_owned())),
        "{reported:?}"
    );
    let first: Vec<_> = collect_events(None, &before)
        .into_iter()
        .map(|event| event.reason)
        .collect();
    assert!(first.contains(&"Reconciled".to_owned()), "{first:?}");
}

#[test]
fn init_refusal_is_reported_verbatim() {
    let mut fixture = ClusterFixture::healthy(3)
        .with_member_down(2)
        .with_finding(2, InitFinding::Refused);
    fixture
        .observed
        .pods
        .get_mut(&Ordinal(2))
        .unwrap()
        .init_message = Some("the volume belongs to namespace \"other\"".to_owned());
    let before = status_of(&ClusterFixture::healthy(3));
    let status = status_after(&fixture, Some(before.clone()), noon(), None);
    let operation = status.last_operation.clone().unwrap();
    let message = "Waiting for member main-2 to become healthy; main-2: the volume belongs to namespace \"other\"";
    assert_eq!(operation.description, message);
    assert_eq!(operation.state, OperationState::Error);
    let errors = status.last_errors.clone().unwrap();
    assert_eq!(errors[0].code, "ERR_MEMBER_DATA");
    let events = collect_events(Some(&before), &status);
    assert!(
        events
            .iter()
            .any(|event| event.kind == StatusEventKind::Warning && event.note == message),
        "{events:?}"
    );
    fixture.observed.pods.get_mut(&Ordinal(2)).unwrap().finding = Some(InitFinding::WaitingToJoin);
    let status = status_of(&fixture);
    assert_eq!(status.last_errors, None, "a new member waits to join");
}

#[test]
fn restore_progress_is_reported_while_it_runs() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.observed.pods.clear();
    fixture.stateful_set_mut().replicas = 0;
    fixture.observed.recovery.incident = Some(test_incident());
    let recovery =
        |fixture: &ClusterFixture| status_of(fixture).mainstay.unwrap().recovery.unwrap();
    let unknown = recovery(&fixture);
    assert_eq!((unknown.phase, unknown.percent), (Restoring, None));
    assert!(!unknown.message.contains('%'), "{}", unknown.message);

    fixture.observed.recovery.progress = Some(RestoreProgress {
        percent: 43,
        total_bytes: 3_000_000_000,
    });
    let known = recovery(&fixture);
    assert_eq!((known.phase, known.percent), (Restoring, Some(43)));
    let message = "; restoring: 43 %, 1.2 GiB of 2.7 GiB";
    assert!(known.message.ends_with(message), "{}", known.message);

    fixture.observed.recovery.incident.as_mut().unwrap().stage = RecoveryStage::Restored;
    let over = recovery(&fixture);
    assert_eq!((over.phase, over.percent), (ScalingUp, None));
}

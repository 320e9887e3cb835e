//! Claims about what is told.

use jiff::SignedDuration;
use mainstay_coordination::incident::Stage;
use mainstay_crds::etcd::RecoveryPhase::{Restoring, ScalingUp};
use mainstay_crds::etcd::{BootstrapMember, BootstrapWithExistingCluster, MemberRole, MemberState};
use mainstay_crds::{
    Condition, ConditionStatus, ConditionType, Etcd, EtcdSpec, EtcdStatus, OperationState,
};
use mainstay_ids::ClusterId;

use super::*;
use crate::decide::recovery::an_incident;
use crate::decide::tests::fixture::{Scene, ago, noon};
use crate::observe::{Finding, Membership, Ordinal, Progress, SnapshotLease};
use crate::validate::WantedBackup;

/// What is told of a scene by somebody who told nothing before.
fn told(scene: &Scene) -> EtcdStatus {
    told_after(scene, None, noon(), None)
}

fn told_after(
    scene: &Scene,
    before: Option<EtcdStatus>,
    now: Timestamp,
    failure: Option<&Failure>,
) -> EtcdStatus {
    let mut etcd = resource(scene);
    etcd.status = before;
    let plan = scene.plan();
    compute(&facts(scene, &etcd, &plan, now, failure))
}

fn resource(scene: &Scene) -> Etcd {
    let replicas = i32::try_from(scene.wanted.replicas).unwrap();
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
    scene: &'a Scene,
    etcd: &'a Etcd,
    plan: &'a Plan,
    now: Timestamp,
    failure: Option<&'a Failure>,
) -> Facts<'a> {
    Facts {
        etcd,
        wanted: &scene.wanted,
        seen: &scene.seen,
        plan,
        policy: &scene.policy,
        known: &scene.known,
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

fn says(status: &EtcdStatus, type_: &ConditionType) -> (ConditionStatus, String) {
    let Condition { status, reason, .. } = condition(status, type_);
    (status, reason)
}

fn renewed(mut scene: Scene, ordinal: u32, seconds_ago: i64) -> Scene {
    scene
        .seen
        .leases
        .get_mut(&Ordinal(ordinal))
        .unwrap()
        .renewed = Some(ago(seconds_ago));
    scene
}

fn unasked(mut scene: Scene) -> Scene {
    scene.seen.membership = Membership::Unasked;
    scene
}

#[test]
fn a_whole_cluster_is_ready_in_every_way() {
    let status = told(&Scene::whole(3));
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
fn the_same_world_is_told_the_same_way_however_late_it_is() {
    let scene = Scene::whole(3).backed_up(60);
    let first = told(&scene);
    let again = told_after(
        &scene,
        Some(first.clone()),
        noon() + SignedDuration::from_secs(30),
        None,
    );
    assert_eq!(first, again);
}

#[test]
fn a_size_is_told_again_when_it_is_off_by_a_tenth() {
    let mut scene = Scene::whole(1);
    let before = told(&scene);
    let size = |scene: &Scene| {
        told_after(scene, Some(before.clone()), noon(), None)
            .members
            .unwrap()[0]
            .db_size_bytes
    };
    scene.member_mut(0).answer.as_mut().unwrap().db_bytes = 21_000;
    assert_eq!(size(&scene), Some(20_480));
    scene.member_mut(0).answer.as_mut().unwrap().db_bytes = 30_000;
    assert_eq!(size(&scene), Some(30_000));
    assert_eq!(
        size(&unasked(Scene::whole(1))),
        Some(20_480),
        "not asked is not unknown"
    );
}

#[test]
fn quorum_is_counted_over_the_members_there_should_be() {
    let mut scene = unasked(Scene::whole(3));
    scene.seen.leases.retain(|ordinal, _| ordinal.0 == 0);
    assert_eq!(
        says(&told(&scene), &ConditionType::Ready),
        (ConditionStatus::False, "QuorumLost".to_owned())
    );
    scene.seen.leases.clear();
    assert_eq!(
        says(&told(&scene), &ConditionType::Ready).1,
        "NoMembersInStatus"
    );
}

#[test]
fn one_voter_of_three_that_were_members_is_no_quorum_whatever_it_can_do_alone() {
    let mut scene = Scene::whole(3);
    let Membership::Known(members) = &mut scene.seen.membership else {
        panic!("it was asked");
    };
    members.list.truncate(2);
    let ready = |scene: &Scene| says(&told(scene), &ConditionType::Ready);
    assert_eq!(
        ready(&scene),
        (ConditionStatus::True, "Quorate".to_owned()),
        "two of three"
    );
    let Membership::Known(members) = &mut scene.seen.membership else {
        panic!("it was asked");
    };
    members.list.truncate(1);
    assert_eq!(
        ready(&scene),
        (ConditionStatus::False, "QuorumLost".to_owned()),
        "a recovery has brought one of three back"
    );
}

#[test]
fn a_cluster_that_shrinks_keeps_its_quorum() {
    let scene = Scene::whole(5).replicas(3);
    let ready = condition(&told(&scene), &ConditionType::Ready);
    assert_eq!(ready.status, ConditionStatus::True);
    assert!(ready.message.starts_with("5 of 5"), "{}", ready.message);
}

#[test]
fn what_a_silent_member_once_said_is_no_second_cluster() {
    let of_another = |renewed: i64| {
        let mut scene = unasked(Scene::whole(3));
        let lease = scene.seen.leases.get_mut(&Ordinal(2)).unwrap();
        lease.held.as_mut().unwrap().cluster = Some(ClusterId(8));
        lease.renewed = Some(ago(renewed));
        condition(&told(&scene), &ConditionType::ClusterIDMismatch).status
    };
    assert_eq!(of_another(5), ConditionStatus::True);
    assert_eq!(of_another(61), ConditionStatus::False);
}

#[test]
fn a_cluster_that_grows_keeps_its_quorum() {
    let scene = Scene::whole(1).replicas(3).waiting_pod(1);
    assert_eq!(
        says(&told(&scene), &ConditionType::Ready),
        (ConditionStatus::True, "Quorate".to_owned())
    );
    assert_eq!(
        says(&told(&scene), &ConditionType::AllMembersUpdated).0,
        ConditionStatus::False
    );
}

#[test]
fn silence_is_unknown_before_it_is_not_ready() {
    let state = |scene: Scene| {
        let member = told(&scene).members.unwrap()[2].clone();
        (member.status, member.reason)
    };
    let scene = || unasked(Scene::whole(3));
    assert_eq!(state(renewed(scene(), 2, 59)).0, MemberState::Ready);
    assert_eq!(
        state(renewed(scene(), 2, 61)),
        (MemberState::Unknown, "LeaseExpired".to_owned())
    );
    assert_eq!(
        state(renewed(scene(), 2, 361)),
        (
            MemberState::NotReady,
            "UnknownGracePeriodExceeded".to_owned()
        )
    );
    let mut down = renewed(scene(), 2, 61);
    down.pod_mut(2).has_ready_containers = false;
    assert_eq!(
        state(down),
        (MemberState::NotReady, "ContainersNotReady".to_owned())
    );
}

#[test]
fn members_nobody_can_say_anything_of_make_readiness_unknown_not_false() {
    let scene = renewed(renewed(unasked(Scene::whole(3)), 1, 70), 2, 70);
    assert_eq!(
        says(&told(&scene), &ConditionType::Ready).0,
        ConditionStatus::Unknown
    );
    assert_eq!(
        says(&told(&scene), &ConditionType::AllMembersReady).0,
        ConditionStatus::False
    );
}

#[test]
fn times_move_only_with_what_they_are_about() {
    let before = told(&Scene::whole(3));
    let later = noon() + SignedDuration::from_secs(400);
    let after = told_after(&unasked(Scene::whole(3)), Some(before.clone()), later, None);
    let ready = |status: &EtcdStatus| condition(status, &ConditionType::Ready);
    assert_ne!(ready(&after).status, ready(&before).status);
    assert_eq!(ready(&after).last_transition_time.0, later);
    let volumes = |status: &EtcdStatus| condition(status, &ConditionType::DataVolumesReady);
    assert_eq!(volumes(&after), volumes(&before));
}

#[test]
fn members_in_different_clusters_are_told() {
    let mut scene = Scene::whole(3);
    scene
        .seen
        .leases
        .get_mut(&Ordinal(1))
        .unwrap()
        .held
        .as_mut()
        .unwrap()
        .cluster = Some(ClusterId(8));
    let mismatch = condition(&told(&scene), &ConditionType::ClusterIDMismatch);
    assert_eq!(mismatch.status, ConditionStatus::True);
    assert_eq!(mismatch.message, "members are in different clusters: 7, 8");
}

fn backup(
    full: Option<i64>,
    delta: Option<i64>,
    seconds: Option<i64>,
) -> (ConditionStatus, String) {
    let mut scene = Scene::whole(3);
    scene.wanted.backup = Some(WantedBackup {
        schedule: Some("0 */24 * * *".to_owned()),
        delta_seconds: seconds,
    });
    let lease = |age: Option<i64>| SnapshotLease {
        created: Some(ago(3_600)),
        renewed: age.map(ago),
        revision: None,
    };
    scene.seen.full_snapshot = Some(lease(full));
    scene.seen.delta_snapshot = Some(lease(delta));
    says(&told(&scene), &ConditionType::BackupReady)
}

#[test]
fn backups_are_ready_as_long_as_their_schedules_are_kept() {
    let is = |status, reason: &str| (status, reason.to_owned());
    let (good, late, bad) = (
        is(ConditionStatus::True, "BackupSucceeded"),
        is(ConditionStatus::Unknown, "Unknown"),
        is(ConditionStatus::False, "BackupFailed"),
    );
    assert_eq!(backup(Some(3_600), Some(200), Some(300)), good);
    assert_eq!(backup(Some(3_600), Some(600), Some(300)), late);
    assert_eq!(
        backup(Some(3_600), Some(900), Some(300)),
        bad,
        "deltas are overdue"
    );
    assert_eq!(
        backup(Some(200_000), Some(100), Some(300)),
        bad,
        "a full one is overdue"
    );
    assert_eq!(
        backup(Some(3_600), None, None),
        good,
        "deltas are switched off"
    );
    assert_eq!(
        backup(Some(100), None, Some(300)),
        good,
        "the first delta is not due yet"
    );
    assert_eq!(
        backup(None, None, Some(300)),
        bad,
        "an hour without a first one"
    );
}

#[test]
fn a_cluster_without_a_store_says_nothing_of_backups() {
    let status = told(&Scene::whole(3));
    assert!(
        !status
            .conditions
            .unwrap()
            .iter()
            .any(|one| one.type_ == ConditionType::BackupReady)
    );
}

#[test]
fn a_cluster_that_sleeps_keeps_what_was_true() {
    let before = told(&Scene::whole(3));
    let mut asleep = unasked(Scene::whole(3).replicas(0));
    asleep.set_mut().replicas = 0;
    asleep.seen.pods.clear();
    let status = told_after(&asleep, Some(before), noon(), None);
    assert_eq!(
        says(&status, &ConditionType::Ready),
        (ConditionStatus::True, "NotChecked".to_owned())
    );
    assert_eq!(
        (status.ready, status.members),
        (Some(true), Some(Vec::new()))
    );
}

#[test]
fn conditions_of_others_stay() {
    let mut before = told(&Scene::whole(3));
    let mut foreign = condition(&before, &ConditionType::Ready);
    foreign.type_ = ConditionType::LastSnapshotCompactionSucceeded;
    before.conditions.as_mut().unwrap().push(foreign.clone());
    let after = told_after(&Scene::whole(3), Some(before), noon(), None);
    assert_eq!(
        condition(&after, &ConditionType::LastSnapshotCompactionSucceeded),
        foreign
    );
}

#[test]
fn a_pass_that_failed_is_told_and_its_generation_is_not_done() {
    let failure = Failure {
        code: "ERR_SYNC_STATEFULSET".to_owned(),
        description: "apply StatefulSet main".to_owned(),
    };
    let status = told_after(&Scene::whole(3), None, noon(), Some(&failure));
    assert_eq!(status.observed_generation, None);
    assert_eq!(status.last_errors.unwrap()[0].code, "ERR_SYNC_STATEFULSET");
    assert_eq!(status.last_operation.unwrap().state, OperationState::Error);
    let status = told_after(&Scene::whole(3), None, noon(), None);
    assert_eq!(status.last_errors, None, "what is over is not told");
}

#[test]
fn lost_data_is_told_and_so_is_its_end() {
    let lost = Scene::whole(1)
        .down(0)
        .finding(0, Finding::NeedsRestore)
        .silent();
    let status = told(&lost);
    assert_eq!(
        says(&status, &ConditionType::RecoveryRequired).0,
        ConditionStatus::True
    );
    let after = told_after(&Scene::whole(1), Some(status), noon(), None);
    assert_eq!(
        says(&after, &ConditionType::RecoveryRequired).0,
        ConditionStatus::False
    );
}

#[test]
fn who_joins_another_cluster_is_done_when_all_vote() {
    let mut scene = Scene::whole(3);
    scene.wanted.joins_existing = true;
    let mut etcd = resource(&scene);
    etcd.spec.etcd.bootstrap_with_existing_cluster = Some(BootstrapWithExistingCluster {
        members: vec![BootstrapMember {
            name: "old-0".to_owned(),
            peer_urls: vec!["http://old-0:2380".into()],
        }],
        client_endpoints: vec!["http://old:2379".into()],
    });
    let plan = scene.plan();
    let status = compute(&facts(&scene, &etcd, &plan, noon(), None));
    assert_eq!(
        says(&status, &ConditionType::BootstrappedWithExistingCluster).0,
        ConditionStatus::True
    );
    assert_eq!(
        status.bootstrap_with_existing_cluster.unwrap().members[0].name,
        "old-0"
    );
    let mut early = scene.clone();
    early.member_mut(2).is_learner = true;
    let plan = early.plan();
    let status = compute(&facts(&early, &etcd, &plan, noon(), None));
    assert_eq!(
        says(&status, &ConditionType::BootstrappedWithExistingCluster).1,
        "BootstrapInProgress"
    );
}

#[test]
fn somebody_looks_again_when_the_next_lease_runs_out() {
    let scene = unasked(Scene::whole(3));
    let etcd = resource(&scene);
    let plan = scene.plan();
    let wake = |scene: &Scene| {
        wake_after(&facts(scene, &etcd, &plan, noon(), None))
            .unwrap()
            .as_secs()
    };
    assert_eq!(wake(&scene), 56, "renewed five seconds ago");
    let unwell = renewed(unasked(Scene::whole(3)), 1, 100);
    assert_eq!(wake(&unwell), 10, "renewals are not announced");
}

#[test]
fn transitions_are_events_and_standing_still_is_none() {
    let before = told(&Scene::whole(3));
    assert_eq!(notices(Some(&before), &before), []);
    let down = told_after(
        &Scene::whole(3).silent(),
        Some(before.clone()),
        noon() + SignedDuration::from_secs(400),
        None,
    );
    let told: Vec<_> = notices(Some(&before), &down)
        .into_iter()
        .map(|notice| (notice.kind, notice.reason))
        .collect();
    assert!(
        told.contains(&(NoticeKind::Warning, "QuorumLost".to_owned())),
        "{told:?}"
    );
    let first: Vec<_> = notices(None, &before)
        .into_iter()
        .map(|notice| notice.reason)
        .collect();
    assert!(first.contains(&"Reconciled".to_owned()), "{first:?}");
}

#[test]
fn what_a_check_has_against_starting_is_told_in_its_words() {
    let mut scene = Scene::whole(3).down(2).finding(2, Finding::Refused);
    scene.seen.pods.get_mut(&Ordinal(2)).unwrap().words =
        Some("the volume belongs to namespace \"other\"".to_owned());
    let before = told(&Scene::whole(3));
    let status = told_after(&scene, Some(before.clone()), noon(), None);
    let operation = status.last_operation.clone().unwrap();
    let words =
        "waits for main-2, which is not well; main-2: the volume belongs to namespace \"other\"";
    assert_eq!(operation.description, words);
    assert_eq!(operation.state, OperationState::Error);
    let errors = status.last_errors.clone().unwrap();
    assert_eq!(errors[0].code, "ERR_MEMBER_DATA");
    let notices = notices(Some(&before), &status);
    assert!(
        notices
            .iter()
            .any(|notice| notice.kind == NoticeKind::Warning && notice.note == words),
        "{notices:?}"
    );
    scene.seen.pods.get_mut(&Ordinal(2)).unwrap().finding = Some(Finding::Waits);
    let status = told(&scene);
    assert_eq!(status.last_errors, None, "that is the way of a new member");
}

#[test]
fn how_far_a_restore_is_is_told_while_it_goes_on() {
    let mut scene = Scene::whole(3);
    scene.seen.pods.clear();
    scene.set_mut().replicas = 0;
    scene.seen.recovery.incident = Some(an_incident());
    let recovery = |scene: &Scene| told(scene).mainstay.unwrap().recovery.unwrap();
    let unknown = recovery(&scene);
    assert_eq!((unknown.phase, unknown.percent), (Restoring, None));
    assert!(!unknown.message.contains('%'), "{}", unknown.message);

    scene.seen.recovery.progress = Some(Progress {
        percent: 43,
        total_bytes: 3_000_000_000,
    });
    let known = recovery(&scene);
    assert_eq!((known.phase, known.percent), (Restoring, Some(43)));
    let words = "; restoring: 43 %, 1.2 GiB of 2.7 GiB";
    assert!(known.message.ends_with(words), "{}", known.message);

    scene.seen.recovery.incident.as_mut().unwrap().stage = Stage::Restored;
    let over = recovery(&scene);
    assert_eq!((over.phase, over.percent), (ScalingUp, None));
}

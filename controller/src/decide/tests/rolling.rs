//! Replacing pods, and what comes before a new etcd.

use super::fixture::*;
use crate::decide::{Blocker, DisruptiveChange, SpecRefusal, PodDeletionReason, ReconcileStep, UpgradeRule};
use crate::observe::{ObservedMembership, Ordinal, PeerTlsStage, SnapshotRequest};
use crate::validate::DriftPolicy;

fn delete_pod(ordinal: u32, because: PodDeletionReason) -> ReconcileStep {
    let uid = format!("pod-{ordinal}-{OLD_REVISION}");
    ReconcileStep::DeletePod {
        ordinal: Ordinal(ordinal),
        uid,
        reason: because,
    }
}

#[test]
fn a_whole_cluster_is_left_alone() {
    for replicas in [1, 2, 3, 5] {
        let plan = ClusterFixture::healthy(replicas).plan();
        assert!(plan.is_settled(), "{plan:?}");
    }
}

#[test]
fn followers_go_first_the_highest_ordinal_before_the_others() {
    assert_eq!(
        ClusterFixture::healthy(3).with_new_template().step(),
        Some(delete_pod(2, PodDeletionReason::Outdated))
    );
    assert_eq!(
        ClusterFixture::healthy(3).with_new_template().with_leader(2).step(),
        Some(delete_pod(1, PodDeletionReason::Outdated))
    );
}

#[test]
fn the_leader_hands_over_before_it_goes() {
    let scene = ClusterFixture::healthy(3).with_new_template().with_updated_pod(1).with_updated_pod(2);
    assert_eq!(
        scene.step(),
        Some(ReconcileStep::MoveLeader {
            from: member_id(0),
            to: member_id(1)
        })
    );
    assert_eq!(scene.with_leader(1).step(), Some(delete_pod(0, PodDeletionReason::Outdated)));
}

#[test]
fn a_single_member_is_restarted_where_it_leads() {
    assert_eq!(
        ClusterFixture::healthy(1).with_new_template().step(),
        Some(delete_pod(0, PodDeletionReason::Outdated))
    );
}

#[test]
fn who_takes_no_part_goes_first() {
    let scene = ClusterFixture::healthy(3).with_new_template().with_member_down(1);
    assert_eq!(scene.step(), Some(delete_pod(1, PodDeletionReason::OutdatedAndUnhealthy)));
}

#[test]
fn a_pod_that_is_not_ready_but_answers_is_not_taken_for_dead() {
    let mut scene = ClusterFixture::healthy(3).with_new_template();
    scene.pod_mut(1).is_ready = false;
    assert_eq!(
        scene.blocker(),
        Some(Blocker::MemberUnhealthy {
            ordinal: Ordinal(1)
        })
    );
}

#[test]
fn a_bad_template_stops_at_the_first_pod() {
    let scene = ClusterFixture::healthy(3).with_new_template().with_updated_pod(2).with_member_down(2);
    assert_eq!(
        scene.blocker(),
        Some(Blocker::UpdatedMemberUnhealthy {
            ordinal: Ordinal(2)
        })
    );
}

#[test]
fn a_pod_that_was_deleted_is_waited_for() {
    let mut scene = ClusterFixture::healthy(3).with_new_template();
    scene.observed.pods.remove(&Ordinal(2));
    assert_eq!(
        scene.blocker(),
        Some(Blocker::PodMissing {
            ordinal: Ordinal(2)
        })
    );
    let mut scene = ClusterFixture::healthy(3).with_new_template();
    scene.pod_mut(2).is_deleting = true;
    assert_eq!(
        scene.blocker(),
        Some(Blocker::PodMissing {
            ordinal: Ordinal(2)
        })
    );
}

#[test]
fn a_template_the_controller_of_sets_has_not_seen_tells_nothing() {
    let mut scene = ClusterFixture::healthy(3);
    scene.stateful_set_mut().is_observed = false;
    assert_eq!(scene.blocker(), Some(Blocker::StatefulSetUnobserved));
}

#[test]
fn pods_that_never_worked_are_all_replaced_although_none_gets_well() {
    let mut scene = ClusterFixture::healthy(3).with_new_template().without_quorum();
    for ordinal in 0..3 {
        scene.pod_mut(ordinal).is_ready = false;
    }
    assert_eq!(scene.step(), Some(delete_pod(0, PodDeletionReason::OutdatedAndUnhealthy)));
    let mut scene = scene.with_updated_pod(0);
    scene.pod_mut(0).is_ready = false;
    assert_eq!(scene.step(), Some(delete_pod(1, PodDeletionReason::OutdatedAndUnhealthy)));
}

#[test]
fn ready_pods_are_not_touched_while_nobody_answers() {
    let scene = ClusterFixture::healthy(3).with_new_template().without_quorum();
    assert_eq!(scene.blocker(), Some(Blocker::NoQuorum));
}

#[test]
fn who_answers_without_a_quorum_is_not_taken_for_dead() {
    let mut scene = ClusterFixture::healthy(3).with_new_template();
    scene.pod_mut(2).is_ready = false;
    scene.observed.membership = ObservedMembership::NoQuorum {
        reason: "no leader".to_owned(),
        reachable: [(Ordinal(2), 0)].into(),
    };
    assert_eq!(scene.blocker(), Some(Blocker::NoQuorum));
}

#[test]
fn a_rollout_that_began_goes_on_although_the_spec_has_changed_since() {
    let mut scene = ClusterFixture::healthy(3).with_new_template();
    scene.desired.generation = 2;
    let plan = scene.plan();
    assert_eq!(plan.effective_spec, None);
    assert_eq!(plan.refusals, [SpecRefusal::ReconcileNotRequested { generation: 2 }]);
    assert_eq!(plan.step, Some(delete_pod(2, PodDeletionReason::Outdated)));
}

fn with_new_image(image: &str) -> ClusterFixture {
    let mut scene = ClusterFixture::healthy(3);
    scene.desired.etcd_image = image.to_owned();
    scene
}

#[test]
fn another_etcd_waits_for_a_fresh_snapshot_and_the_image_stays() {
    let scene = with_new_image("etcd:v3.6.0").with_backup(3_600);
    let plan = scene.plan();
    assert_eq!(
        plan.step,
        Some(ReconcileStep::Snapshot {
            before: DisruptiveChange::Upgrade
        })
    );
    assert_eq!(plan.effective_spec.unwrap().held_fields.etcd_image.as_deref(), Some(IMAGE));
    let fresh = scene.with_backup(60).plan();
    assert_eq!(
        (fresh.step, fresh.effective_spec.unwrap().held_fields.etcd_image),
        (None, None)
    );
}

#[test]
fn a_snapshot_that_fails_stops_the_upgrade_and_says_why() {
    let mut scene = with_new_image("etcd:v3.6.0").with_backup(3_600);
    let retry_at = ago(-30);
    scene.observed.snapshot_request = SnapshotRequest::Failed {
        reason: "403".to_owned(),
        retry_at,
    };
    let before = DisruptiveChange::Upgrade;
    let blocker = Blocker::SnapshotFailed {
        before,
        reason: "403".to_owned(),
        retry_at,
    };
    assert_eq!(scene.blocker(), Some(blocker));
    scene.observed.snapshot_request = SnapshotRequest::Failed {
        reason: "403".to_owned(),
        retry_at: ago(1),
    };
    assert_eq!(scene.step(), Some(ReconcileStep::Snapshot { before }));
}

/// Pods are out of date, and the last full snapshot is an hour old.
fn with_stale_snapshot() -> ClusterFixture {
    ClusterFixture::healthy(3).with_new_template().with_backup(3_600)
}

fn deleted_pod(scene: &ClusterFixture) -> Option<u32> {
    match scene.step() {
        Some(ReconcileStep::DeletePod { ordinal, .. }) => Some(ordinal.0),
        _ => None,
    }
}

#[test]
fn the_first_pod_is_replaced_after_the_snapshot_was_answered() {
    let before = DisruptiveChange::Rollout;
    let mut scene = with_stale_snapshot();
    assert_eq!(scene.step(), Some(ReconcileStep::Snapshot { before }));
    scene.observed.snapshot_request = SnapshotRequest::Running;
    assert_eq!(scene.blocker(), Some(Blocker::SnapshotRunning { before }));
    scene.observed.snapshot_request = SnapshotRequest::Taken { at: ago(1) };
    assert_eq!(deleted_pod(&scene), Some(2), "its Lease may come later");
    assert_eq!(deleted_pod(&with_stale_snapshot().with_backup(60)), Some(2));
}

#[test]
fn a_rollout_does_not_depend_on_the_snapshot_before_it() {
    let mut scene = with_stale_snapshot();
    scene.observed.snapshot_request = SnapshotRequest::Failed {
        reason: "403".to_owned(),
        retry_at: ago(-30),
    };
    assert_eq!(deleted_pod(&scene), Some(2));
    assert_eq!(
        deleted_pod(&ClusterFixture::healthy(3).with_new_template()),
        Some(2),
        "without a store"
    );
}

#[test]
fn there_is_one_snapshot_for_a_rollout_not_one_for_each_pod() {
    assert_eq!(deleted_pod(&with_stale_snapshot().with_updated_pod(2)), Some(1));
    let sick = with_stale_snapshot().with_member_down(1);
    assert_eq!(
        deleted_pod(&sick),
        Some(1),
        "nobody misses the one that takes no part"
    );
}

/// A StatefulSet as etcd-druid made it, which rolls no more.
fn druid_cluster() -> ClusterFixture {
    let mut scene = ClusterFixture::healthy(3).with_backup(3_600);
    let set = scene.stateful_set_mut();
    (set.is_ours, set.recorded_size) = (false, None);
    set.etcd_image = Some("etcd-wrapper:v0.6.2".to_owned());
    scene
}

#[test]
fn what_etcd_druid_made_stays_in_whole_until_our_etcd_may_come_and_changes_in_whole() {
    let scene = druid_cluster();
    let plan = scene.plan();
    let before = DisruptiveChange::Upgrade;
    assert_eq!(plan.step, Some(ReconcileStep::Snapshot { before }));
    assert!(plan.effective_spec.unwrap().held_fields.all_objects);
    let plan = scene.with_backup(60).plan();
    let holds = plan.effective_spec.unwrap().held_fields;
    assert_eq!((holds.all_objects, holds.etcd_image), (false, None));
}

#[test]
fn what_etcd_druid_made_is_not_touched_while_our_etcd_cannot_follow_its_own() {
    let mut scene = druid_cluster().with_backup(60).with_replicas(5);
    for member in scene.members_mut() {
        member.status.as_mut().unwrap().version = "3.3.10".to_owned();
    }
    let plan = scene.plan();
    let blocker = Blocker::AdoptionRefused;
    assert_eq!(plan.step, Some(ReconcileStep::Wait { blocker }), "nor scaled");
    assert!(plan.effective_spec.unwrap().held_fields.all_objects);
    assert!(matches!(plan.refusals[..], [SpecRefusal::Upgrade { .. }]));
}

#[test]
fn an_image_of_ours_is_held_alone() {
    let holds = with_new_image("etcd:v3.6.0").with_backup(3_600).plan().effective_spec;
    assert!(!holds.unwrap().held_fields.all_objects);
}

#[test]
fn pods_somebody_has_stopped_stay_so_while_changes_by_hand_are_left_alone() {
    let mut scene = ClusterFixture::healthy(3);
    scene.stateful_set_mut().replicas = 0;
    scene.observed.pods.clear();
    assert!(matches!(
        scene.step(),
        Some(ReconcileStep::Scale { from: 0, to: 3 })
    ));
    scene.desired.requests.drift_policy = DriftPolicy::Keep;
    let plan = scene.plan();
    assert_eq!((plan.step, plan.effective_spec), (None, None));
    assert_eq!(plan.refusals, [SpecRefusal::ManuallyStopped]);
    scene.desired.requests.reconcile = true;
    assert!(matches!(
        scene.step(),
        Some(ReconcileStep::Scale { from: 0, to: 3 })
    ));
    scene.desired.requests.reconcile = false;
    (scene.desired.generation, scene.policy.auto_reconcile) = (2, true);
    assert!(matches!(
        scene.step(),
        Some(ReconcileStep::Scale { from: 0, to: 3 })
    ));
}

#[test]
fn a_person_may_go_without_the_snapshot_for_one_generation() {
    let mut scene = with_new_image("etcd:v3.6.0").with_backup(3_600);
    scene.desired.requests.skip_snapshot_generation = Some(1);
    let plan = scene.plan();
    assert_eq!(plan.step, None);
    assert_eq!(plan.effective_spec.unwrap().held_fields.etcd_image, None);
    scene.policy.auto_reconcile = true;
    scene.desired.generation = 2;
    let before = DisruptiveChange::Upgrade;
    assert_eq!(scene.step(), Some(ReconcileStep::Snapshot { before }));
}

#[test]
fn what_runs_decides_which_etcd_may_follow_not_what_the_spec_said() {
    let mut scene = with_new_image("etcd:v3.6.0");
    for member in scene.members_mut() {
        member.status.as_mut().unwrap().version = "3.5.21".to_owned();
    }
    let plan = scene.plan();
    let refusal = SpecRefusal::Upgrade {
        from: "3.5.21".to_owned(),
        to: "3.6.0".to_owned(),
        rule: UpgradeRule::MinPatchFirst,
    };
    assert_eq!(plan.refusals, [refusal]);
    assert_eq!(plan.effective_spec.unwrap().held_fields.etcd_image.as_deref(), Some(IMAGE));
}

#[test]
fn an_image_nobody_can_judge_is_let_through() {
    assert!(with_new_image("etcd:latest").plan().is_settled());
}

#[test]
fn a_cluster_that_is_down_takes_any_image_that_may_follow() {
    let mut scene = with_new_image("etcd:v3.6.0").with_backup(86_400).without_quorum();
    assert_eq!(scene.plan().effective_spec.unwrap().held_fields.etcd_image, None);
    scene.last_known.etcd_version = crate::decide::upgrade::EtcdVersion::parse("3.4.34");
    assert_eq!(
        scene.plan().effective_spec.unwrap().held_fields.etcd_image.as_deref(),
        Some(IMAGE)
    );
}

#[test]
fn a_member_that_listens_elsewhere_is_announced_before_the_next_pod_goes() {
    let mut scene = ClusterFixture::healthy(3).with_new_template().with_updated_pod(2);
    scene.desired.peers.tls = true;
    scene.stateful_set_mut().peer_tls_stage = PeerTlsStage::On;
    let member = member_id(2);
    let announced = ReconcileStep::UpdatePeerUrls {
        member,
        ordinal: Ordinal(2),
    };
    assert_eq!(scene.step(), Some(announced));
    scene.member_mut(2).peer_urls = scene.desired.peer_urls(Ordinal(2), PeerTlsStage::On);
    assert_eq!(scene.step(), Some(delete_pod(1, PodDeletionReason::Outdated)));
}

fn peer_tls_stage(scene: &ClusterFixture) -> PeerTlsStage {
    scene.plan().effective_spec.unwrap().peer_tls_stage
}

#[test]
fn members_get_certificates_before_anybody_listens_encrypted() {
    let mut scene = ClusterFixture::healthy(3);
    scene.desired.peers.tls = true;
    assert_eq!(peer_tls_stage(&scene), PeerTlsStage::Prepared);
    scene.stateful_set_mut().peer_tls_stage = PeerTlsStage::Prepared;
    assert_eq!(
        peer_tls_stage(&scene.clone().with_new_template()),
        PeerTlsStage::Prepared,
        "not rolled out"
    );
    assert_eq!(
        peer_tls_stage(&scene.clone().with_member_down(1)),
        PeerTlsStage::Prepared,
        "one is not well"
    );
    assert_eq!(peer_tls_stage(&scene), PeerTlsStage::On);
}

#[test]
fn certificates_are_taken_away_after_everybody_listens_plain() {
    let mut scene = ClusterFixture::healthy(3);
    scene.stateful_set_mut().peer_tls_stage = PeerTlsStage::On;
    assert_eq!(peer_tls_stage(&scene), PeerTlsStage::Prepared);
    scene.stateful_set_mut().peer_tls_stage = PeerTlsStage::Prepared;
    assert_eq!(peer_tls_stage(&scene), PeerTlsStage::Off);
    scene.member_mut(0).peer_urls = scene.desired.peer_urls(Ordinal(0), PeerTlsStage::On);
    assert_eq!(
        peer_tls_stage(&scene),
        PeerTlsStage::Prepared,
        "one is still found encrypted"
    );
}

#[test]
fn a_cluster_that_sleeps_or_has_no_quorum_goes_on_listening_where_it_is_looked_for() {
    let mut scene = ClusterFixture::healthy(3).with_replicas(0);
    (scene.stateful_set_mut().peer_tls_stage, scene.stateful_set_mut().replicas) = (PeerTlsStage::On, 0);
    scene.observed.pods.clear();
    let asleep = scene.without_quorum();
    assert_eq!(peer_tls_stage(&asleep), PeerTlsStage::On, "asleep");
    assert_eq!(peer_tls_stage(&asleep.with_replicas(3)), PeerTlsStage::On, "waking");
    let mut scene = ClusterFixture::healthy(3);
    scene.stateful_set_mut().peer_tls_stage = PeerTlsStage::On;
    assert_eq!(peer_tls_stage(&scene.without_quorum()), PeerTlsStage::On, "no quorum");
}

#[test]
fn a_single_member_has_nobody_to_lose() {
    let mut scene = ClusterFixture::healthy(1);
    scene.desired.peers.tls = true;
    assert_eq!(peer_tls_stage(&scene), PeerTlsStage::On);
}

#[test]
fn nothing_is_over_before_the_last_pod_is_back() {
    let mut scene = ClusterFixture::healthy(3);
    scene.pod_mut(1).is_ready = false;
    let blocker = Blocker::MemberUnhealthy {
        ordinal: Ordinal(1),
    };
    assert_eq!(scene.blocker(), Some(blocker.clone()));
    let mut going = ClusterFixture::healthy(3);
    going.pod_mut(1).is_deleting = true;
    assert_eq!(going.blocker(), Some(blocker), "the last one goes, ready or not");
    assert_eq!(ClusterFixture::healthy(3).step(), None);
}

#[test]
fn an_encrypted_address_of_the_users_own_does_not_stop_the_switch() {
    let mut scene = ClusterFixture::healthy(3);
    scene.desired.peers.tls = true;
    scene.stateful_set_mut().peer_tls_stage = PeerTlsStage::Prepared;
    for ordinal in 0..3 {
        let own = vec![format!("https://outside-{ordinal}:2380")];
        let name = scene.desired.member_name(Ordinal(ordinal));
        scene.desired.peers.additional_urls.insert(name, own);
        scene.member_mut(ordinal).peer_urls = scene
            .desired
            .peer_urls(Ordinal(ordinal), PeerTlsStage::Prepared);
    }
    assert_eq!(peer_tls_stage(&scene), PeerTlsStage::On);
    assert_eq!(scene.blocker(), Some(Blocker::StatefulSetUnobserved));
}

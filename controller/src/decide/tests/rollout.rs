//! Rollouts, upgrades, adoption and the stages of peer TLS.

use super::fixture::*;
use crate::model::{
    Blocker, DisruptiveChange, DriftPolicy, ObservedMembership, Ordinal, PeerTlsStage,
    PodDeletionReason, ReconcileStep, SnapshotRequest, SpecRefusal, UpgradeRule,
};

fn delete_pod(ordinal: u32, reason: PodDeletionReason) -> ReconcileStep {
    let uid = format!("pod-{ordinal}-{OLD_REVISION}");
    ReconcileStep::DeletePod {
        ordinal: Ordinal(ordinal),
        uid,
        reason,
    }
}

#[test]
fn healthy_cluster_is_left_unchanged() {
    for replicas in [1, 2, 3, 5] {
        let plan = ClusterFixture::healthy(replicas).plan();
        assert!(plan.is_settled(), "{plan:?}");
    }
}

#[test]
fn followers_roll_first_from_the_highest_ordinal() {
    assert_eq!(
        ClusterFixture::healthy(3).with_new_template().step(),
        Some(delete_pod(2, PodDeletionReason::Outdated))
    );
    assert_eq!(
        ClusterFixture::healthy(3)
            .with_new_template()
            .with_leader(2)
            .step(),
        Some(delete_pod(1, PodDeletionReason::Outdated))
    );
}

#[test]
fn leader_transfers_leadership_before_its_pod_is_deleted() {
    let fixture = ClusterFixture::healthy(3)
        .with_new_template()
        .with_updated_pod(1)
        .with_updated_pod(2);
    assert_eq!(
        fixture.step(),
        Some(ReconcileStep::MoveLeader {
            from: member_id(0),
            to: member_id(1)
        })
    );
    assert_eq!(
        fixture.with_leader(1).step(),
        Some(delete_pod(0, PodDeletionReason::Outdated))
    );
}

#[test]
fn single_member_is_restarted_without_a_leadership_transfer() {
    assert_eq!(
        ClusterFixture::healthy(1).with_new_template().step(),
        Some(delete_pod(0, PodDeletionReason::Outdated))
    );
}

#[test]
fn unhealthy_member_rolls_first() {
    let fixture = ClusterFixture::healthy(3)
        .with_new_template()
        .with_member_down(1);
    assert_eq!(
        fixture.step(),
        Some(delete_pod(1, PodDeletionReason::OutdatedAndUnhealthy))
    );
}

#[test]
fn responsive_pod_that_is_not_ready_is_not_deleted() {
    let mut fixture = ClusterFixture::healthy(3).with_new_template();
    fixture.pod_mut(1).is_ready = false;
    assert_eq!(
        fixture.blocker(),
        Some(Blocker::MemberUnhealthy {
            ordinal: Ordinal(1)
        })
    );
}

#[test]
fn bad_template_stops_at_the_first_pod() {
    let fixture = ClusterFixture::healthy(3)
        .with_new_template()
        .with_updated_pod(2)
        .with_member_down(2);
    assert_eq!(
        fixture.blocker(),
        Some(Blocker::UpdatedMemberUnhealthy {
            ordinal: Ordinal(2)
        })
    );
}

#[test]
fn rollout_waits_for_a_deleted_pod() {
    let mut fixture = ClusterFixture::healthy(3).with_new_template();
    fixture.observed.pods.remove(&Ordinal(2));
    assert_eq!(
        fixture.blocker(),
        Some(Blocker::PodMissing {
            ordinal: Ordinal(2)
        })
    );
    let mut fixture = ClusterFixture::healthy(3).with_new_template();
    fixture.pod_mut(2).is_deleting = true;
    assert_eq!(
        fixture.blocker(),
        Some(Blocker::PodMissing {
            ordinal: Ordinal(2)
        })
    );
}

#[test]
fn rollout_waits_until_the_stateful_set_status_is_current() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.stateful_set_mut().is_observed = false;
    assert_eq!(fixture.blocker(), Some(Blocker::StatefulSetUnobserved));
}

#[test]
fn outdated_pods_that_were_never_ready_are_all_replaced() {
    let mut fixture = ClusterFixture::healthy(3)
        .with_new_template()
        .without_quorum();
    for ordinal in 0..3 {
        fixture.pod_mut(ordinal).is_ready = false;
    }
    assert_eq!(
        fixture.step(),
        Some(delete_pod(0, PodDeletionReason::OutdatedAndUnhealthy))
    );
    let mut fixture = fixture.with_updated_pod(0);
    fixture.pod_mut(0).is_ready = false;
    assert_eq!(
        fixture.step(),
        Some(delete_pod(1, PodDeletionReason::OutdatedAndUnhealthy))
    );
}

#[test]
fn ready_pods_are_not_deleted_while_etcd_does_not_respond() {
    let fixture = ClusterFixture::healthy(3)
        .with_new_template()
        .without_quorum();
    assert_eq!(fixture.blocker(), Some(Blocker::NoQuorum));
}

#[test]
fn responsive_pod_without_a_quorum_is_not_deleted() {
    let mut fixture = ClusterFixture::healthy(3).with_new_template();
    fixture.pod_mut(2).is_ready = false;
    fixture.observed.membership = ObservedMembership::NoQuorum {
        reason: "no leader".to_owned(),
        reachable: [(Ordinal(2), 0)].into(),
    };
    assert_eq!(fixture.blocker(), Some(Blocker::NoQuorum));
}

#[test]
fn started_rollout_continues_after_another_spec_change() {
    let mut fixture = ClusterFixture::healthy(3).with_new_template();
    fixture.desired.generation = 2;
    let plan = fixture.plan();
    assert_eq!(plan.effective_spec, None);
    assert_eq!(
        plan.refusals,
        [SpecRefusal::ReconcileNotRequested { generation: 2 }]
    );
    assert_eq!(plan.step, Some(delete_pod(2, PodDeletionReason::Outdated)));
}

fn with_new_image(image: &str) -> ClusterFixture {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.desired.etcd_image = image.to_owned();
    fixture
}

#[test]
fn upgrade_waits_for_a_fresh_snapshot_and_the_image_is_held() {
    let fixture = with_new_image("etcd:v3.6.0").with_backup(3_600);
    let plan = fixture.plan();
    assert_eq!(
        plan.step,
        Some(ReconcileStep::Snapshot {
            before: DisruptiveChange::Upgrade
        })
    );
    assert_eq!(
        plan.effective_spec
            .unwrap()
            .held_fields
            .etcd_image
            .as_deref(),
        Some(IMAGE)
    );
    let fresh = fixture.with_backup(60).plan();
    assert_eq!(
        (
            fresh.step,
            fresh.effective_spec.unwrap().held_fields.etcd_image
        ),
        (None, None)
    );
}

#[test]
fn failed_snapshot_blocks_the_upgrade_with_its_reason() {
    let mut fixture = with_new_image("etcd:v3.6.0").with_backup(3_600);
    let retry_at = ago(-30);
    fixture.observed.snapshot_request = SnapshotRequest::Failed {
        reason: "403".to_owned(),
        retry_at,
    };
    let before = DisruptiveChange::Upgrade;
    let blocker = Blocker::SnapshotFailed {
        before,
        reason: "403".to_owned(),
        retry_at,
    };
    assert_eq!(fixture.blocker(), Some(blocker));
    fixture.observed.snapshot_request = SnapshotRequest::Failed {
        reason: "403".to_owned(),
        retry_at: ago(1),
    };
    assert_eq!(fixture.step(), Some(ReconcileStep::Snapshot { before }));
}

/// All pods are outdated, and the last full snapshot is one hour old.
fn with_stale_snapshot() -> ClusterFixture {
    ClusterFixture::healthy(3)
        .with_new_template()
        .with_backup(3_600)
}

fn deleted_pod(fixture: &ClusterFixture) -> Option<u32> {
    match fixture.step() {
        Some(ReconcileStep::DeletePod { ordinal, .. }) => Some(ordinal.0),
        _ => None,
    }
}

#[test]
fn first_pod_is_replaced_only_after_the_snapshot() {
    let before = DisruptiveChange::Rollout;
    let mut fixture = with_stale_snapshot();
    assert_eq!(fixture.step(), Some(ReconcileStep::Snapshot { before }));
    fixture.observed.snapshot_request = SnapshotRequest::Running;
    assert_eq!(fixture.blocker(), Some(Blocker::SnapshotRunning { before }));
    fixture.observed.snapshot_request = SnapshotRequest::Taken { at: ago(1) };
    assert_eq!(
        deleted_pod(&fixture),
        Some(2),
        "the Lease may be updated later"
    );
    assert_eq!(deleted_pod(&with_stale_snapshot().with_backup(60)), Some(2));
}

#[test]
fn rollout_continues_when_its_snapshot_fails() {
    let mut fixture = with_stale_snapshot();
    fixture.observed.snapshot_request = SnapshotRequest::Failed {
        reason: "403".to_owned(),
        retry_at: ago(-30),
    };
    assert_eq!(deleted_pod(&fixture), Some(2));
    assert_eq!(
        deleted_pod(&ClusterFixture::healthy(3).with_new_template()),
        Some(2),
        "without a store"
    );
}

#[test]
fn rollout_takes_one_snapshot_not_one_per_pod() {
    assert_eq!(
        deleted_pod(&with_stale_snapshot().with_updated_pod(2)),
        Some(1)
    );
    let unhealthy = with_stale_snapshot().with_member_down(1);
    assert_eq!(
        deleted_pod(&unhealthy),
        Some(1),
        "the unhealthy pod needs no snapshot"
    );
}

/// A StatefulSet made by etcd-druid, with RollingUpdate disabled.
fn druid_cluster() -> ClusterFixture {
    let mut fixture = ClusterFixture::healthy(3).with_backup(3_600);
    let set = fixture.stateful_set_mut();
    (set.is_ours, set.recorded_size) = (false, None);
    set.etcd_image = Some("etcd-wrapper:v0.6.2".to_owned());
    fixture
}

#[test]
fn etcd_druid_objects_are_held_until_the_upgrade_and_change_together() {
    let fixture = druid_cluster();
    let plan = fixture.plan();
    let before = DisruptiveChange::Upgrade;
    assert_eq!(plan.step, Some(ReconcileStep::Snapshot { before }));
    assert!(plan.effective_spec.unwrap().held_fields.all_objects);
    let plan = fixture.with_backup(60).plan();
    let held = plan.effective_spec.unwrap().held_fields;
    assert_eq!((held.all_objects, held.etcd_image), (false, None));
}

#[test]
fn etcd_druid_objects_stay_unchanged_while_the_upgrade_is_refused() {
    let mut fixture = druid_cluster().with_backup(60).with_replicas(5);
    for member in fixture.members_mut() {
        member.status.as_mut().unwrap().version = "3.3.10".to_owned();
    }
    let plan = fixture.plan();
    let blocker = Blocker::AdoptionRefused;
    assert_eq!(
        plan.step,
        Some(ReconcileStep::Wait { blocker }),
        "not even scaled"
    );
    assert!(plan.effective_spec.unwrap().held_fields.all_objects);
    assert!(matches!(plan.refusals[..], [SpecRefusal::Upgrade { .. }]));
}

#[test]
fn upgrade_of_an_adopted_cluster_holds_only_the_image() {
    let held = with_new_image("etcd:v3.6.0")
        .with_backup(3_600)
        .plan()
        .effective_spec;
    assert!(!held.unwrap().held_fields.all_objects);
}

#[test]
fn manually_stopped_pods_stay_stopped_while_drift_is_kept() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.stateful_set_mut().replicas = 0;
    fixture.observed.pods.clear();
    assert!(matches!(
        fixture.step(),
        Some(ReconcileStep::Scale { from: 0, to: 3 })
    ));
    fixture.desired.requests.drift_policy = DriftPolicy::Keep;
    let plan = fixture.plan();
    assert_eq!((plan.step, plan.effective_spec), (None, None));
    assert_eq!(plan.refusals, [SpecRefusal::ManuallyStopped]);
    fixture.desired.requests.reconcile = true;
    assert!(matches!(
        fixture.step(),
        Some(ReconcileStep::Scale { from: 0, to: 3 })
    ));
    fixture.desired.requests.reconcile = false;
    (fixture.desired.generation, fixture.policy.auto_reconcile) = (2, true);
    assert!(matches!(
        fixture.step(),
        Some(ReconcileStep::Scale { from: 0, to: 3 })
    ));
}

#[test]
fn skip_snapshot_annotation_applies_to_one_generation() {
    let mut fixture = with_new_image("etcd:v3.6.0").with_backup(3_600);
    fixture.desired.requests.skip_snapshot_generation = Some(1);
    let plan = fixture.plan();
    assert_eq!(plan.step, None);
    assert_eq!(plan.effective_spec.unwrap().held_fields.etcd_image, None);
    fixture.policy.auto_reconcile = true;
    fixture.desired.generation = 2;
    let before = DisruptiveChange::Upgrade;
    assert_eq!(fixture.step(), Some(ReconcileStep::Snapshot { before }));
}

#[test]
fn running_version_decides_whether_an_upgrade_is_allowed() {
    let mut fixture = with_new_image("etcd:v3.6.0");
    for member in fixture.members_mut() {
        member.status.as_mut().unwrap().version = "3.5.21".to_owned();
    }
    let plan = fixture.plan();
    let refusal = SpecRefusal::Upgrade {
        from: "3.5.21".to_owned(),
        to: "3.6.0".to_owned(),
        rule: UpgradeRule::MinPatchFirst,
    };
    assert_eq!(plan.refusals, [refusal]);
    assert_eq!(
        plan.effective_spec
            .unwrap()
            .held_fields
            .etcd_image
            .as_deref(),
        Some(IMAGE)
    );
}

#[test]
fn image_without_a_version_is_accepted() {
    assert!(with_new_image("etcd:latest").plan().is_settled());
}

#[test]
fn cluster_without_quorum_takes_any_permitted_image_without_snapshot() {
    let mut fixture = with_new_image("etcd:v3.6.0")
        .with_backup(86_400)
        .without_quorum();
    assert_eq!(
        fixture
            .plan()
            .effective_spec
            .unwrap()
            .held_fields
            .etcd_image,
        None
    );
    fixture.last_known.etcd_version = mainstay_ids::EtcdVersion::parse("3.4.34");
    assert_eq!(
        fixture
            .plan()
            .effective_spec
            .unwrap()
            .held_fields
            .etcd_image
            .as_deref(),
        Some(IMAGE)
    );
}

#[test]
fn changed_peer_url_is_registered_before_the_next_pod_is_deleted() {
    let mut fixture = ClusterFixture::healthy(3)
        .with_new_template()
        .with_updated_pod(2);
    fixture.desired.peers.tls = true;
    fixture.stateful_set_mut().peer_tls_stage = PeerTlsStage::On;
    let member = member_id(2);
    let update = ReconcileStep::UpdatePeerUrls {
        member,
        ordinal: Ordinal(2),
    };
    assert_eq!(fixture.step(), Some(update));
    fixture.member_mut(2).peer_urls = fixture.desired.peer_urls(Ordinal(2), PeerTlsStage::On);
    assert_eq!(
        fixture.step(),
        Some(delete_pod(1, PodDeletionReason::Outdated))
    );
}

fn peer_tls_stage(fixture: &ClusterFixture) -> PeerTlsStage {
    fixture.plan().effective_spec.unwrap().peer_tls_stage
}

#[test]
fn members_get_certificates_before_any_member_listens_with_tls() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.desired.peers.tls = true;
    assert_eq!(peer_tls_stage(&fixture), PeerTlsStage::Prepared);
    fixture.stateful_set_mut().peer_tls_stage = PeerTlsStage::Prepared;
    assert_eq!(
        peer_tls_stage(&fixture.clone().with_new_template()),
        PeerTlsStage::Prepared,
        "not rolled out"
    );
    assert_eq!(
        peer_tls_stage(&fixture.clone().with_member_down(1)),
        PeerTlsStage::Prepared,
        "one member is unhealthy"
    );
    assert_eq!(peer_tls_stage(&fixture), PeerTlsStage::On);
}

#[test]
fn certificates_are_removed_after_all_members_listen_without_tls() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.stateful_set_mut().peer_tls_stage = PeerTlsStage::On;
    assert_eq!(peer_tls_stage(&fixture), PeerTlsStage::Prepared);
    fixture.stateful_set_mut().peer_tls_stage = PeerTlsStage::Prepared;
    assert_eq!(peer_tls_stage(&fixture), PeerTlsStage::Off);
    fixture.member_mut(0).peer_urls = fixture.desired.peer_urls(Ordinal(0), PeerTlsStage::On);
    assert_eq!(
        peer_tls_stage(&fixture),
        PeerTlsStage::Prepared,
        "one member still has a TLS peer URL"
    );
}

#[test]
fn hibernated_cluster_or_one_without_quorum_keeps_its_tls_stage() {
    let mut fixture = ClusterFixture::healthy(3).with_replicas(0);
    (
        fixture.stateful_set_mut().peer_tls_stage,
        fixture.stateful_set_mut().replicas,
    ) = (PeerTlsStage::On, 0);
    fixture.observed.pods.clear();
    let hibernated = fixture.without_quorum();
    assert_eq!(peer_tls_stage(&hibernated), PeerTlsStage::On, "hibernated");
    assert_eq!(
        peer_tls_stage(&hibernated.with_replicas(3)),
        PeerTlsStage::On,
        "waking up"
    );
    let mut fixture = ClusterFixture::healthy(3);
    fixture.stateful_set_mut().peer_tls_stage = PeerTlsStage::On;
    assert_eq!(
        peer_tls_stage(&fixture.without_quorum()),
        PeerTlsStage::On,
        "no quorum"
    );
}

#[test]
fn single_member_switches_to_peer_tls_in_one_step() {
    let mut fixture = ClusterFixture::healthy(1);
    fixture.desired.peers.tls = true;
    assert_eq!(peer_tls_stage(&fixture), PeerTlsStage::On);
}

#[test]
fn rollout_is_complete_only_when_the_last_pod_is_ready() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.pod_mut(1).is_ready = false;
    let blocker = Blocker::MemberUnhealthy {
        ordinal: Ordinal(1),
    };
    assert_eq!(fixture.blocker(), Some(blocker.clone()));
    let mut terminating = ClusterFixture::healthy(3);
    terminating.pod_mut(1).is_deleting = true;
    assert_eq!(
        terminating.blocker(),
        Some(blocker),
        "a terminating pod is not ready for long"
    );
    assert_eq!(ClusterFixture::healthy(3).step(), None);
}

#[test]
fn additional_https_peer_url_does_not_block_the_tls_switch() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.desired.peers.tls = true;
    fixture.stateful_set_mut().peer_tls_stage = PeerTlsStage::Prepared;
    for ordinal in 0..3 {
        let additional = vec![format!("https://outside-{ordinal}:2380")];
        let name = fixture.desired.member_name(Ordinal(ordinal));
        fixture
            .desired
            .peers
            .additional_urls
            .insert(name, additional);
        fixture.member_mut(ordinal).peer_urls = fixture
            .desired
            .peer_urls(Ordinal(ordinal), PeerTlsStage::Prepared);
    }
    assert_eq!(peer_tls_stage(&fixture), PeerTlsStage::On);
    assert_eq!(fixture.blocker(), Some(Blocker::StatefulSetUnobserved));
}

//! Scaling, hibernation, volume expansion, and which specs are applied.

use mainstay_crds::etcd::VolumeGrowth;

use super::fixture::*;
use crate::decide::should_query_members;
use crate::model::{
    Blocker, BootstrapPhase, DisruptiveChange, InitFinding, MemberRemovalReason, Observation,
    Ordinal, PodDeletionReason, PvcDeletionReason, ReconcilePlan, ReconcileStep, Runtime,
    SnapshotRequest, SpecRefusal, UpdateStrategy,
};

const GIB: u64 = 1 << 30;

fn scale(from: u32, to: u32) -> ReconcileStep {
    ReconcileStep::Scale { from, to }
}

#[test]
fn new_cluster_is_bootstrapped_by_all_its_members_at_once() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.observed = Observation::default();
    fixture.last_known.observed_generation = None;
    let ReconcilePlan {
        effective_spec,
        step,
        ..
    } = fixture.plan();
    let effective_spec = effective_spec.unwrap();
    assert_eq!(
        (step, effective_spec.replicas, effective_spec.phase),
        (None, 3, BootstrapPhase::Bootstrapping)
    );
}

#[test]
fn cluster_without_leases_is_waited_for_while_bootstrapping() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.stateful_set_mut().recorded_size = None;
    fixture.observed.leases.clear();
    assert_eq!(
        fixture.without_quorum().blocker(),
        Some(Blocker::Bootstrapping)
    );
}

#[test]
fn lost_stateful_set_is_recreated_around_its_pods() {
    let mut fixture = ClusterFixture::healthy(3).with_replicas(5);
    fixture.observed.stateful_set = None;
    let shape = fixture.plan().effective_spec.unwrap();
    assert_eq!(
        (shape.replicas, shape.phase),
        (3, BootstrapPhase::Bootstrapped)
    );
}

#[test]
fn cluster_scales_out_by_one_pod_at_a_time() {
    assert_eq!(
        ClusterFixture::healthy(1).with_replicas(3).step(),
        Some(scale(1, 2))
    );
    let shape = ClusterFixture::healthy(3)
        .with_replicas(5)
        .plan()
        .effective_spec
        .unwrap();
    assert_eq!((shape.replicas, shape.cluster_size), (4, 4));
}

#[test]
fn new_pod_is_added_as_a_learner_before_the_next_pod_is_created() {
    let fixture = ClusterFixture::healthy(1)
        .with_replicas(3)
        .with_waiting_pod(1);
    assert_eq!(
        fixture.step(),
        Some(ReconcileStep::AddLearner {
            ordinal: Ordinal(1)
        })
    );
}

#[test]
fn learner_is_promoted_only_once_it_responds() {
    let mut fixture = ClusterFixture::healthy(1)
        .with_replicas(3)
        .with_waiting_pod(1);
    let mut learner = member(&fixture.desired, 1);
    (learner.is_learner, learner.status, learner.name) = (true, None, String::new());
    fixture.members_mut().push(learner);
    assert_eq!(
        fixture.blocker(),
        Some(Blocker::LearnerLagging {
            ordinal: Ordinal(1)
        })
    );
    fixture.member_mut(1).status = Some(answer(0));
    assert_eq!(
        fixture.step(),
        Some(ReconcileStep::Promote {
            member: member_id(1),
            ordinal: Ordinal(1)
        })
    );
}

#[test]
fn pod_of_an_unstartable_learner_is_recreated_from_a_fixed_template() {
    let mut fixture = ClusterFixture::healthy(1)
        .with_replicas(3)
        .with_waiting_pod(1)
        .with_new_template();
    let mut learner = member(&fixture.desired, 1);
    (learner.is_learner, learner.status, learner.name) = (true, None, String::new());
    fixture.members_mut().push(learner);
    let delete = ReconcileStep::DeletePod {
        ordinal: Ordinal(1),
        uid: fixture.observed.pods[&Ordinal(1)].uid.clone(),
        reason: PodDeletionReason::OutdatedAndUnhealthy,
    };
    assert_eq!(fixture.step(), Some(delete));
    fixture.stateful_set_mut().is_observed = false;
    let ordinal = Ordinal(1);
    assert_eq!(fixture.blocker(), Some(Blocker::LearnerLagging { ordinal }));
}

#[test]
fn foreign_learner_is_not_promoted() {
    let mut fixture = ClusterFixture::healthy(1)
        .with_replicas(3)
        .with_waiting_pod(1);
    let mut foreign = member(&fixture.desired, 9);
    (foreign.is_learner, foreign.ordinal) = (true, None);
    fixture.members_mut().push(foreign);
    assert_eq!(
        fixture.blocker(),
        Some(Blocker::ForeignLearner {
            member: member_id(9)
        })
    );
}

#[test]
fn unhealthy_cluster_does_not_scale_out() {
    let fixture = ClusterFixture::healthy(3)
        .with_replicas(5)
        .with_member_down(1);
    assert_eq!(
        fixture.blocker(),
        Some(Blocker::MemberUnhealthy {
            ordinal: Ordinal(1)
        })
    );
    assert_eq!(
        ClusterFixture::healthy(3)
            .with_replicas(5)
            .without_quorum()
            .blocker(),
        Some(Blocker::NoQuorum)
    );
}

#[test]
fn pvc_left_by_scale_in_is_deleted_when_its_ordinal_is_needed() {
    let mut fixture = ClusterFixture::healthy(1);
    fixture.observed.pvcs.insert(Ordinal(1), pvc(1));
    assert!(fixture.plan().is_settled(), "an unused PVC is kept");
    let delete_pvc = ReconcileStep::DeletePvc {
        ordinal: Ordinal(1),
        uid: "claim-1".to_owned(),
        pod_uid: None,
        reason: PvcDeletionReason::LeftByScaleIn,
    };
    let mut fixture = fixture.with_replicas(3);
    assert_eq!(fixture.step(), Some(delete_pvc));
    fixture
        .observed
        .pvcs
        .get_mut(&Ordinal(1))
        .unwrap()
        .is_deleting = true;
    assert_eq!(
        fixture.blocker(),
        Some(Blocker::PvcTerminating {
            ordinal: Ordinal(1)
        })
    );
}

#[test]
fn member_is_removed_before_its_pod_is_deleted() {
    let fixture = ClusterFixture::healthy(3).with_replicas(1);
    let removal = ReconcileStep::RemoveMember {
        member: member_id(2),
        ordinal: Ordinal(2),
        reason: MemberRemovalReason::ScaleIn,
    };
    assert_eq!(fixture.step(), Some(removal));
    assert_eq!(fixture.without_member(2).step(), Some(scale(3, 2)));
}

#[test]
fn leader_transfers_leadership_before_it_is_removed() {
    let fixture = ClusterFixture::healthy(3).with_replicas(1).with_leader(2);
    assert_eq!(
        fixture.step(),
        Some(ReconcileStep::MoveLeader {
            from: member_id(2),
            to: member_id(0)
        })
    );
}

#[test]
fn removal_that_would_lose_quorum_is_refused_with_the_member_counts() {
    let fixture = ClusterFixture::healthy(3)
        .with_replicas(2)
        .with_member_down(0)
        .with_leader(1);
    let blocker = Blocker::QuorumAtRisk {
        ordinal: Ordinal(2),
        healthy: 1,
        voters: 2,
    };
    assert_eq!(fixture.blocker(), Some(blocker));
    let removal = ReconcileStep::RemoveMember {
        member: member_id(2),
        ordinal: Ordinal(2),
        reason: MemberRemovalReason::ScaleIn,
    };
    assert_eq!(
        ClusterFixture::healthy(3)
            .with_replicas(2)
            .with_member_down(2)
            .step(),
        Some(removal),
        "removing the unhealthy member keeps quorum"
    );
}

#[test]
fn cancelled_scale_out_removes_the_pod_that_never_joined() {
    let fixture = ClusterFixture::healthy(3).with_waiting_pod(3);
    assert_eq!(fixture.step(), Some(scale(4, 3)));
}

#[test]
fn member_whose_pod_is_already_deleted_is_removed() {
    let mut fixture = ClusterFixture::healthy(3);
    let without_pod = member(&fixture.desired, 3);
    fixture.members_mut().push(without_pod);
    let removal = ReconcileStep::RemoveMember {
        member: member_id(3),
        ordinal: Ordinal(3),
        reason: MemberRemovalReason::ScaleIn,
    };
    assert_eq!(fixture.step(), Some(removal));
}

#[test]
fn hibernation_waits_for_a_snapshot() {
    let before = DisruptiveChange::Hibernation;
    let mut fixture = ClusterFixture::healthy(3)
        .with_replicas(0)
        .with_backup(3_600);
    assert_eq!(fixture.step(), Some(ReconcileStep::Snapshot { before }));
    fixture.observed.snapshot_request = SnapshotRequest::Running;
    assert_eq!(fixture.blocker(), Some(Blocker::SnapshotRunning { before }));
    assert_eq!(
        fixture.clone().without_quorum().blocker(),
        Some(Blocker::SnapshotRunning { before })
    );
    assert_eq!(fixture.with_backup(5).step(), Some(scale(3, 0)));
}

#[test]
fn cluster_without_a_store_hibernates_at_once() {
    assert_eq!(
        ClusterFixture::healthy(3).with_replicas(0).step(),
        Some(scale(3, 0))
    );
}

#[test]
fn cluster_that_cannot_be_backed_up_does_not_hibernate() {
    let fixture = ClusterFixture::healthy(3)
        .with_replicas(0)
        .with_backup(3_600)
        .without_quorum();
    assert_eq!(fixture.blocker(), Some(Blocker::NoQuorum));
}

#[test]
fn cluster_wakes_up_with_all_the_members_it_had() {
    let mut fixture = ClusterFixture::healthy(3).with_replicas(0);
    fixture.stateful_set_mut().replicas = 0;
    fixture.observed.pods.clear();
    fixture.observed.membership = crate::model::ObservedMembership::NotQueried;
    assert!(
        fixture.plan().is_settled(),
        "a hibernated cluster has converged"
    );
    assert_eq!(fixture.plan().effective_spec.unwrap().cluster_size, 3);
    assert_eq!(
        fixture.clone().with_replicas(1).step(),
        Some(scale(0, 3)),
        "one of three members has no quorum"
    );
    assert_eq!(fixture.clone().with_replicas(5).step(), Some(scale(0, 3)));
    fixture.stateful_set_mut().recorded_size = None;
    assert_eq!(
        fixture.with_replicas(1).step(),
        Some(scale(0, 3)),
        "etcd-druid records no size, its Leases name the members"
    );
}

#[test]
fn pvcs_are_expanded_before_the_template_changes() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.desired.storage_bytes = 32 * GIB;
    let all = vec![Ordinal(0), Ordinal(1), Ordinal(2)];
    let plan = fixture.plan();
    assert_eq!(
        plan.step,
        Some(ReconcileStep::ExpandPvcs {
            ordinals: all,
            bytes: 32 * GIB
        })
    );
    assert_eq!(
        plan.effective_spec.unwrap().held_fields.storage_bytes,
        Some(16 * GIB)
    );
    for pvc in fixture.observed.pvcs.values_mut() {
        pvc.requested_bytes = Some(32 * GIB);
    }
    assert_eq!(
        fixture.step(),
        Some(ReconcileStep::RecreateStatefulSet {
            uid: "set".to_owned()
        })
    );
}

#[test]
fn kept_volumes_are_not_expanded_and_new_ones_are_larger() {
    let mut fixture = ClusterFixture::healthy(3);
    (fixture.desired.storage_bytes, fixture.desired.volume_growth) = (32 * GIB, VolumeGrowth::Keep);
    assert_eq!(
        fixture.step(),
        Some(ReconcileStep::RecreateStatefulSet {
            uid: "set".to_owned()
        })
    );
}

#[test]
fn storage_class_without_expansion_is_reported_and_blocks_nothing() {
    let mut fixture = ClusterFixture::healthy(3).with_replicas(5);
    fixture.desired.storage_bytes = 32 * GIB;
    fixture.observed.expansion_refusal = Some("not allowed".to_owned());
    let plan = fixture.plan();
    assert_eq!(
        plan.refusals,
        [SpecRefusal::VolumeExpansion {
            reason: "not allowed".to_owned()
        }]
    );
    assert_eq!(plan.step, Some(scale(3, 4)));
}

#[test]
fn volume_is_never_shrunk() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.desired.storage_bytes = GIB;
    let plan = fixture.plan();
    assert_eq!(
        plan.refusals,
        [SpecRefusal::VolumeShrink {
            current_bytes: 16 * GIB,
            requested_bytes: GIB
        }]
    );
    assert_eq!(
        (
            plan.step,
            plan.effective_spec.unwrap().held_fields.storage_bytes
        ),
        (None, Some(16 * GIB))
    );
}

#[test]
fn unused_or_unbound_pvcs_do_not_block_the_expansion() {
    let mut fixture = ClusterFixture::healthy(1);
    fixture.desired.storage_bytes = 32 * GIB;
    let mut unused = pvc(1);
    unused.is_bound = false;
    fixture.observed.pvcs.insert(Ordinal(1), unused.clone());
    let expand = ReconcileStep::ExpandPvcs {
        ordinals: vec![Ordinal(0)],
        bytes: 32 * GIB,
    };
    assert_eq!(fixture.step(), Some(expand));
    fixture
        .observed
        .pvcs
        .get_mut(&Ordinal(0))
        .unwrap()
        .requested_bytes = Some(32 * GIB);
    assert!(matches!(
        fixture.step(),
        Some(ReconcileStep::RecreateStatefulSet { .. })
    ));
    // A PVC that a member waits for must not stay small.
    fixture.observed.pvcs.insert(Ordinal(0), unused);
    assert!(!matches!(
        fixture.step(),
        Some(ReconcileStep::RecreateStatefulSet { .. })
    ));
}

#[test]
fn rolling_update_of_an_etcd_druid_set_is_disabled_first() {
    let mut fixture = ClusterFixture::healthy(3)
        .with_new_template()
        .with_replicas(5);
    fixture.stateful_set_mut().update_strategy = UpdateStrategy::RollingUpdate;
    assert_eq!(fixture.step(), Some(ReconcileStep::DisableRollingUpdate));
}

#[test]
fn suspended_cluster_is_never_changed() {
    let mut fixture = ClusterFixture::healthy(3)
        .with_new_template()
        .with_replicas(5)
        .with_member_down(1)
        .with_finding(1, InitFinding::Corrupt);
    fixture.desired.requests.suspend = true;
    let plan = fixture.plan();
    assert_eq!(
        (plan.effective_spec, plan.step, plan.refusals),
        (None, None, vec![SpecRefusal::Suspended])
    );
}

#[test]
fn changed_spec_waits_for_the_reconcile_annotation() {
    let mut fixture = ClusterFixture::healthy(1).with_replicas(3);
    fixture.desired.generation = 2;
    let plan = fixture.plan();
    assert_eq!((&plan.effective_spec, &plan.step), (&None, &None));
    assert_eq!(
        plan.refusals,
        [SpecRefusal::ReconcileNotRequested { generation: 2 }]
    );
    fixture.desired.requests.reconcile = true;
    assert_eq!(fixture.step(), Some(scale(1, 2)));
    fixture.desired.requests.reconcile = false;
    fixture.policy.auto_reconcile = true;
    assert_eq!(fixture.step(), Some(scale(1, 2)));
}

#[test]
fn external_members_and_invalid_replicas_are_refused() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.desired.has_external_members = true;
    assert_eq!(fixture.plan().refusals, [SpecRefusal::ExternalMembers]);
    let mut fixture = ClusterFixture::healthy(3).with_replicas(0);
    fixture.desired.invalid_replicas = Some(-3);
    let plan = fixture.plan();
    assert_eq!(
        (plan.step, plan.refusals),
        (None, vec![SpecRefusal::InvalidReplicas { replicas: -3 }])
    );
}

#[test]
fn disabled_runtime_leaves_configuration_only() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.desired.requests.is_runtime_disabled = true;
    let plan = fixture.plan();
    let shape = plan.effective_spec.unwrap();
    assert_eq!(
        (plan.step, shape.runtime, shape.replicas, shape.cluster_size),
        (None, Runtime::Off, 0, 3)
    );
}

#[test]
fn cluster_that_joins_another_starts_with_one_waiting_pod() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.observed = Observation::default();
    fixture.desired.joins_existing_cluster = true;
    let shape = fixture.plan().effective_spec.unwrap();
    assert_eq!(
        (shape.replicas, shape.phase),
        (1, BootstrapPhase::Bootstrapped)
    );
}

#[test]
fn members_of_the_joined_cluster_count_and_are_never_removed() {
    let mut fixture = ClusterFixture::healthy(1).with_replicas(3);
    fixture.desired.joins_existing_cluster = true;
    for ordinal in [7, 8, 9] {
        let mut source = member(&fixture.desired, ordinal);
        (source.ordinal, source.name) = (None, format!("source-{ordinal}"));
        fixture.members_mut().push(source);
    }
    assert_eq!(fixture.step(), Some(scale(1, 2)));
    fixture.members_mut().last_mut().unwrap().status = None;
    assert_eq!(
        fixture.blocker(),
        Some(Blocker::ForeignMemberUnhealthy {
            member: member_id(9)
        })
    );
}

#[test]
fn members_are_queried_only_when_a_change_is_pending() {
    let mut fixture = ClusterFixture::healthy(3);
    assert!(!should_query_members(&fixture.world()));
    fixture.pod_mut(1).is_ready = false;
    assert!(should_query_members(&fixture.world()));
    let mut new = ClusterFixture::healthy(3);
    new.desired.generation += 1;
    new.policy.auto_reconcile = true;
    assert!(!should_query_members(&new.world()));
    let additional = vec!["http://10.0.0.1:2380".to_owned()];
    new.desired
        .peers
        .additional_urls
        .insert("main-0".to_owned(), additional);
    assert!(
        should_query_members(&new.world()),
        "additional peer URLs are visible in etcd only"
    );
    assert!(should_query_members(
        &ClusterFixture::healthy(3).with_new_template().world()
    ));
    assert!(should_query_members(
        &ClusterFixture::healthy(3).with_replicas(5).world()
    ));
}

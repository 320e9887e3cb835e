//! Properties of every decision, checked on random observations.

use mainstay_ids::ClusterId;
use proptest::prelude::*;

use super::fixture::*;
use crate::model::{
    InitFinding, ObservedEtcdMember, ObservedMembership, Ordinal, PeerTlsStage, PodDeletionReason,
    QuorumMembers, ReconcileStep, SnapshotRequest, UpdateStrategy, World, quorum,
};

/// Random state of one ordinal: pod, PVC and member.
#[derive(Clone, Debug)]
struct MemberSlot {
    pod: Option<(bool, bool, bool, Option<InitFinding>)>,
    pvc: Option<(bool, bool)>,
    member: Option<(bool, bool, bool)>,
}

fn any_finding() -> impl Strategy<Value = Option<InitFinding>> {
    prop_oneof![
        4 => Just(Some(InitFinding::CanStart)),
        1 => Just(None),
        1 => Just(Some(InitFinding::WaitingToJoin)),
        1 => Just(Some(InitFinding::NeedsRestore)),
        1 => Just(Some(InitFinding::Corrupt)),
        1 => Just(Some(InitFinding::Foreign)),
        1 => Just(Some(InitFinding::Refused)),
    ]
}

fn weighted_bool(probability: f64) -> impl Strategy<Value = bool> {
    prop::bool::weighted(probability)
}

fn member_slot() -> impl Strategy<Value = MemberSlot> {
    let pod = (
        weighted_bool(0.8),
        weighted_bool(0.1),
        weighted_bool(0.4),
        any_finding(),
    );
    let pvc_state = (weighted_bool(0.1), weighted_bool(0.1));
    let member = (weighted_bool(0.15), weighted_bool(0.8), weighted_bool(0.1));
    (
        prop::option::weighted(0.9, pod),
        prop::option::weighted(0.9, pvc_state),
        prop::option::weighted(0.85, member),
    )
        .prop_map(|(pod, pvc_state, member)| MemberSlot {
            pod,
            pvc: pvc_state,
            member,
        })
}

prop_compose! {
    fn any_cluster()(
        slots in prop::collection::vec(member_slot(), 0..7),
        size in 0_u32..6,
        replicas in 0_u32..6,
        leader in 0_u32..6,
        (is_known, is_observed, is_rolling, is_backed_up) in (weighted_bool(0.8), weighted_bool(0.9), weighted_bool(0.05), weighted_bool(0.5)),
        (has_set, is_accepted, tls, stage) in (weighted_bool(0.95), weighted_bool(0.8), any::<bool>(), 0_usize..3),
        (snapshot_age, running, image, bytes) in (0_i64..2_000, weighted_bool(0.2), any::<bool>(), 0_u32..3),
    ) -> ClusterFixture {
        let mut fixture = ClusterFixture::healthy(0).with_replicas(replicas);
        if is_backed_up {
            fixture = fixture.with_backup(snapshot_age);
        }
        if running {
            fixture.observed.snapshot_request = SnapshotRequest::Running;
        }
        fixture.desired.peers.tls = tls;
        fixture.desired.generation = if is_accepted { 1 } else { 2 };
        fixture.desired.storage_bytes = u64::from(bytes) * (16 << 30);
        if image {
            fixture.desired.etcd_image = "etcd:v3.6.0".to_owned();
        }
        let mut set = stateful_set(size);
        set.is_observed = is_observed;
        set.update_revision = Some(NEW_REVISION.to_owned());
        set.update_strategy = if is_rolling { UpdateStrategy::RollingUpdate } else { UpdateStrategy::OnDelete };
        set.peer_tls_stage = [PeerTlsStage::Off, PeerTlsStage::Prepared, PeerTlsStage::On][stage];
        fixture.observed.stateful_set = has_set.then_some(set);
        let mut list = Vec::new();
        for (ordinal, slot) in (0_u32..).zip(slots) {
            if let Some((is_ready, is_deleting, is_new, finding)) = slot.pod {
                let mut pod = pod(ordinal, if is_new { NEW_REVISION } else { OLD_REVISION });
                (pod.is_ready, pod.is_deleting, pod.finding) = (is_ready, is_deleting, finding);
                fixture.observed.pods.insert(Ordinal(ordinal), pod);
            }
            if let Some((is_deleting, is_lost)) = slot.pvc {
                let mut pvc_state = pvc(ordinal);
                (pvc_state.is_deleting, pvc_state.is_lost) = (is_deleting, is_lost);
                fixture.observed.pvcs.insert(Ordinal(ordinal), pvc_state);
            }
            if let Some((is_learner, is_serving, is_unnamed)) = slot.member {
                let mut member = member(&fixture.desired, ordinal);
                member.is_learner = is_learner;
                member.status = is_serving.then(|| answer(leader));
                if is_unnamed {
                    member.name.clear();
                }
                list.push(member);
            }
        }
        fixture.observed.membership = if is_known {
            ObservedMembership::Known(QuorumMembers { cluster_id: ClusterId(7), list })
        } else {
            ObservedMembership::NoQuorum { reason: "no leader".to_owned(), reachable: std::collections::BTreeMap::new() }
        };
        fixture
    }
}

/// Checks the invariants of the planned step.
fn check_step(fixture: &ClusterFixture) -> Result<(), TestCaseError> {
    let world = fixture.world();
    match &fixture.step() {
        Some(ReconcileStep::DeletePod {
            ordinal,
            uid,
            reason,
        }) => {
            prop_assert_eq!(&world.pod(*ordinal).unwrap().uid, uid);
            if world.is_responsive(*ordinal) {
                prop_assert_eq!(*reason, PodDeletionReason::Outdated);
                check_restart(&world, *ordinal)?;
            }
        }
        Some(ReconcileStep::RemoveMember { member, .. }) => {
            let mut list = world.members().unwrap().list.iter();
            let member = list.find(|one| one.id == *member).unwrap();
            prop_assert!(member.ordinal.is_some(), "not a member of this Etcd");
            if !member.is_learner {
                let (healthy, left) = world.count_voters_without(member);
                prop_assert!(healthy >= quorum(left) && world.has_quorum());
                prop_assert!(!member.is_leader() || world.pick_transferee(member).is_none());
            }
        }
        Some(ReconcileStep::Scale { from, to }) => check_resize(&world, *from, *to)?,
        // Without a quorum, only a PVC that has lost its volume may be deleted.
        Some(ReconcileStep::DeletePvc { ordinal, .. }) if world.members().is_none() => {
            prop_assert!(world.observed.pvcs[ordinal].is_lost);
            prop_assert!(!world.is_responsive(*ordinal));
        }
        Some(ReconcileStep::DeletePvc { ordinal, .. }) => {
            let member = world.member(*ordinal);
            let is_unused = member.is_none_or(|member| member.name.is_empty());
            prop_assert!(world.members().is_some() && is_unused, "still a member");
            prop_assert!(!world.is_responsive(*ordinal));
        }
        Some(ReconcileStep::AddLearner { ordinal }) => {
            prop_assert!(world.learner().is_none() && world.has_quorum());
            prop_assert!(world.member(*ordinal).is_none());
        }
        Some(ReconcileStep::Promote { member, .. }) => {
            let learner = world.learner().unwrap();
            prop_assert!(learner.id == *member && learner.is_healthy());
        }
        Some(ReconcileStep::MoveLeader { from, to }) => {
            prop_assert!(world.leader().is_some_and(|leader| leader.id == *from));
            let mut voters = world.voters();
            prop_assert!(voters.any(|voter| voter.id == *to && voter.is_healthy() && to != from));
        }
        _ => {}
    }
    Ok(())
}

/// Checks the deletion of a pod that serves.
fn check_restart(world: &World<'_>, ordinal: Ordinal) -> Result<(), TestCaseError> {
    let voters = world.voters().count();
    prop_assert_eq!(
        world.first_unhealthy(None),
        None,
        "another member is unhealthy"
    );
    prop_assert_eq!(
        world.first_missing_pod(),
        None,
        "another pod is missing already"
    );
    prop_assert!(
        voters <= 2 || voters > quorum(voters),
        "one voter less breaks quorum"
    );
    let leads = world
        .member(ordinal)
        .is_some_and(ObservedEtcdMember::is_leader);
    prop_assert!(
        !leads || voters == 1,
        "the leader was not moved although another voter exists"
    );
    Ok(())
}

/// The number of pods that cover all known or registered members.
fn count_known_members(world: &World<'_>) -> u32 {
    let held = world
        .observed
        .leases
        .iter()
        .filter(|(_, lease)| lease.holder.is_some());
    let known: Vec<Ordinal> = match world.members() {
        Some(members) => members.list.iter().filter_map(|one| one.ordinal).collect(),
        None => held.map(|(ordinal, _)| *ordinal).collect(),
    };
    known.iter().max().map_or(0, |last| last.0 + 1)
}

fn check_resize(world: &World<'_>, from: u32, to: u32) -> Result<(), TestCaseError> {
    prop_assert_eq!(from, world.size());
    if to < from && to > 0 {
        prop_assert_eq!(to, from - 1);
        let is_removed = world.members().is_some() && world.member(Ordinal(to)).is_none();
        prop_assert!(is_removed, "still a member");
    }
    if to == 0 {
        prop_assert_eq!(world.desired.replicas, 0);
    }
    // Pods of existing members may be restored at once; new members are added one at a time.
    if to > from && from > 0 && to > count_known_members(world) {
        prop_assert_eq!(to, from + 1);
        prop_assert_eq!(world.first_unhealthy(None), None);
        prop_assert!(world.learner().is_none());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8_000, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn no_step_loses_quorum_or_changes_foreign_objects(fixture in any_cluster()) {
        check_step(&fixture)?;
    }

    #[test]
    fn unaccepted_spec_changes_no_object(fixture in any_cluster()) {
        let plan = fixture.plan();
        if fixture.desired.generation == 2 {
            prop_assert_eq!(plan.effective_spec, None);
            let is_change = matches!(plan.step, Some(ReconcileStep::Scale { .. } | ReconcileStep::ExpandPvcs { .. } | ReconcileStep::RecreateStatefulSet { .. }));
            prop_assert!(!is_change, "{:?}", plan.step);
        }
    }

    #[test]
    fn replicas_change_only_by_a_scale_step(fixture in any_cluster()) {
        let plan = fixture.plan();
        if let (Some(shape), Some(set)) = (&plan.effective_spec, &fixture.observed.stateful_set) {
            let is_resize = matches!(plan.step, Some(ReconcileStep::Scale { .. }));
            prop_assert!(is_resize || shape.replicas == set.replicas);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn equal_observations_give_equal_plans(fixture in any_cluster()) {
        prop_assert_eq!(fixture.plan(), fixture.clone().plan());
    }
}

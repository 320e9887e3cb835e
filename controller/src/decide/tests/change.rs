//! More members, fewer, none; larger volumes; whose word counts.

use mainstay_crds::etcd::VolumeGrowth;

use super::fixture::*;
use crate::decide::{
    Blocker, Change, Phase, Plan, Refusal, Removal, Restart, Runtime, Step, Useless, is_moving,
};
use crate::observe::{Finding, Observation, Ordinal, SnapshotRequest, Strategy};

const GIB: u64 = 1 << 30;

fn resize(from: u32, to: u32) -> Step {
    Step::Resize { from, to }
}

#[test]
fn a_new_cluster_is_founded_by_all_its_members_at_once() {
    let mut scene = Scene::whole(3);
    scene.seen = Observation::default();
    scene.known.observed_generation = None;
    let Plan { shape, step, .. } = scene.plan();
    let shape = shape.unwrap();
    assert_eq!(
        (step, shape.replicas, shape.phase),
        (None, 3, Phase::Founding)
    );
}

#[test]
fn a_cluster_nobody_has_heard_of_yet_is_waited_for() {
    let mut scene = Scene::whole(3);
    scene.set_mut().noted_size = None;
    scene.seen.leases.clear();
    assert_eq!(scene.silent().waits(), Some(Blocker::Founding));
}

#[test]
fn a_lost_set_is_made_again_around_its_pods() {
    let mut scene = Scene::whole(3).replicas(5);
    scene.seen.set = None;
    let shape = scene.plan().shape.unwrap();
    assert_eq!((shape.replicas, shape.phase), (3, Phase::Formed));
}

#[test]
fn a_cluster_grows_by_one_pod_at_a_time() {
    assert_eq!(Scene::whole(1).replicas(3).step(), Some(resize(1, 2)));
    let shape = Scene::whole(3).replicas(5).plan().shape.unwrap();
    assert_eq!((shape.replicas, shape.size), (4, 4));
}

#[test]
fn a_new_pod_is_added_as_a_learner_before_the_next_comes() {
    let scene = Scene::whole(1).replicas(3).waiting_pod(1);
    assert_eq!(
        scene.step(),
        Some(Step::AddLearner {
            ordinal: Ordinal(1)
        })
    );
}

#[test]
fn a_learner_is_waited_for_then_promoted() {
    let mut scene = Scene::whole(1).replicas(3).waiting_pod(1);
    let mut learner = member(&scene.wanted, 1);
    (learner.is_learner, learner.answer, learner.name) = (true, None, String::new());
    scene.members_mut().push(learner);
    assert_eq!(
        scene.waits(),
        Some(Blocker::LearnerBehind {
            ordinal: Ordinal(1)
        })
    );
    scene.member_mut(1).answer = Some(answer(0));
    assert_eq!(
        scene.step(),
        Some(Step::Promote {
            member: id(1),
            ordinal: Ordinal(1)
        })
    );
}

#[test]
fn the_pod_of_a_learner_that_cannot_start_is_made_anew_from_a_corrected_template() {
    let mut scene = Scene::whole(1).replicas(3).waiting_pod(1).outdated();
    let mut learner = member(&scene.wanted, 1);
    (learner.is_learner, learner.answer, learner.name) = (true, None, String::new());
    scene.members_mut().push(learner);
    let goes = Step::DeletePod {
        ordinal: Ordinal(1),
        uid: scene.seen.pods[&Ordinal(1)].uid.clone(),
        because: Restart::OutdatedAndUnwell,
    };
    assert_eq!(scene.step(), Some(goes));
    scene.set_mut().is_observed = false;
    let ordinal = Ordinal(1);
    assert_eq!(scene.waits(), Some(Blocker::LearnerBehind { ordinal }));
}

#[test]
fn a_learner_of_somebody_else_is_not_ours_to_promote() {
    let mut scene = Scene::whole(1).replicas(3).waiting_pod(1);
    let mut strange = member(&scene.wanted, 9);
    (strange.is_learner, strange.ordinal) = (true, None);
    scene.members_mut().push(strange);
    assert_eq!(
        scene.waits(),
        Some(Blocker::StrangeLearner { member: id(9) })
    );
}

#[test]
fn a_cluster_that_is_not_whole_does_not_grow() {
    let scene = Scene::whole(3).replicas(5).down(1);
    assert_eq!(
        scene.waits(),
        Some(Blocker::MemberUnwell {
            ordinal: Ordinal(1)
        })
    );
    assert_eq!(
        Scene::whole(3).replicas(5).silent().waits(),
        Some(Blocker::NoQuorum)
    );
}

#[test]
fn what_a_member_left_behind_makes_room_when_its_place_is_needed() {
    let mut scene = Scene::whole(1);
    scene.seen.claims.insert(Ordinal(1), claim(1));
    assert!(scene.plan().is_settled(), "a claim nobody needs is kept");
    let discard = Step::DiscardClaim {
        ordinal: Ordinal(1),
        uid: "claim-1".to_owned(),
        pod_uid: None,
        because: Useless::LeftBehind,
    };
    let mut scene = scene.replicas(3);
    assert_eq!(scene.step(), Some(discard));
    scene.seen.claims.get_mut(&Ordinal(1)).unwrap().is_deleting = true;
    assert_eq!(
        scene.waits(),
        Some(Blocker::ClaimGoes {
            ordinal: Ordinal(1)
        })
    );
}

#[test]
fn a_member_is_removed_before_its_pod_goes() {
    let scene = Scene::whole(3).replicas(1);
    let removal = Step::RemoveMember {
        member: id(2),
        ordinal: Ordinal(2),
        because: Removal::ScaleIn,
    };
    assert_eq!(scene.step(), Some(removal));
    assert_eq!(scene.without_member(2).step(), Some(resize(3, 2)));
}

#[test]
fn a_leader_hands_over_before_it_is_removed() {
    let scene = Scene::whole(3).replicas(1).leader(2);
    assert_eq!(
        scene.step(),
        Some(Step::MoveLeader {
            from: id(2),
            to: id(0)
        })
    );
}

#[test]
fn a_removal_that_costs_the_quorum_is_refused_with_the_numbers() {
    let scene = Scene::whole(3).replicas(2).down(0).leader(1);
    let blocker = Blocker::QuorumAtRisk {
        ordinal: Ordinal(2),
        well: 1,
        voters: 2,
    };
    assert_eq!(scene.waits(), Some(blocker));
    let removal = Step::RemoveMember {
        member: id(2),
        ordinal: Ordinal(2),
        because: Removal::ScaleIn,
    };
    assert_eq!(
        Scene::whole(3).replicas(2).down(2).step(),
        Some(removal),
        "the sick one may go"
    );
}

#[test]
fn growth_that_is_called_off_takes_back_the_pod_that_never_joined() {
    let scene = Scene::whole(3).waiting_pod(3);
    assert_eq!(scene.step(), Some(resize(4, 3)));
}

#[test]
fn a_member_whose_pod_is_gone_already_is_removed() {
    let mut scene = Scene::whole(3);
    let stray = member(&scene.wanted, 3);
    scene.members_mut().push(stray);
    let removal = Step::RemoveMember {
        member: id(3),
        ordinal: Ordinal(3),
        because: Removal::ScaleIn,
    };
    assert_eq!(scene.step(), Some(removal));
}

#[test]
fn nobody_sleeps_before_a_snapshot_is_taken() {
    let before = Change::Hibernation;
    let mut scene = Scene::whole(3).replicas(0).backed_up(3_600);
    assert_eq!(scene.step(), Some(Step::Snapshot { before }));
    scene.seen.snapshot = SnapshotRequest::Running;
    assert_eq!(scene.waits(), Some(Blocker::SnapshotRuns { before }));
    assert_eq!(
        scene.clone().silent().waits(),
        Some(Blocker::SnapshotRuns { before })
    );
    assert_eq!(scene.backed_up(5).step(), Some(resize(3, 0)));
}

#[test]
fn a_cluster_without_a_store_sleeps_at_once() {
    assert_eq!(Scene::whole(3).replicas(0).step(), Some(resize(3, 0)));
}

#[test]
fn a_cluster_that_cannot_be_backed_up_does_not_sleep() {
    let scene = Scene::whole(3).replicas(0).backed_up(3_600).silent();
    assert_eq!(scene.waits(), Some(Blocker::NoQuorum));
}

#[test]
fn a_cluster_wakes_with_all_the_members_it_had() {
    let mut scene = Scene::whole(3).replicas(0);
    scene.set_mut().replicas = 0;
    scene.seen.pods.clear();
    scene.seen.membership = crate::observe::Membership::Unasked;
    assert!(scene.plan().is_settled(), "asleep is at rest");
    assert_eq!(scene.plan().shape.unwrap().size, 3);
    assert_eq!(
        scene.clone().replicas(1).step(),
        Some(resize(0, 3)),
        "one of three has no quorum"
    );
    assert_eq!(scene.clone().replicas(5).step(), Some(resize(0, 3)));
    scene.set_mut().noted_size = None;
    assert_eq!(
        scene.replicas(1).step(),
        Some(resize(0, 3)),
        "etcd-druid notes nothing, its leases tell"
    );
}

#[test]
fn larger_volumes_are_asked_for_before_the_template_changes() {
    let mut scene = Scene::whole(3);
    scene.wanted.storage_bytes = 32 * GIB;
    let all = vec![Ordinal(0), Ordinal(1), Ordinal(2)];
    let plan = scene.plan();
    assert_eq!(
        plan.step,
        Some(Step::ExpandClaims {
            ordinals: all,
            bytes: 32 * GIB
        })
    );
    assert_eq!(plan.shape.unwrap().holds.storage_bytes, Some(16 * GIB));
    for claim in scene.seen.claims.values_mut() {
        claim.requested_bytes = Some(32 * GIB);
    }
    assert_eq!(
        scene.step(),
        Some(Step::RecreateSet {
            uid: "set".to_owned()
        })
    );
}

#[test]
fn volumes_that_are_to_stay_stay_and_new_ones_are_larger() {
    let mut scene = Scene::whole(3);
    (scene.wanted.storage_bytes, scene.wanted.growth) = (32 * GIB, VolumeGrowth::Keep);
    assert_eq!(
        scene.step(),
        Some(Step::RecreateSet {
            uid: "set".to_owned()
        })
    );
}

#[test]
fn a_storage_class_that_cannot_expand_is_told_and_stops_nothing_else() {
    let mut scene = Scene::whole(3).replicas(5);
    scene.wanted.storage_bytes = 32 * GIB;
    scene.seen.expansion_refused = Some("not allowed".to_owned());
    let plan = scene.plan();
    assert_eq!(
        plan.refusals,
        [Refusal::VolumeExpansion {
            why: "not allowed".to_owned()
        }]
    );
    assert_eq!(plan.step, Some(resize(3, 4)));
}

#[test]
fn a_volume_does_not_shrink() {
    let mut scene = Scene::whole(3);
    scene.wanted.storage_bytes = GIB;
    let plan = scene.plan();
    assert_eq!(
        plan.refusals,
        [Refusal::SmallerVolume {
            have: 16 * GIB,
            want: GIB
        }]
    );
    assert_eq!(
        (plan.step, plan.shape.unwrap().holds.storage_bytes),
        (None, Some(16 * GIB))
    );
}

#[test]
fn claims_that_nobody_uses_or_that_are_not_bound_do_not_keep_the_others_small() {
    let mut scene = Scene::whole(1);
    scene.wanted.storage_bytes = 32 * GIB;
    let mut left = claim(1);
    left.is_bound = false;
    scene.seen.claims.insert(Ordinal(1), left.clone());
    let grows = Step::ExpandClaims {
        ordinals: vec![Ordinal(0)],
        bytes: 32 * GIB,
    };
    assert_eq!(scene.step(), Some(grows));
    scene
        .seen
        .claims
        .get_mut(&Ordinal(0))
        .unwrap()
        .requested_bytes = Some(32 * GIB);
    assert!(matches!(scene.step(), Some(Step::RecreateSet { .. })));
    // One that a member waits for is not left small.
    scene.seen.claims.insert(Ordinal(0), left);
    assert!(!matches!(scene.step(), Some(Step::RecreateSet { .. })));
}

#[test]
fn a_set_of_etcd_druid_is_stopped_before_anything_else_changes() {
    let mut scene = Scene::whole(3).outdated().replicas(5);
    scene.set_mut().strategy = Strategy::Rolling;
    assert_eq!(scene.step(), Some(Step::StopRolling));
}

#[test]
fn a_suspended_cluster_is_not_touched_whatever_happens_to_it() {
    let mut scene = Scene::whole(3)
        .outdated()
        .replicas(5)
        .down(1)
        .finding(1, Finding::Corrupt);
    scene.wanted.requests.suspend = true;
    let plan = scene.plan();
    assert_eq!(
        (plan.shape, plan.step, plan.refusals),
        (None, None, vec![Refusal::Suspended])
    );
}

#[test]
fn a_changed_spec_waits_until_somebody_asks() {
    let mut scene = Scene::whole(1).replicas(3);
    scene.wanted.generation = 2;
    let plan = scene.plan();
    assert_eq!((&plan.shape, &plan.step), (&None, &None));
    assert_eq!(plan.refusals, [Refusal::NotRequested { generation: 2 }]);
    scene.wanted.requests.reconcile = true;
    assert_eq!(scene.step(), Some(resize(1, 2)));
    scene.wanted.requests.reconcile = false;
    scene.policy.auto_reconcile = true;
    assert_eq!(scene.step(), Some(resize(1, 2)));
}

#[test]
fn members_of_somebody_else_and_nonsense_are_left_alone() {
    let mut scene = Scene::whole(3);
    scene.wanted.is_external = true;
    assert_eq!(scene.plan().refusals, [Refusal::ExternalMembers]);
    let mut scene = Scene::whole(3).replicas(0);
    scene.wanted.impossible_replicas = Some(-3);
    let plan = scene.plan();
    assert_eq!(
        (plan.step, plan.refusals),
        (None, vec![Refusal::ImpossibleReplicas { replicas: -3 }])
    );
}

#[test]
fn without_runtime_there_is_configuration_only() {
    let mut scene = Scene::whole(3);
    scene.wanted.requests.no_runtime = true;
    let plan = scene.plan();
    let shape = plan.shape.unwrap();
    assert_eq!(
        (plan.step, shape.runtime, shape.replicas, shape.size),
        (None, Runtime::Off, 0, 3)
    );
}

#[test]
fn a_cluster_that_joins_another_begins_with_one_pod_that_waits() {
    let mut scene = Scene::whole(3);
    scene.seen = Observation::default();
    scene.wanted.joins_existing = true;
    let shape = scene.plan().shape.unwrap();
    assert_eq!((shape.replicas, shape.phase), (1, Phase::Formed));
}

#[test]
fn members_of_the_cluster_that_is_joined_count_and_are_never_removed() {
    let mut scene = Scene::whole(1).replicas(3);
    scene.wanted.joins_existing = true;
    for ordinal in [7, 8, 9] {
        let mut source = member(&scene.wanted, ordinal);
        (source.ordinal, source.name) = (None, format!("source-{ordinal}"));
        scene.members_mut().push(source);
    }
    assert_eq!(scene.step(), Some(resize(1, 2)));
    scene.members_mut().last_mut().unwrap().answer = None;
    assert_eq!(
        scene.waits(),
        Some(Blocker::StrangerUnwell { member: id(9) })
    );
}

#[test]
fn etcd_is_asked_only_when_something_moves() {
    let mut scene = Scene::whole(3);
    assert!(!is_moving(&scene.world()));
    scene.pod_mut(1).is_ready = false;
    assert!(is_moving(&scene.world()));
    let mut new = Scene::whole(3);
    new.wanted.generation += 1;
    new.policy.auto_reconcile = true;
    assert!(!is_moving(&new.world()));
    let further = vec!["http://10.0.0.1:2380".to_owned()];
    new.wanted
        .peers
        .additional
        .insert("main-0".to_owned(), further);
    assert!(is_moving(&new.world()), "only etcd knows them");
    assert!(is_moving(&Scene::whole(3).outdated().world()));
    assert!(is_moving(&Scene::whole(3).replicas(5).world()));
}

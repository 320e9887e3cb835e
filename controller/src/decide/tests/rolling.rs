//! Replacing pods, and what comes before a new etcd.

use super::fixture::*;
use crate::decide::{Blocker, Change, Refusal, Restart, Step, UpgradeRule};
use crate::observe::{Membership, Ordinal, PeerStage, SnapshotRequest};
use crate::validate::Drift;

fn deletes(ordinal: u32, because: Restart) -> Step {
    let uid = format!("pod-{ordinal}-{OLD}");
    Step::DeletePod {
        ordinal: Ordinal(ordinal),
        uid,
        because,
    }
}

#[test]
fn a_whole_cluster_is_left_alone() {
    for replicas in [1, 2, 3, 5] {
        let plan = Scene::whole(replicas).plan();
        assert!(plan.is_settled(), "{plan:?}");
    }
}

#[test]
fn followers_go_first_the_highest_ordinal_before_the_others() {
    assert_eq!(
        Scene::whole(3).outdated().step(),
        Some(deletes(2, Restart::Outdated))
    );
    assert_eq!(
        Scene::whole(3).outdated().leader(2).step(),
        Some(deletes(1, Restart::Outdated))
    );
}

#[test]
fn the_leader_hands_over_before_it_goes() {
    let scene = Scene::whole(3).outdated().updated(1).updated(2);
    assert_eq!(
        scene.step(),
        Some(Step::MoveLeader {
            from: id(0),
            to: id(1)
        })
    );
    assert_eq!(scene.leader(1).step(), Some(deletes(0, Restart::Outdated)));
}

#[test]
fn a_single_member_is_restarted_where_it_leads() {
    assert_eq!(
        Scene::whole(1).outdated().step(),
        Some(deletes(0, Restart::Outdated))
    );
}

#[test]
fn who_takes_no_part_goes_first() {
    let scene = Scene::whole(3).outdated().down(1);
    assert_eq!(scene.step(), Some(deletes(1, Restart::OutdatedAndUnwell)));
}

#[test]
fn a_pod_that_is_not_ready_but_answers_is_not_taken_for_dead() {
    let mut scene = Scene::whole(3).outdated();
    scene.pod_mut(1).is_ready = false;
    assert_eq!(
        scene.waits(),
        Some(Blocker::MemberUnwell {
            ordinal: Ordinal(1)
        })
    );
}

#[test]
fn a_bad_template_stops_at_the_first_pod() {
    let scene = Scene::whole(3).outdated().updated(2).down(2);
    assert_eq!(
        scene.waits(),
        Some(Blocker::UpdatedUnwell {
            ordinal: Ordinal(2)
        })
    );
}

#[test]
fn a_pod_that_was_deleted_is_waited_for() {
    let mut scene = Scene::whole(3).outdated();
    scene.seen.pods.remove(&Ordinal(2));
    assert_eq!(
        scene.waits(),
        Some(Blocker::PodReturns {
            ordinal: Ordinal(2)
        })
    );
    let mut scene = Scene::whole(3).outdated();
    scene.pod_mut(2).is_deleting = true;
    assert_eq!(
        scene.waits(),
        Some(Blocker::PodReturns {
            ordinal: Ordinal(2)
        })
    );
}

#[test]
fn a_template_the_controller_of_sets_has_not_seen_tells_nothing() {
    let mut scene = Scene::whole(3);
    scene.set_mut().is_observed = false;
    assert_eq!(scene.waits(), Some(Blocker::SetUnobserved));
}

#[test]
fn pods_that_never_worked_are_all_replaced_although_none_gets_well() {
    let mut scene = Scene::whole(3).outdated().silent();
    for ordinal in 0..3 {
        scene.pod_mut(ordinal).is_ready = false;
    }
    assert_eq!(scene.step(), Some(deletes(0, Restart::OutdatedAndUnwell)));
    let mut scene = scene.updated(0);
    scene.pod_mut(0).is_ready = false;
    assert_eq!(scene.step(), Some(deletes(1, Restart::OutdatedAndUnwell)));
}

#[test]
fn ready_pods_are_not_touched_while_nobody_answers() {
    let scene = Scene::whole(3).outdated().silent();
    assert_eq!(scene.waits(), Some(Blocker::NoQuorum));
}

#[test]
fn who_answers_without_a_quorum_is_not_taken_for_dead() {
    let mut scene = Scene::whole(3).outdated();
    scene.pod_mut(2).is_ready = false;
    scene.seen.membership = Membership::Silent {
        why: "no leader".to_owned(),
        alive: [(Ordinal(2), 0)].into(),
    };
    assert_eq!(scene.waits(), Some(Blocker::NoQuorum));
}

#[test]
fn a_rollout_that_began_goes_on_although_the_spec_has_changed_since() {
    let mut scene = Scene::whole(3).outdated();
    scene.wanted.generation = 2;
    let plan = scene.plan();
    assert_eq!(plan.shape, None);
    assert_eq!(plan.refusals, [Refusal::NotRequested { generation: 2 }]);
    assert_eq!(plan.step, Some(deletes(2, Restart::Outdated)));
}

fn new_image(image: &str) -> Scene {
    let mut scene = Scene::whole(3);
    scene.wanted.etcd_image = image.to_owned();
    scene
}

#[test]
fn another_etcd_waits_for_a_fresh_snapshot_and_the_image_stays() {
    let scene = new_image("etcd:v3.6.0").backed_up(3_600);
    let plan = scene.plan();
    assert_eq!(
        plan.step,
        Some(Step::Snapshot {
            before: Change::Upgrade
        })
    );
    assert_eq!(plan.shape.unwrap().holds.etcd_image.as_deref(), Some(IMAGE));
    let fresh = scene.backed_up(60).plan();
    assert_eq!(
        (fresh.step, fresh.shape.unwrap().holds.etcd_image),
        (None, None)
    );
}

#[test]
fn a_snapshot_that_fails_stops_the_upgrade_and_says_why() {
    let mut scene = new_image("etcd:v3.6.0").backed_up(3_600);
    let retry_at = ago(-30);
    scene.seen.snapshot = SnapshotRequest::Failed {
        why: "403".to_owned(),
        retry_at,
    };
    let before = Change::Upgrade;
    let blocker = Blocker::SnapshotFailed {
        before,
        why: "403".to_owned(),
        retry_at,
    };
    assert_eq!(scene.waits(), Some(blocker));
    scene.seen.snapshot = SnapshotRequest::Failed {
        why: "403".to_owned(),
        retry_at: ago(1),
    };
    assert_eq!(scene.step(), Some(Step::Snapshot { before }));
}

/// Pods are out of date, and the last full snapshot is an hour old.
fn unsaved() -> Scene {
    Scene::whole(3).outdated().backed_up(3_600)
}

fn goes(scene: &Scene) -> Option<u32> {
    match scene.step() {
        Some(Step::DeletePod { ordinal, .. }) => Some(ordinal.0),
        _ => None,
    }
}

#[test]
fn the_first_pod_is_replaced_after_the_snapshot_was_answered() {
    let before = Change::Rollout;
    let mut scene = unsaved();
    assert_eq!(scene.step(), Some(Step::Snapshot { before }));
    scene.seen.snapshot = SnapshotRequest::Running;
    assert_eq!(scene.waits(), Some(Blocker::SnapshotRuns { before }));
    scene.seen.snapshot = SnapshotRequest::Taken { at: ago(1) };
    assert_eq!(goes(&scene), Some(2), "its Lease may come later");
    assert_eq!(goes(&unsaved().backed_up(60)), Some(2));
}

#[test]
fn a_rollout_does_not_depend_on_the_snapshot_before_it() {
    let mut scene = unsaved();
    scene.seen.snapshot = SnapshotRequest::Failed {
        why: "403".to_owned(),
        retry_at: ago(-30),
    };
    assert_eq!(goes(&scene), Some(2));
    assert_eq!(
        goes(&Scene::whole(3).outdated()),
        Some(2),
        "without a store"
    );
}

#[test]
fn there_is_one_snapshot_for_a_rollout_not_one_for_each_pod() {
    assert_eq!(goes(&unsaved().updated(2)), Some(1));
    let sick = unsaved().down(1);
    assert_eq!(
        goes(&sick),
        Some(1),
        "nobody misses the one that takes no part"
    );
}

/// A StatefulSet as etcd-druid made it, which rolls no more.
fn wrapped() -> Scene {
    let mut scene = Scene::whole(3).backed_up(3_600);
    let set = scene.set_mut();
    (set.is_ours, set.noted_size) = (false, None);
    set.etcd_image = Some("etcd-wrapper:v0.6.2".to_owned());
    scene
}

#[test]
fn what_etcd_druid_made_stays_in_whole_until_our_etcd_may_come_and_changes_in_whole() {
    let scene = wrapped();
    let plan = scene.plan();
    let before = Change::Upgrade;
    assert_eq!(plan.step, Some(Step::Snapshot { before }));
    assert!(plan.shape.unwrap().holds.everything);
    let plan = scene.backed_up(60).plan();
    let holds = plan.shape.unwrap().holds;
    assert_eq!((holds.everything, holds.etcd_image), (false, None));
}

#[test]
fn what_etcd_druid_made_is_not_touched_while_our_etcd_cannot_follow_its_own() {
    let mut scene = wrapped().backed_up(60).replicas(5);
    for member in scene.members_mut() {
        member.answer.as_mut().unwrap().version = "3.3.10".to_owned();
    }
    let plan = scene.plan();
    let on = Blocker::Adoption;
    assert_eq!(plan.step, Some(Step::Wait { on }), "nor scaled");
    assert!(plan.shape.unwrap().holds.everything);
    assert!(matches!(plan.refusals[..], [Refusal::Upgrade { .. }]));
}

#[test]
fn an_image_of_ours_is_held_alone() {
    let holds = new_image("etcd:v3.6.0").backed_up(3_600).plan().shape;
    assert!(!holds.unwrap().holds.everything);
}

#[test]
fn pods_somebody_has_stopped_stay_so_while_changes_by_hand_are_left_alone() {
    let mut scene = Scene::whole(3);
    scene.set_mut().replicas = 0;
    scene.seen.pods.clear();
    assert!(matches!(
        scene.step(),
        Some(Step::Resize { from: 0, to: 3 })
    ));
    scene.wanted.requests.drift = Drift::Left;
    let plan = scene.plan();
    assert_eq!((plan.step, plan.shape), (None, None));
    assert_eq!(plan.refusals, [Refusal::StoppedByHand]);
    scene.wanted.requests.reconcile = true;
    assert!(matches!(
        scene.step(),
        Some(Step::Resize { from: 0, to: 3 })
    ));
    scene.wanted.requests.reconcile = false;
    (scene.wanted.generation, scene.policy.auto_reconcile) = (2, true);
    assert!(matches!(
        scene.step(),
        Some(Step::Resize { from: 0, to: 3 })
    ));
}

#[test]
fn a_person_may_go_without_the_snapshot_for_one_generation() {
    let mut scene = new_image("etcd:v3.6.0").backed_up(3_600);
    scene.wanted.requests.without_snapshot = Some(1);
    let plan = scene.plan();
    assert_eq!(plan.step, None);
    assert_eq!(plan.shape.unwrap().holds.etcd_image, None);
    scene.policy.auto_reconcile = true;
    scene.wanted.generation = 2;
    let before = Change::Upgrade;
    assert_eq!(scene.step(), Some(Step::Snapshot { before }));
}

#[test]
fn what_runs_decides_which_etcd_may_follow_not_what_the_spec_said() {
    let mut scene = new_image("etcd:v3.6.0");
    for member in scene.members_mut() {
        member.answer.as_mut().unwrap().version = "3.5.21".to_owned();
    }
    let plan = scene.plan();
    let refusal = Refusal::Upgrade {
        from: "3.5.21".to_owned(),
        to: "3.6.0".to_owned(),
        rule: UpgradeRule::LatePatchFirst,
    };
    assert_eq!(plan.refusals, [refusal]);
    assert_eq!(plan.shape.unwrap().holds.etcd_image.as_deref(), Some(IMAGE));
}

#[test]
fn an_image_nobody_can_judge_is_let_through() {
    assert!(new_image("etcd:latest").plan().is_settled());
}

#[test]
fn a_cluster_that_is_down_takes_any_image_that_may_follow() {
    let mut scene = new_image("etcd:v3.6.0").backed_up(86_400).silent();
    assert_eq!(scene.plan().shape.unwrap().holds.etcd_image, None);
    scene.known.version = crate::decide::upgrade::Version::parse("3.4.34");
    assert_eq!(
        scene.plan().shape.unwrap().holds.etcd_image.as_deref(),
        Some(IMAGE)
    );
}

#[test]
fn a_member_that_listens_elsewhere_is_announced_before_the_next_pod_goes() {
    let mut scene = Scene::whole(3).outdated().updated(2);
    scene.wanted.peers.tls = true;
    scene.set_mut().peer_stage = PeerStage::On;
    let member = id(2);
    let announced = Step::UpdatePeerUrls {
        member,
        ordinal: Ordinal(2),
    };
    assert_eq!(scene.step(), Some(announced));
    scene.member_mut(2).peer_urls = scene.wanted.peer_urls(Ordinal(2), PeerStage::On);
    assert_eq!(scene.step(), Some(deletes(1, Restart::Outdated)));
}

fn stage(scene: &Scene) -> PeerStage {
    scene.plan().shape.unwrap().peer_stage
}

#[test]
fn members_get_certificates_before_anybody_listens_encrypted() {
    let mut scene = Scene::whole(3);
    scene.wanted.peers.tls = true;
    assert_eq!(stage(&scene), PeerStage::Prepared);
    scene.set_mut().peer_stage = PeerStage::Prepared;
    assert_eq!(
        stage(&scene.clone().outdated()),
        PeerStage::Prepared,
        "not rolled out"
    );
    assert_eq!(
        stage(&scene.clone().down(1)),
        PeerStage::Prepared,
        "one is not well"
    );
    assert_eq!(stage(&scene), PeerStage::On);
}

#[test]
fn certificates_are_taken_away_after_everybody_listens_plain() {
    let mut scene = Scene::whole(3);
    scene.set_mut().peer_stage = PeerStage::On;
    assert_eq!(stage(&scene), PeerStage::Prepared);
    scene.set_mut().peer_stage = PeerStage::Prepared;
    assert_eq!(stage(&scene), PeerStage::Off);
    scene.member_mut(0).peer_urls = scene.wanted.peer_urls(Ordinal(0), PeerStage::On);
    assert_eq!(
        stage(&scene),
        PeerStage::Prepared,
        "one is still found encrypted"
    );
}

#[test]
fn a_cluster_that_sleeps_or_has_no_quorum_goes_on_listening_where_it_is_looked_for() {
    let mut scene = Scene::whole(3).replicas(0);
    (scene.set_mut().peer_stage, scene.set_mut().replicas) = (PeerStage::On, 0);
    scene.seen.pods.clear();
    let asleep = scene.silent();
    assert_eq!(stage(&asleep), PeerStage::On, "asleep");
    assert_eq!(stage(&asleep.replicas(3)), PeerStage::On, "waking");
    let mut scene = Scene::whole(3);
    scene.set_mut().peer_stage = PeerStage::On;
    assert_eq!(stage(&scene.silent()), PeerStage::On, "no quorum");
}

#[test]
fn a_single_member_has_nobody_to_lose() {
    let mut scene = Scene::whole(1);
    scene.wanted.peers.tls = true;
    assert_eq!(stage(&scene), PeerStage::On);
}

#[test]
fn nothing_is_over_before_the_last_pod_is_back() {
    let mut scene = Scene::whole(3);
    scene.pod_mut(1).is_ready = false;
    let on = Blocker::MemberUnwell {
        ordinal: Ordinal(1),
    };
    assert_eq!(scene.waits(), Some(on.clone()));
    let mut going = Scene::whole(3);
    going.pod_mut(1).is_deleting = true;
    assert_eq!(going.waits(), Some(on), "the last one goes, ready or not");
    assert_eq!(Scene::whole(3).step(), None);
}

#[test]
fn an_encrypted_address_of_the_users_own_does_not_stop_the_switch() {
    let mut scene = Scene::whole(3);
    scene.wanted.peers.tls = true;
    scene.set_mut().peer_stage = PeerStage::Prepared;
    for ordinal in 0..3 {
        let own = vec![format!("https://outside-{ordinal}:2380")];
        let name = scene.wanted.member(Ordinal(ordinal));
        scene.wanted.peers.additional.insert(name, own);
        scene.member_mut(ordinal).peer_urls = scene
            .wanted
            .peer_urls(Ordinal(ordinal), PeerStage::Prepared);
    }
    assert_eq!(stage(&scene), PeerStage::On);
    assert_eq!(scene.waits(), Some(Blocker::SetUnobserved));
}

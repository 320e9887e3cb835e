//! What people change by hand about objects of ours, and what is made of it.

use super::fixture::{Scene, lease};
use crate::decide::{Blocker, Step};
use crate::observe::{Finding, Ordinal, Strategy};
use crate::validate::Drift;

/// Three members, of whose pods so many were left.
fn shrunk_to(left: u32) -> Scene {
    let mut scene = Scene::whole(3);
    let set = scene.set_mut();
    (set.replicas, set.noted_size) = (left, Some(3));
    scene.seen.pods.retain(|ordinal, _| ordinal.0 < left);
    scene
}

fn back_to_three(from: u32) -> Step {
    Step::Resize { from, to: 3 }
}

#[test]
fn pods_that_somebody_took_away_come_back_before_a_member_is_given_up() {
    assert_eq!(
        shrunk_to(2).step(),
        Some(back_to_three(2)),
        "a quorum answers"
    );
    let scene = shrunk_to(1).silent();
    assert_eq!(scene.step(), Some(back_to_three(1)), "nobody answers");
    let shape = scene.plan().shape.unwrap();
    assert_eq!(
        (shape.replicas, shape.size),
        (3, 3),
        "nobody is told to be alone"
    );
}

#[test]
fn nothing_is_restored_because_the_others_were_taken_away() {
    let scene = shrunk_to(1).silent().finding(0, Finding::NeedsRestore);
    assert_eq!(scene.step(), Some(back_to_three(1)));
    let mut scene = scene;
    scene.wanted.generation = 2;
    let ordinal = Ordinal(1);
    let on = Blocker::PodReturns { ordinal };
    assert_eq!(scene.waits(), Some(on), "nobody asked for the new spec");
}

#[test]
fn who_wants_fewer_or_is_allowed_to_change_objects_is_left_alone() {
    assert_eq!(
        shrunk_to(1).silent().replicas(1).plan().step,
        Scene::whole(1).plan().step
    );
    let mut scene = shrunk_to(1).silent();
    scene.wanted.requests.drift = Drift::Left;
    assert_ne!(scene.step(), Some(back_to_three(1)));
}

#[test]
fn a_member_nobody_ever_heard_of_is_not_missed() {
    let mut scene = shrunk_to(1).silent();
    for ordinal in [1, 2] {
        let mut never = lease(ordinal, false);
        never.held = None;
        scene.seen.leases.insert(Ordinal(ordinal), never);
    }
    assert_eq!(scene.waits(), Some(Blocker::NoQuorum));
}

#[test]
fn pods_that_their_set_replaces_by_itself_are_not_replaced_by_us_too() {
    let mut scene = Scene::whole(3).outdated().updated(2);
    scene.set_mut().strategy = Strategy::Rolling;
    scene.wanted.generation = 2;
    let step = scene.step();
    assert!(!matches!(step, Some(Step::DeletePod { .. })), "{step:?}");
}

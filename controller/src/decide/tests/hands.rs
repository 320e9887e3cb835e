//! What people change by hand about objects of ours, and what is made of it.

use super::fixture::{ClusterFixture, lease};
use crate::decide::{Blocker, ReconcileStep};
use crate::observe::{InitFinding, Ordinal, UpdateStrategy};
use crate::validate::DriftPolicy;

/// Three members, of whose pods so many were left.
fn scaled_down_to(left: u32) -> ClusterFixture {
    let mut scene = ClusterFixture::healthy(3);
    let set = scene.stateful_set_mut();
    (set.replicas, set.recorded_size) = (left, Some(3));
    scene.observed.pods.retain(|ordinal, _| ordinal.0 < left);
    scene
}

fn scale_to_three(from: u32) -> ReconcileStep {
    ReconcileStep::Scale { from, to: 3 }
}

#[test]
fn pods_that_somebody_took_away_come_back_before_a_member_is_given_up() {
    assert_eq!(
        scaled_down_to(2).step(),
        Some(scale_to_three(2)),
        "a quorum answers"
    );
    let scene = scaled_down_to(1).without_quorum();
    assert_eq!(scene.step(), Some(scale_to_three(1)), "nobody answers");
    let shape = scene.plan().effective_spec.unwrap();
    assert_eq!(
        (shape.replicas, shape.cluster_size),
        (3, 3),
        "nobody is told to be alone"
    );
}

#[test]
fn nothing_is_restored_because_the_others_were_taken_away() {
    let scene = scaled_down_to(1).without_quorum().with_finding(0, InitFinding::NeedsRestore);
    assert_eq!(scene.step(), Some(scale_to_three(1)));
    let mut scene = scene;
    scene.desired.generation = 2;
    let ordinal = Ordinal(1);
    let on = Blocker::PodMissing { ordinal };
    assert_eq!(scene.blocker(), Some(on), "nobody asked for the new spec");
}

#[test]
fn who_wants_fewer_or_is_allowed_to_change_objects_is_left_alone() {
    assert_eq!(
        scaled_down_to(1).without_quorum().with_replicas(1).plan().step,
        ClusterFixture::healthy(1).plan().step
    );
    let mut scene = scaled_down_to(1).without_quorum();
    scene.desired.requests.drift_policy = DriftPolicy::Keep;
    assert_ne!(scene.step(), Some(scale_to_three(1)));
}

#[test]
fn a_member_nobody_ever_heard_of_is_not_missed() {
    let mut scene = scaled_down_to(1).without_quorum();
    for ordinal in [1, 2] {
        let mut never = lease(ordinal, false);
        never.holder = None;
        scene.observed.leases.insert(Ordinal(ordinal), never);
    }
    assert_eq!(scene.blocker(), Some(Blocker::NoQuorum));
}

#[test]
fn pods_that_their_set_replaces_by_itself_are_not_replaced_by_us_too() {
    let mut scene = ClusterFixture::healthy(3).with_new_template().with_updated_pod(2);
    scene.stateful_set_mut().update_strategy = UpdateStrategy::RollingUpdate;
    scene.desired.generation = 2;
    let step = scene.step();
    assert!(!matches!(step, Some(ReconcileStep::DeletePod { .. })), "{step:?}");
}

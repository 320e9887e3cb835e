//! Manual changes of managed objects, and the reaction of the controller.

use super::fixture::{ClusterFixture, lease};
use crate::model::{Blocker, DriftPolicy, InitFinding, Ordinal, ReconcileStep, UpdateStrategy};

/// Three members; a user scaled the StatefulSet down to `left` pods.
fn scaled_down_to(left: u32) -> ClusterFixture {
    let mut fixture = ClusterFixture::healthy(3);
    let set = fixture.stateful_set_mut();
    (set.replicas, set.recorded_size) = (left, Some(3));
    fixture.observed.pods.retain(|ordinal, _| ordinal.0 < left);
    fixture
}

fn scale_to_three(from: u32) -> ReconcileStep {
    ReconcileStep::Scale { from, to: 3 }
}

#[test]
fn manually_removed_pods_are_restored_before_a_member_is_removed() {
    assert_eq!(
        scaled_down_to(2).step(),
        Some(scale_to_three(2)),
        "a quorum answers"
    );
    let fixture = scaled_down_to(1).without_quorum();
    assert_eq!(fixture.step(), Some(scale_to_three(1)), "no quorum");
    let shape = fixture.plan().effective_spec.unwrap();
    assert_eq!(
        (shape.replicas, shape.cluster_size),
        (3, 3),
        "no member is configured as a single-member cluster"
    );
}

#[test]
fn nothing_is_restored_because_pods_were_removed_manually() {
    let fixture = scaled_down_to(1)
        .without_quorum()
        .with_finding(0, InitFinding::NeedsRestore);
    assert_eq!(fixture.step(), Some(scale_to_three(1)));
    let mut fixture = fixture;
    fixture.desired.generation = 2;
    let ordinal = Ordinal(1);
    let on = Blocker::PodMissing { ordinal };
    assert_eq!(fixture.blocker(), Some(on), "the new spec is pending");
}

#[test]
fn manual_scale_down_stays_when_desired_or_when_drift_is_kept() {
    assert_eq!(
        scaled_down_to(1)
            .without_quorum()
            .with_replicas(1)
            .plan()
            .step,
        ClusterFixture::healthy(1).plan().step
    );
    let mut fixture = scaled_down_to(1).without_quorum();
    fixture.desired.requests.drift_policy = DriftPolicy::Keep;
    assert_ne!(fixture.step(), Some(scale_to_three(1)));
}

#[test]
fn member_that_never_registered_is_not_missing() {
    let mut fixture = scaled_down_to(1).without_quorum();
    for ordinal in [1, 2] {
        let mut unregistered = lease(ordinal, false);
        unregistered.holder = None;
        fixture
            .observed
            .leases
            .insert(Ordinal(ordinal), unregistered);
    }
    assert_eq!(fixture.blocker(), Some(Blocker::NoQuorum));
}

#[test]
fn pods_replaced_by_a_rolling_update_are_not_deleted() {
    let mut fixture = ClusterFixture::healthy(3)
        .with_new_template()
        .with_updated_pod(2);
    fixture.stateful_set_mut().update_strategy = UpdateStrategy::RollingUpdate;
    fixture.desired.generation = 2;
    let step = fixture.step();
    assert!(
        !matches!(step, Some(ReconcileStep::DeletePod { .. })),
        "{step:?}"
    );
}

//! A StatefulSet that is gone and made again, and one without pods: what was noted in it is not forgotten.

use super::fixture::*;
use crate::decide::{SpecRefusal, EffectiveSpec, ReconcileStep, UpgradeRule};
use crate::observe::{ObservedMembership, Ordinal, PeerTlsStage};

const GIB: u64 = 1 << 30;

fn effective_spec(scene: &ClusterFixture) -> EffectiveSpec {
    scene.plan().effective_spec.unwrap()
}

fn without_stateful_set(mut scene: ClusterFixture) -> ClusterFixture {
    scene.observed.stateful_set = None;
    scene
}

fn hibernated() -> ClusterFixture {
    let mut scene = ClusterFixture::healthy(3);
    scene.stateful_set_mut().replicas = 0;
    scene.observed.pods.clear();
    scene.observed.membership = ObservedMembership::NotQueried;
    scene
}

#[test]
fn members_without_a_pod_are_not_forgotten_with_the_set() {
    let mut scene = without_stateful_set(ClusterFixture::healthy(3));
    scene.observed.pods.remove(&Ordinal(2));
    assert_eq!(effective_spec(&scene).replicas, 3);
}

#[test]
fn an_image_that_may_not_follow_does_not_come_with_a_new_set() {
    let mut scene = without_stateful_set(ClusterFixture::healthy(3));
    scene.desired.etcd_image = "etcd:v3.7.0".to_owned();
    let plan = scene.plan();
    assert_eq!(plan.effective_spec.unwrap().held_fields.etcd_image.as_deref(), Some(IMAGE));
    let refusal = SpecRefusal::Upgrade {
        from: "3.5.26".to_owned(),
        to: "3.7.0".to_owned(),
        rule: UpgradeRule::OneMinor,
    };
    assert_eq!(plan.refusals, [refusal]);
}

#[test]
fn an_upgrade_that_began_is_not_taken_back_with_a_new_set() {
    let mut scene = without_stateful_set(ClusterFixture::healthy(3).with_backup(3_600));
    scene.desired.etcd_image = "etcd:v3.6.0".to_owned();
    assert_eq!(effective_spec(&scene).held_fields.etcd_image.as_deref(), Some(IMAGE));
    scene.pod_mut(2).etcd_image = Some("etcd:v3.6.0".to_owned());
    assert_eq!(effective_spec(&scene).held_fields.etcd_image, None);
}

#[test]
fn a_cluster_does_not_wake_with_an_image_that_may_not_follow() {
    let mut scene = hibernated();
    scene.desired.etcd_image = "etcd:v3.7.0".to_owned();
    let plan = scene.plan();
    assert_eq!(plan.effective_spec.unwrap().held_fields.etcd_image.as_deref(), Some(IMAGE));
    assert!(matches!(plan.refusals[..], [SpecRefusal::Upgrade { .. }]));
    scene.desired.etcd_image = "etcd:v3.6.0".to_owned();
    assert_eq!(effective_spec(&scene).held_fields.etcd_image, None, "this one may");
}

#[test]
fn the_image_of_another_program_says_nothing_about_etcd() {
    let mut scene = hibernated();
    scene.stateful_set_mut().etcd_image = Some("etcd-wrapper:v0.6.2".to_owned());
    assert_eq!(scene.plan().refusals, []);
}

#[test]
fn encryption_goes_through_all_its_stages_when_the_set_is_lost_between() {
    let mut scene = without_stateful_set(ClusterFixture::healthy(3));
    scene.desired.peers.tls = true;
    assert_eq!(effective_spec(&scene).peer_tls_stage, PeerTlsStage::Prepared);
    for lease in scene.observed.leases.values_mut() {
        lease.peer_tls = Some(true);
    }
    assert_eq!(effective_spec(&scene).peer_tls_stage, PeerTlsStage::On);
    scene.desired.peers.tls = false;
    assert_eq!(effective_spec(&scene).peer_tls_stage, PeerTlsStage::Prepared);
}

#[test]
fn a_set_is_made_again_only_when_nothing_else_is_under_way() {
    let larger = |mut scene: ClusterFixture| {
        scene.desired.storage_bytes = 32 * GIB;
        for claim in scene.observed.pvcs.values_mut() {
            claim.requested_bytes = Some(32 * GIB);
        }
        scene
    };
    let is_made_again = |scene: &ClusterFixture| matches!(scene.step(), Some(ReconcileStep::RecreateStatefulSet { .. }));
    assert!(is_made_again(&larger(ClusterFixture::healthy(3))));
    assert!(!is_made_again(&larger(ClusterFixture::healthy(3).with_new_template())));
    let mut switching = larger(ClusterFixture::healthy(3));
    switching.stateful_set_mut().peer_tls_stage = PeerTlsStage::Prepared;
    assert!(!is_made_again(&switching));
}

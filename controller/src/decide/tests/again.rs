//! A StatefulSet that is gone and made again, and one without pods: what was noted in it is not forgotten.

use super::fixture::*;
use crate::decide::{Refusal, Shape, Step, UpgradeRule};
use crate::observe::{Membership, Ordinal, PeerStage};

const GIB: u64 = 1 << 30;

fn shape(scene: &Scene) -> Shape {
    scene.plan().shape.unwrap()
}

fn lost_set(mut scene: Scene) -> Scene {
    scene.seen.set = None;
    scene
}

fn asleep() -> Scene {
    let mut scene = Scene::whole(3);
    scene.set_mut().replicas = 0;
    scene.seen.pods.clear();
    scene.seen.membership = Membership::Unasked;
    scene
}

#[test]
fn members_without_a_pod_are_not_forgotten_with_the_set() {
    let mut scene = lost_set(Scene::whole(3));
    scene.seen.pods.remove(&Ordinal(2));
    assert_eq!(shape(&scene).replicas, 3);
}

#[test]
fn an_image_that_may_not_follow_does_not_come_with_a_new_set() {
    let mut scene = lost_set(Scene::whole(3));
    scene.wanted.etcd_image = "etcd:v3.7.0".to_owned();
    let plan = scene.plan();
    assert_eq!(plan.shape.unwrap().holds.etcd_image.as_deref(), Some(IMAGE));
    let refusal = Refusal::Upgrade {
        from: "3.5.26".to_owned(),
        to: "3.7.0".to_owned(),
        rule: UpgradeRule::OneMinor,
    };
    assert_eq!(plan.refusals, [refusal]);
}

#[test]
fn an_upgrade_that_began_is_not_taken_back_with_a_new_set() {
    let mut scene = lost_set(Scene::whole(3).backed_up(3_600));
    scene.wanted.etcd_image = "etcd:v3.6.0".to_owned();
    assert_eq!(shape(&scene).holds.etcd_image.as_deref(), Some(IMAGE));
    scene.pod_mut(2).etcd_image = Some("etcd:v3.6.0".to_owned());
    assert_eq!(shape(&scene).holds.etcd_image, None);
}

#[test]
fn a_cluster_does_not_wake_with_an_image_that_may_not_follow() {
    let mut scene = asleep();
    scene.wanted.etcd_image = "etcd:v3.7.0".to_owned();
    let plan = scene.plan();
    assert_eq!(plan.shape.unwrap().holds.etcd_image.as_deref(), Some(IMAGE));
    assert!(matches!(plan.refusals[..], [Refusal::Upgrade { .. }]));
    scene.wanted.etcd_image = "etcd:v3.6.0".to_owned();
    assert_eq!(shape(&scene).holds.etcd_image, None, "this one may");
}

#[test]
fn the_image_of_another_program_says_nothing_about_etcd() {
    let mut scene = asleep();
    scene.set_mut().etcd_image = Some("etcd-wrapper:v0.6.2".to_owned());
    assert_eq!(scene.plan().refusals, []);
}

#[test]
fn encryption_goes_through_all_its_stages_when_the_set_is_lost_between() {
    let mut scene = lost_set(Scene::whole(3));
    scene.wanted.peers.tls = true;
    assert_eq!(shape(&scene).peer_stage, PeerStage::Prepared);
    for lease in scene.seen.leases.values_mut() {
        lease.peer_tls = Some(true);
    }
    assert_eq!(shape(&scene).peer_stage, PeerStage::On);
    scene.wanted.peers.tls = false;
    assert_eq!(shape(&scene).peer_stage, PeerStage::Prepared);
}

#[test]
fn a_set_is_made_again_only_when_nothing_else_is_under_way() {
    let larger = |mut scene: Scene| {
        scene.wanted.storage_bytes = 32 * GIB;
        for claim in scene.seen.claims.values_mut() {
            claim.requested_bytes = Some(32 * GIB);
        }
        scene
    };
    let is_made_again = |scene: &Scene| matches!(scene.step(), Some(Step::RecreateSet { .. }));
    assert!(is_made_again(&larger(Scene::whole(3))));
    assert!(!is_made_again(&larger(Scene::whole(3).outdated())));
    let mut switching = larger(Scene::whole(3));
    switching.set_mut().peer_stage = PeerStage::Prepared;
    assert!(!is_made_again(&switching));
}

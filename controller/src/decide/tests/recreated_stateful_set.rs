//! A recreated StatefulSet and one without pods: values recorded in it survive.

use super::fixture::*;
use crate::model::{
    EffectiveSpec, ObservedMembership, Ordinal, PeerTlsStage, ReconcileStep, SpecRefusal,
    UpgradeRule,
};

const GIB: u64 = 1 << 30;

fn effective_spec(fixture: &ClusterFixture) -> EffectiveSpec {
    fixture.plan().effective_spec.unwrap()
}

fn without_stateful_set(mut fixture: ClusterFixture) -> ClusterFixture {
    fixture.observed.stateful_set = None;
    fixture
}

fn hibernated() -> ClusterFixture {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.stateful_set_mut().replicas = 0;
    fixture.observed.pods.clear();
    fixture.observed.membership = ObservedMembership::NotQueried;
    fixture
}

#[test]
fn members_without_a_pod_count_when_the_set_is_recreated() {
    let mut fixture = without_stateful_set(ClusterFixture::healthy(3));
    fixture.observed.pods.remove(&Ordinal(2));
    assert_eq!(effective_spec(&fixture).replicas, 3);
}

#[test]
fn refused_image_is_held_when_the_set_is_recreated() {
    let mut fixture = without_stateful_set(ClusterFixture::healthy(3));
    fixture.desired.etcd_image = "etcd:v3.7.0".to_owned();
    let plan = fixture.plan();
    assert_eq!(
        plan.effective_spec
            .unwrap()
            .held_fields
            .etcd_image
            .as_deref(),
        Some(IMAGE)
    );
    let refusal = SpecRefusal::Upgrade {
        from: "3.5.26".to_owned(),
        to: "3.7.0".to_owned(),
        rule: UpgradeRule::OneMinor,
    };
    assert_eq!(plan.refusals, [refusal]);
}

#[test]
fn started_upgrade_continues_when_the_set_is_recreated() {
    let mut fixture = without_stateful_set(ClusterFixture::healthy(3).with_backup(3_600));
    fixture.desired.etcd_image = "etcd:v3.6.0".to_owned();
    assert_eq!(
        effective_spec(&fixture).held_fields.etcd_image.as_deref(),
        Some(IMAGE)
    );
    fixture.pod_mut(2).etcd_image = Some("etcd:v3.6.0".to_owned());
    assert_eq!(effective_spec(&fixture).held_fields.etcd_image, None);
}

#[test]
fn refused_image_is_held_when_the_cluster_wakes_up() {
    let mut fixture = hibernated();
    fixture.desired.etcd_image = "etcd:v3.7.0".to_owned();
    let plan = fixture.plan();
    assert_eq!(
        plan.effective_spec
            .unwrap()
            .held_fields
            .etcd_image
            .as_deref(),
        Some(IMAGE)
    );
    assert!(matches!(plan.refusals[..], [SpecRefusal::Upgrade { .. }]));
    fixture.desired.etcd_image = "etcd:v3.6.0".to_owned();
    assert_eq!(
        effective_spec(&fixture).held_fields.etcd_image,
        None,
        "3.5 to 3.6 is allowed"
    );
}

#[test]
fn etcd_wrapper_image_is_not_read_as_an_etcd_version() {
    let mut fixture = hibernated();
    fixture.stateful_set_mut().etcd_image = Some("etcd-wrapper:v0.6.2".to_owned());
    assert_eq!(fixture.plan().refusals, []);
}

#[test]
fn peer_tls_passes_every_stage_when_the_set_is_lost_in_between() {
    let mut fixture = without_stateful_set(ClusterFixture::healthy(3));
    fixture.desired.peers.tls = true;
    assert_eq!(
        effective_spec(&fixture).peer_tls_stage,
        PeerTlsStage::Prepared
    );
    for lease in fixture.observed.leases.values_mut() {
        lease.peer_tls = Some(true);
    }
    assert_eq!(effective_spec(&fixture).peer_tls_stage, PeerTlsStage::On);
    fixture.desired.peers.tls = false;
    assert_eq!(
        effective_spec(&fixture).peer_tls_stage,
        PeerTlsStage::Prepared
    );
}

#[test]
fn set_is_recreated_only_when_no_rollout_or_tls_switch_is_running() {
    let with_larger_volumes = |mut fixture: ClusterFixture| {
        fixture.desired.storage_bytes = 32 * GIB;
        for pvc in fixture.observed.pvcs.values_mut() {
            pvc.requested_bytes = Some(32 * GIB);
        }
        fixture
    };
    let is_recreated = |fixture: &ClusterFixture| {
        matches!(
            fixture.step(),
            Some(ReconcileStep::RecreateStatefulSet { .. })
        )
    };
    assert!(is_recreated(&with_larger_volumes(ClusterFixture::healthy(
        3
    ))));
    assert!(!is_recreated(&with_larger_volumes(
        ClusterFixture::healthy(3).with_new_template()
    )));
    let mut switching = with_larger_volumes(ClusterFixture::healthy(3));
    switching.stateful_set_mut().peer_tls_stage = PeerTlsStage::Prepared;
    assert!(!is_recreated(&switching));
}

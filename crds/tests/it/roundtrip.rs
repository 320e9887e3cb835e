//! Reading and writing loses no field that a newer version wrote.

use mainstay_crds::etcd::{MemberRole, RecoveryMode, VolumeGrowth};
use mainstay_crds::{ConditionStatus, ConditionType, Etcd, EtcdStatus, OperationState, status};
use serde_json::json;

use crate::samples::load_sample;

fn full_etcd() -> Etcd {
    serde_json::from_value(load_sample("etcd-everything.yaml")).unwrap()
}

#[test]
fn resource_with_fields_of_later_versions_is_read() {
    let mut newer = load_sample("etcd-everything.yaml");
    newer["spec"]["tomorrow"] = json!({ "a": 1 });
    newer["spec"]["etcd"]["tomorrow"] = json!([1, 2]);
    newer["status"]["tomorrow"] = json!("yes");
    let read: Etcd = serde_json::from_value(newer).unwrap();
    assert_eq!(read, full_etcd());
}

#[test]
fn status_apply_writes_only_status() {
    let etcd = full_etcd();
    let body = status::apply(
        &etcd,
        &EtcdStatus {
            ready: Some(false),
            ..EtcdStatus::default()
        },
    );
    assert_eq!(
        body,
        json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1",
            "kind": "Etcd",
            "metadata": { "name": "etcd-main", "namespace": "shoot--dev--test" },
            "status": { "ready": false },
        })
    );
}

#[test]
fn unknown_enum_values_are_kept() {
    let conditions = full_etcd().status.unwrap().conditions.unwrap();
    assert_eq!(conditions[0].type_, ConditionType::Ready);
    assert_eq!(
        conditions[1].type_,
        ConditionType::Other("SomethingOfTomorrow".into())
    );
    assert_eq!(
        conditions[1].status,
        ConditionStatus::Other("Sideways".into())
    );
    assert_eq!(
        serde_json::to_value(&conditions[1]).unwrap()["type"],
        "SomethingOfTomorrow"
    );
}

#[test]
fn known_enum_values_round_trip() {
    for known in ConditionType::KNOWN {
        assert_eq!(&ConditionType::from(known.as_str()), known);
    }
    for known in OperationState::KNOWN {
        assert_eq!(&OperationState::from(known.as_str()), known);
    }
    for known in MemberRole::KNOWN {
        let json = serde_json::to_value(known).unwrap();
        assert_eq!(&serde_json::from_value::<MemberRole>(json).unwrap(), known);
    }
}

#[test]
fn spec_without_mainstay_fields_gets_safe_defaults() {
    let spec = full_etcd().spec;
    assert!(spec.mainstay.is_none());
    assert_eq!(spec.recovery_mode(), RecoveryMode::Approve);
    assert_eq!(spec.volume_growth(), VolumeGrowth::Expand);
    let ours: Etcd = serde_json::from_value(load_sample("etcd-mainstay.yaml")).unwrap();
    assert_eq!(ours.spec.recovery_mode(), RecoveryMode::Automatic);
}

#[test]
fn reference_without_a_name_counts_as_none() {
    let spec = full_etcd().spec;
    let peer = spec.etcd.peer_url_tls.unwrap();
    assert_eq!(peer.tls.client_secret(), None);
    assert_eq!(peer.tls.ca.key(), "ca.crt");
    let client = spec.etcd.client_url_tls.unwrap();
    assert_eq!(client.client_secret(), Some("client"));
    assert_eq!(client.ca.key(), "bundle.crt");
}

#[test]
fn status_apply_sends_no_resource_version() {
    let mut cluster = Etcd::new("main", mainstay_crds::EtcdSpec::default());
    cluster.metadata.resource_version = Some("42".into());
    let body = status::apply(&cluster, &EtcdStatus::default());
    assert_eq!(
        body["metadata"],
        json!({ "name": "main" }),
        "a resourceVersion would make the apply fail on conflicts"
    );
}

use mainstay_archive::compression::Compression;
use mainstay_archive::name::SnapshotName;
use mainstay_ids::{ClusterId, MemberId};

use super::*;
use crate::state::StoredSnapshot;

const NOON: Timestamp = Timestamp::constant(1_800_000_000, 123_456_789);

fn state_with_role(role: SidecarRole) -> SidecarState {
    let member_status = MemberStatus {
        member: MemberId(0x0091_bc3c_398f_b3c1),
        cluster: ClusterId(0xabc),
        leader: None,
        term: 2,
        revision: Revision(5),
        is_learner: role == SidecarRole::Learner,
        db_bytes: 0,
        db_bytes_in_use: 0,
        version: "3.5.30".to_owned(),
        errors: Vec::new(),
        observed_at: NOON,
    };
    SidecarState {
        role,
        member_status: Some(member_status),
        ..SidecarState::default()
    }
}

fn stored_snapshot(name: SnapshotName) -> StoredSnapshot {
    StoredSnapshot {
        key: format!("v2/{name}"),
        name,
        size: 1,
    }
}

fn leader_state(full: i64, delta: Option<i64>) -> SidecarState {
    let gzip = Compression::Gzip;
    SidecarState {
        last_full: Some(stored_snapshot(SnapshotName::full(
            Revision(full),
            1_800_000_000,
            gzip.clone(),
        ))),
        last_delta: delta.map(|last| {
            let (start, last) = (Revision(1), Revision(last));
            stored_snapshot(SnapshotName::delta(start, last, 1_800_000_000, gzip))
        }),
        delta_checked_at: Some(NOON),
        ..state_with_role(SidecarRole::Leader)
    }
}

fn lease_with_holder(holder: Option<&str>, renewed: Option<Timestamp>) -> Lease {
    let mut lease = Lease::default();
    lease.metadata.resource_version = Some("41".to_owned());
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = holder.map(str::to_owned);
    spec.renew_time = renewed.map(MicroTime);
    lease
}

fn desired_full(revision: i64, second: i64) -> DesiredLease {
    let created_at = Timestamp::from_second(second).unwrap();
    DesiredLease::Full {
        revision: Revision(revision),
        created_at,
    }
}

fn desired_delta(revision: i64) -> DesiredLease {
    DesiredLease::Delta {
        deltas_since_full: None,
        revision: Revision(revision),
        checked_at: NOON,
    }
}

fn timestamp(second: i64) -> Option<Timestamp> {
    Timestamp::from_second(second).ok()
}

#[test]
fn member_lease_identity_has_the_format_that_consumers_parse() {
    let identity =
        |standing| match desired_lease(LeaseKind::Member, &state_with_role(standing), Some(true)) {
            Some(DesiredLease::Member {
                identity,
                peer_tls: Some(true),
            }) => Some(identity),
            None => None,
            other => panic!("{other:?}"),
        };
    assert_eq!(
        identity(SidecarRole::Leader).unwrap(),
        "91bc3c398fb3c1:abc:Leader"
    );
    assert_eq!(
        identity(SidecarRole::Follower).unwrap(),
        "91bc3c398fb3c1:abc:Member"
    );
    assert_eq!(
        identity(SidecarRole::Learner).unwrap(),
        "91bc3c398fb3c1:abc:Member"
    );
    assert_eq!(identity(SidecarRole::Unknown), None);
}

#[test]
fn member_lease_patch_sets_identity_renew_time_and_annotation() {
    let desired = DesiredLease::Member {
        identity: "1:2:Leader".to_owned(),
        peer_tls: Some(false),
    };
    let patch = build_patch(&lease_with_holder(None, None), &desired, NOON).unwrap();
    let expected = json!({
        "metadata": {
            "resourceVersion": "41",
            "annotations": { "member.etcd.gardener.cloud/tls-enabled": "false" },
        },
        "spec": { "holderIdentity": "1:2:Leader", "renewTime": "2027-01-15T08:00:00.123456Z" },
    });
    assert_eq!(patch, expected);
}

#[test]
fn only_the_leader_writes_the_snapshot_leases() {
    let follower = SidecarState {
        role: SidecarRole::Follower,
        ..leader_state(5, Some(9))
    };
    for kind in [LeaseKind::FullSnapshot, LeaseKind::DeltaSnapshot] {
        assert_eq!(desired_lease(kind, &follower, None), None);
        assert!(desired_lease(kind, &leader_state(5, Some(9)), None).is_some());
    }
}

#[test]
fn delta_lease_revision_is_zero_before_the_first_delta() {
    let state = leader_state(5, None);
    assert_eq!(
        desired_lease(LeaseKind::DeltaSnapshot, &state, None),
        Some(desired_delta(0))
    );
    let patch = build_patch(&lease_with_holder(None, None), &desired_delta(0), NOON).unwrap();
    assert_eq!(patch["spec"]["holderIdentity"], "0");
}

#[test]
fn full_snapshot_lease_records_the_snapshot_time() {
    let desired = desired_lease(LeaseKind::FullSnapshot, &leader_state(5, None), None).unwrap();
    let patch = build_patch(&lease_with_holder(None, None), &desired, Timestamp::MAX).unwrap();
    assert_eq!(patch["spec"]["holderIdentity"], "5");
    assert_eq!(patch["spec"]["renewTime"], "2027-01-15T08:00:00.000000Z");
}

#[test]
fn full_snapshot_revision_never_decreases() {
    assert_eq!(
        build_patch(
            &lease_with_holder(Some("6"), timestamp(1)),
            &desired_full(5, 100),
            NOON
        ),
        None
    );
    assert!(
        build_patch(
            &lease_with_holder(Some("5"), timestamp(1)),
            &desired_full(6, 100),
            NOON
        )
        .is_some()
    );
}

#[test]
fn only_a_newer_full_snapshot_of_the_same_revision_updates_the_time() {
    assert!(
        build_patch(
            &lease_with_holder(Some("5"), timestamp(99)),
            &desired_full(5, 100),
            NOON
        )
        .is_some()
    );
    assert_eq!(
        build_patch(
            &lease_with_holder(Some("5"), timestamp(100)),
            &desired_full(5, 100),
            NOON
        ),
        None
    );
    assert_eq!(
        build_patch(
            &lease_with_holder(Some("5"), timestamp(101)),
            &desired_full(5, 100),
            NOON
        ),
        None
    );
}

#[test]
fn delta_revision_never_decreases_but_its_time_is_updated() {
    let patch = build_patch(
        &lease_with_holder(Some("12"), timestamp(1)),
        &desired_delta(9),
        NOON,
    )
    .unwrap();
    assert_eq!(patch["spec"]["holderIdentity"], "12");
    assert_eq!(patch["spec"]["renewTime"], "2027-01-15T08:00:00.123456Z");
}

#[test]
fn up_to_date_delta_lease_is_not_patched() {
    assert_eq!(
        build_patch(
            &lease_with_holder(Some("9"), Some(truncate_to_micros(NOON))),
            &desired_delta(9),
            NOON
        ),
        None
    );
}

#[test]
fn holder_that_is_not_a_revision_is_replaced() {
    for holder in ["", "-7", "etcd-main-0", "99999999999999999999"] {
        let patch = build_patch(
            &lease_with_holder(Some(holder), timestamp(1)),
            &desired_full(5, 100),
            NOON,
        );
        assert!(patch.is_some(), "{holder:?}");
    }
}

#[test]
fn delta_lease_records_the_bytes_since_the_full_snapshot() {
    let state = SidecarState {
        deltas_since_full: Some(DeltasSinceFull {
            since: Revision(5),
            bytes: 4_096,
        }),
        ..leader_state(5, Some(9))
    };
    let desired = desired_lease(LeaseKind::DeltaSnapshot, &state, None).unwrap();
    let patch = build_patch(&lease_with_holder(None, None), &desired, NOON).unwrap();
    // Literal keys: controllers of other versions read them.
    let written = json!({
        "etcd-mainstay.io/delta-bytes": "4096",
        "etcd-mainstay.io/delta-bytes-since": "5",
    });
    assert_eq!(patch["metadata"]["annotations"], written);
}

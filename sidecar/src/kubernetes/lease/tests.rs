use mainstay_archive::compression::Compression;
use mainstay_archive::name::SnapshotName;
use mainstay_ids::{ClusterId, MemberId};

use super::*;
use crate::state::Stored;

const NOON: Timestamp = Timestamp::constant(1_800_000_000, 123_456_789);

fn state(standing: Standing) -> State {
    let sighting = Sighting {
        member: MemberId(0x0091_bc3c_398f_b3c1),
        cluster: ClusterId(0xabc),
        leader: None,
        term: 2,
        revision: Revision(5),
        is_learner: standing == Standing::Learner,
        db_bytes: 0,
        db_bytes_in_use: 0,
        version: "3.5.30".to_owned(),
        errors: Vec::new(),
        at: NOON,
    };
    State {
        standing,
        sighting: Some(sighting),
        ..State::default()
    }
}

fn stored(name: SnapshotName) -> Stored {
    Stored {
        key: format!("v2/{name}"),
        name,
        size: 1,
    }
}

fn leading(full: i64, delta: Option<i64>) -> State {
    let gzip = Compression::Gzip;
    State {
        last_full: Some(stored(SnapshotName::full(
            Revision(full),
            1_800_000_000,
            gzip.clone(),
        ))),
        last_delta: delta.map(|last| {
            let (start, last) = (Revision(1), Revision(last));
            stored(SnapshotName::delta(start, last, 1_800_000_000, gzip))
        }),
        delta_checked_at: Some(NOON),
        ..state(Standing::Leader)
    }
}

fn lease(holder: Option<&str>, renewed: Option<Timestamp>) -> Lease {
    let mut lease = Lease::default();
    lease.metadata.resource_version = Some("41".to_owned());
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = holder.map(str::to_owned);
    spec.renew_time = renewed.map(MicroTime);
    lease
}

fn full(revision: i64, second: i64) -> Wanted {
    let created = Timestamp::from_second(second).unwrap();
    Wanted::Full {
        revision: Revision(revision),
        created,
    }
}

fn delta(revision: i64) -> Wanted {
    Wanted::Delta {
        piled_up: None,
        revision: Revision(revision),
        checked: NOON,
    }
}

fn at(second: i64) -> Option<Timestamp> {
    Timestamp::from_second(second).ok()
}

#[test]
fn a_member_says_who_it_is_in_the_form_consumers_parse() {
    let identity = |standing| match wanted(LeaseKind::Member, &state(standing), Some(true)) {
        Some(Wanted::Member {
            identity,
            peer_tls: Some(true),
        }) => Some(identity),
        None => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        identity(Standing::Leader).unwrap(),
        "91bc3c398fb3c1:abc:Leader"
    );
    assert_eq!(
        identity(Standing::Follower).unwrap(),
        "91bc3c398fb3c1:abc:Member"
    );
    assert_eq!(
        identity(Standing::Learner).unwrap(),
        "91bc3c398fb3c1:abc:Member"
    );
    assert_eq!(identity(Standing::Unknown), None);
}

#[test]
fn a_member_writes_identity_time_and_annotation_over_what_it_read() {
    let wanted = Wanted::Member {
        identity: "1:2:Leader".to_owned(),
        peer_tls: Some(false),
    };
    let patch = change(&lease(None, None), &wanted, NOON).unwrap();
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
fn only_the_leader_speaks_for_the_snapshots() {
    let follower = State {
        standing: Standing::Follower,
        ..leading(5, Some(9))
    };
    for kind in [LeaseKind::FullSnapshot, LeaseKind::DeltaSnapshot] {
        assert_eq!(wanted(kind, &follower, None), None);
        assert!(wanted(kind, &leading(5, Some(9)), None).is_some());
    }
}

#[test]
fn without_a_delta_so_far_the_revision_is_zero() {
    let state = leading(5, None);
    assert_eq!(
        wanted(LeaseKind::DeltaSnapshot, &state, None),
        Some(delta(0))
    );
    let patch = change(&lease(None, None), &delta(0), NOON).unwrap();
    assert_eq!(patch["spec"]["holderIdentity"], "0");
}

#[test]
fn a_full_snapshot_is_recorded_with_the_time_it_was_taken() {
    let wanted = wanted(LeaseKind::FullSnapshot, &leading(5, None), None).unwrap();
    let patch = change(&lease(None, None), &wanted, Timestamp::MAX).unwrap();
    assert_eq!(patch["spec"]["holderIdentity"], "5");
    assert_eq!(patch["spec"]["renewTime"], "2027-01-15T08:00:00.000000Z");
}

#[test]
fn a_full_revision_never_decreases() {
    assert_eq!(change(&lease(Some("6"), at(1)), &full(5, 100), NOON), None);
    assert!(change(&lease(Some("5"), at(1)), &full(6, 100), NOON).is_some());
}

#[test]
fn a_newer_full_of_the_same_revision_moves_the_time_and_an_older_does_not() {
    assert!(change(&lease(Some("5"), at(99)), &full(5, 100), NOON).is_some());
    assert_eq!(
        change(&lease(Some("5"), at(100)), &full(5, 100), NOON),
        None
    );
    assert_eq!(
        change(&lease(Some("5"), at(101)), &full(5, 100), NOON),
        None
    );
}

#[test]
fn a_delta_revision_never_decreases_but_its_time_moves() {
    let patch = change(&lease(Some("12"), at(1)), &delta(9), NOON).unwrap();
    assert_eq!(patch["spec"]["holderIdentity"], "12");
    assert_eq!(patch["spec"]["renewTime"], "2027-01-15T08:00:00.123456Z");
}

#[test]
fn a_delta_lease_that_says_it_all_is_left_alone() {
    assert_eq!(
        change(&lease(Some("9"), Some(micros(NOON))), &delta(9), NOON),
        None
    );
}

#[test]
fn a_holder_that_is_no_revision_is_replaced() {
    for holder in ["", "-7", "etcd-main-0", "99999999999999999999"] {
        let patch = change(&lease(Some(holder), at(1)), &full(5, 100), NOON);
        assert!(patch.is_some(), "{holder:?}");
    }
}

#[test]
fn the_lease_of_the_deltas_says_how_much_has_piled_up() {
    let state = State {
        piled_up: Some(Pile {
            since: Revision(5),
            bytes: 4_096,
        }),
        ..leading(5, Some(9))
    };
    let wanted = wanted(LeaseKind::DeltaSnapshot, &state, None).unwrap();
    let patch = change(&lease(None, None), &wanted, NOON).unwrap();
    // Controllers of other versions read it, too.
    let written = json!({
        "etcd-mainstay.io/delta-bytes": "4096",
        "etcd-mainstay.io/delta-bytes-since": "5",
    });
    assert_eq!(patch["metadata"]["annotations"], written);
}

//! Databases, WALs and snapshots that are inconsistent with each other.

use mainstay_datadir::{ClusterMembership, Depth, FaultKind, WarningKind, write_raft_files};
use mainstay_ids::MemberId;
use mainstay_wal::{ConfChangeKind, ConfState, Encoder, SegmentName, SnapshotMark, WalIdentity};

use crate::support::{
    BucketItem, DataDir, DatabaseContent, LAST_INDEX, PUT_REQUEST, SNAPSHOT_INDEX, TERM,
    conf_change_entry, hard_state, normal_entry, own_member_id, snap_file, snapshot_mark,
    test_membership, wal_identity,
};

fn member_item(id: MemberId) -> BucketItem {
    let json = format!("{{\"id\":{},\"peerURLs\":[\"http://x:1\"]}}", id.0);
    (id.to_string().into_bytes(), json.into_bytes())
}

/// Items sorted by key.
fn member_items(ids: &[MemberId]) -> Vec<BucketItem> {
    let mut items: Vec<BucketItem> = ids.iter().copied().map(member_item).collect();
    items.sort();
    items
}

fn all_member_ids() -> Vec<MemberId> {
    test_membership()
        .members()
        .iter()
        .map(|member| member.id)
        .collect()
}

/// A WAL of one segment whose entry 10 changes the membership.
fn log_with_change(
    who: WalIdentity,
    kind: ConfChangeKind,
    node: MemberId,
) -> [(SegmentName, Vec<u8>); 1] {
    let mut segment = Encoder::begin(Vec::new(), 0, who).unwrap();
    segment.write_snapshot(&SnapshotMark::START).unwrap();
    for (index, member) in (1..).zip(all_member_ids()) {
        segment
            .write_entry(&conf_change_entry(index, ConfChangeKind::AddNode, member))
            .unwrap();
    }
    for index in 4..=LAST_INDEX {
        let put = normal_entry(index, TERM, PUT_REQUEST);
        let is_change = index == 10;
        let entry = if is_change {
            conf_change_entry(index, kind, node)
        } else {
            put
        };
        segment.write_entry(&entry).unwrap();
    }
    segment.write_state(&hard_state(TERM, LAST_INDEX)).unwrap();
    let conf_state = Some(test_membership().conf_state());
    segment
        .write_snapshot(&snapshot_mark(SNAPSHOT_INDEX, conf_state))
        .unwrap();
    [(SegmentName::FIRST, segment.into_inner())]
}

#[test]
fn database_older_than_the_snapshot_is_corrupt() {
    for index in [None, Some(1), Some(SNAPSHOT_INDEX - 1)] {
        let content = DatabaseContent {
            consistent_index: index,
            ..DatabaseContent::valid()
        };
        let dir = DataDir::with_content(&content);
        let report = dir.verify(Depth::Sanity);
        assert_eq!(report.faults[0].what, FaultKind::IndexBehindSnapshot);
        let report = dir.assert_faults(&[FaultKind::IndexBehindSnapshot]);
        let place = format!("consistent index {}", index.unwrap_or(0));
        assert_eq!(report.faults[0].place, place);
    }
}

#[test]
fn database_ahead_of_the_wal_is_corrupt() {
    let content = DatabaseContent {
        consistent_index: Some(LAST_INDEX + 1),
        ..DatabaseContent::valid()
    };
    let dir = DataDir::with_content(&content);
    dir.assert_faults(&[FaultKind::IndexBeyondLog]);
    let report = dir.verify(Depth::Sanity);
    assert_eq!(report.faults[0].what, FaultKind::IndexBeyondLog);
}

#[test]
fn database_that_lags_its_wal_is_valid() {
    for index in SNAPSHOT_INDEX..=LAST_INDEX {
        let content = DatabaseContent {
            consistent_index: Some(index),
            ..DatabaseContent::valid()
        };
        let facts = DataDir::with_content(&content)
            .assert_warnings(&[])
            .facts
            .unwrap();
        assert_eq!(facts.possible_writes_in_wal, Some(LAST_INDEX - index));
    }
}

#[test]
fn database_with_a_different_term_is_from_another_history() {
    let content = |term, cluster_version| DatabaseContent {
        term: Some(term),
        cluster_version,
        ..DatabaseContent::valid()
    };
    for version in [None, Some("3.5.0"), Some("3.6.0")] {
        let dir = DataDir::with_content(&content(TERM + 1, version));
        let sentence = dir.assert_single_fault(FaultKind::TermDiffers);
        assert!(sentence.contains("term 3, WAL has term 2"), "{sentence}");
    }
    DataDir::with_content(&content(TERM - 1, Some("3.6.0")))
        .assert_faults(&[FaultKind::TermDiffers]);
    // etcd 3.4 does not update a term that a newer server or tool wrote.
    for (term, version) in [
        (TERM - 1, None),
        (TERM - 1, Some("3.4.0")),
        (TERM + 1, Some("3.4.0")),
    ] {
        DataDir::with_content(&content(term, version)).assert_warnings(&[WarningKind::TermStale]);
    }
    let never = DatabaseContent {
        term: None,
        ..DatabaseContent::valid()
    };
    DataDir::with_content(&never).assert_warnings(&[]);
}

/// The restore of etcd 3.4 keeps the term of the old cluster.
#[test]
fn stale_term_after_a_restore_by_etcd_3_4_is_a_warning() {
    let membership = test_membership();
    let dir = DataDir::empty();
    write_raft_files(&dir.path().join("member"), &membership, own_member_id()).unwrap();
    let content = DatabaseContent {
        consistent_index: Some(3),
        term: Some(7),
        ..DatabaseContent::valid()
    };
    content.write(&dir.db_path());
    dir.assert_warnings(&[WarningKind::TermStale]);
}

#[test]
fn wal_of_a_non_member_is_foreign() {
    let stranger = MemberId(0xbad);
    let who = WalIdentity {
        node: stranger,
        ..wal_identity()
    };
    let dir = DataDir::valid();
    dir.write_log(&log_with_change(
        who,
        ConfChangeKind::UpdateNode,
        own_member_id(),
    ));
    let report = dir.assert_faults(&[FaultKind::NotAMember]);
    assert_eq!(report.faults[0].place, "member bad");
    // An entry after the snapshot adds the member; the database has applied it or not.
    dir.write_log(&log_with_change(who, ConfChangeKind::AddLearner, stranger));
    let mut content = DatabaseContent {
        members: member_items(&[all_member_ids(), vec![stranger]].concat()),
        ..DatabaseContent::valid()
    };
    content.write(&dir.db_path());
    dir.assert_warnings(&[]);
    content.members = member_items(&all_member_ids());
    content.consistent_index = Some(9);
    content.write(&dir.db_path());
    dir.assert_warnings(&[]);
}

#[test]
fn removed_member_is_reported() {
    let dir = DataDir::valid();
    dir.write_log(&log_with_change(
        wal_identity(),
        ConfChangeKind::RemoveNode,
        own_member_id(),
    ));
    let content = DatabaseContent {
        members: member_items(&all_member_ids()[1..]),
        removed_members: vec![(
            own_member_id().to_string().into_bytes(),
            b"removed".to_vec(),
        )],
        storage_version: Some("3.6.0"),
        ..DatabaseContent::valid()
    };
    content.write(&dir.db_path());
    dir.assert_warnings(&[WarningKind::MemberRemoved]);
}

#[test]
fn stale_members_in_the_database_are_a_warning_before_3_6() {
    let strangers = [MemberId(0x1), MemberId(0x2)];
    for members in [
        member_items(&strangers),
        member_items(&[all_member_ids(), strangers.to_vec()].concat()),
        member_items(&all_member_ids()[..2]),
        Vec::new(),
    ] {
        let content = DatabaseContent {
            members,
            ..DatabaseContent::valid()
        };
        DataDir::with_content(&content).assert_warnings(&[WarningKind::MembersDiffer]);
    }
}

/// From etcd 3.6 on the database is authoritative for the membership.
#[test]
fn database_3_6_without_its_own_member_is_foreign() {
    let content = |members| DatabaseContent {
        members,
        storage_version: Some("3.6.0"),
        ..DatabaseContent::valid()
    };
    for members in [member_items(&all_member_ids()[1..]), Vec::new()] {
        DataDir::with_content(&content(members)).assert_faults(&[FaultKind::NotAMember]);
    }
    DataDir::with_content(&content(member_items(&all_member_ids()))).assert_warnings(&[]);
}

#[test]
fn snapshot_and_wal_must_have_the_same_conf_state() {
    let dir = DataDir::valid();
    let mut other = snap_file(SNAPSHOT_INDEX, &test_membership());
    other.conf_state.voters.reverse();
    dir.write_snapshot(&other);
    dir.assert_warnings(&[]);

    let two = ClusterMembership::new(&"a=http://10.0.0.1:2380".parse().unwrap(), "sound").unwrap();
    dir.write_snapshot(&snap_file(SNAPSHOT_INDEX, &two));
    let report = dir.verify(Depth::Full);
    assert_eq!(report.faults[0].what, FaultKind::ConfStateDiffers);
    let sentence = report.faults[0].to_string();
    assert!(sentence.contains("its WAL record"), "{sentence}");
}

#[test]
fn members_and_conf_state_of_a_snapshot_must_agree() {
    let dir = DataDir::valid();
    let mut snapshot = snap_file(SNAPSHOT_INDEX, &test_membership());
    snapshot.conf_state = ConfState::from_voters(all_member_ids()[..2].to_vec());
    dir.write_snapshot(&snapshot);
    dir.write_log(&DataDir::one_segment(|segment| {
        for (index, member) in (1..).zip(all_member_ids()) {
            segment
                .write_entry(&conf_change_entry(index, ConfChangeKind::AddNode, member))
                .unwrap();
        }
        for index in 4..=LAST_INDEX {
            segment
                .write_entry(&normal_entry(index, TERM, PUT_REQUEST))
                .unwrap();
        }
        segment.write_state(&hard_state(TERM, LAST_INDEX)).unwrap();
        segment
            .write_snapshot(&snapshot_mark(SNAPSHOT_INDEX, None))
            .unwrap();
    }));
    let report = dir.verify(Depth::Full);
    let kinds: Vec<_> = report.faults.iter().map(|fault| fault.what).collect();
    assert_eq!(kinds, [FaultKind::ConfStateDiffers]);
    assert!(
        report.faults[0].reason.contains("its raft configuration"),
        "{report:?}"
    );
}

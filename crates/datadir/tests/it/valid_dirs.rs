//! Facts of a valid directory, and the form of a report.

use std::fs;

use mainstay_datadir::{
    AlarmFacts, BootstrapInfo, ClusterMembership, Depth, DirVerdict, FaultKind, WarningKind,
    lock_database, write_raft_files,
};
use mainstay_ids::{RaftIndex, Revision, Term};

use crate::support::{
    DataDir, DatabaseContent, LAST_INDEX, SNAPSHOT_INDEX, own_member_id, test_membership,
};

#[test]
fn intact_directory_is_valid_and_its_facts_are_reported() {
    let report = DataDir::valid().assert_warnings(&[]);
    let facts = report.facts.unwrap();
    assert_eq!(facts.revision, Revision(6));
    assert_eq!(facts.compact_revision, None);
    assert_eq!(facts.consistent_index, Some(RaftIndex(LAST_INDEX)));
    assert_eq!(facts.term, Some(Term(2)));
    assert_eq!(facts.member_id, Some(own_member_id()));
    assert_eq!(facts.cluster_id, Some(test_membership().cluster_id()));
    assert_eq!(facts.members.len(), 3);
    assert_eq!(facts.members[0].peer_urls.len(), 1);
    assert_eq!(
        (facts.rows, facts.live_keys, facts.leases),
        (Some(6), Some(2), Some(1))
    );
    assert_eq!(facts.snapshot_index, Some(RaftIndex(SNAPSHOT_INDEX)));
    assert_eq!(facts.last_wal_index, Some(RaftIndex(LAST_INDEX)));
    assert_eq!(facts.commit, Some(RaftIndex(LAST_INDEX)));
    assert_eq!(facts.possible_writes_in_wal, Some(0));
    assert_eq!(facts.cluster_version.as_deref(), Some("3.5.0"));
    assert!(facts.db_bytes_in_use.unwrap() <= facts.db_bytes);
}

#[test]
fn sanity_check_reports_the_same_except_facts_that_need_a_full_scan() {
    let dir = DataDir::valid();
    let (full, sanity) = (dir.verify(Depth::Full), dir.verify(Depth::Sanity));
    assert_eq!(sanity.verdict, DirVerdict::Valid);
    let mut facts = full.facts.unwrap();
    facts.db_bytes_in_use = None;
    facts.live_keys = None;
    facts.rows = None;
    facts.leases = None;
    assert_eq!(sanity.facts.unwrap(), facts);
}

#[test]
fn restored_directory_is_valid() {
    for listed in [
        "m=http://localhost:2380",
        "a=http://10.0.0.1:1,b=http://10.0.0.2:1",
    ] {
        let membership = ClusterMembership::new(&listed.parse().unwrap(), "t").unwrap();
        let dir = DataDir::empty();
        let BootstrapInfo { index, term } = BootstrapInfo::from_membership(&membership);
        let me = membership.members()[0].id;
        write_raft_files(&dir.path().join("member"), &membership, me).unwrap();
        let items = membership.members_bucket_rows().into_iter();
        let content = DatabaseContent {
            consistent_index: Some(index.0),
            term: Some(term.0),
            cluster_version: None,
            members: items.map(|(id, json)| (id.into(), json.into())).collect(),
            ..DatabaseContent::valid()
        };
        content.write(&dir.db_path());
        let facts = dir.assert_warnings(&[]).facts.unwrap();
        assert_eq!(facts.member_id, Some(me));
        assert_eq!(facts.snapshot_index, Some(index));
    }
}

#[test]
fn alarms_and_authentication_are_reported() {
    let alarm = hex::decode("089d83c7abb5cca5d31e1001").unwrap();
    let report = DataDir::with_content(&DatabaseContent {
        alarms: vec![(alarm, Vec::new())],
        is_auth_enabled: true,
        ..DatabaseContent::valid()
    })
    .assert_warnings(&[WarningKind::Alarm]);
    let facts = report.facts.unwrap();
    let [AlarmFacts { member_id, alarm }] = facts.alarms.as_slice() else {
        panic!("{facts:?}");
    };
    assert_eq!(
        (member_id.to_string().as_str(), alarm.as_str()),
        ("1ea696635571c19d", "NOSPACE")
    );
    assert!(facts.auth_enabled);
}

#[test]
fn directory_of_a_running_etcd_is_in_use() {
    let dir = DataDir::valid();
    let held = lock_database(&dir.db_path()).unwrap();
    for depth in [Depth::Sanity, Depth::Full] {
        let report = dir.verify(depth);
        assert_eq!(report.verdict, DirVerdict::InUse);
        assert_eq!(report.facts, None);
    }
    drop(held);
    dir.assert_warnings(&[]);
}

#[test]
fn verify_changes_no_files() {
    let dir = DataDir::valid();
    let files = [
        dir.db_path(),
        dir.wal_path("0000000000000001-0000000000000008.wal"),
        dir.snap_path("0000000000000002-0000000000000005.snap"),
    ];
    let before: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    dir.assert_warnings(&[]);
    let after: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    assert!(before == after);
}

#[test]
fn report_is_json_with_ids_as_etcd_prints_them() {
    let dir = DataDir::with_content(&DatabaseContent {
        consistent_index: Some(99),
        ..DatabaseContent::valid()
    });
    let report = serde_json::to_value(dir.assert_faults(&[FaultKind::IndexBeyondLog])).unwrap();
    assert_eq!(report["verdict"], "corrupt");
    assert_eq!(report["faults"][0]["what"], "indexBeyondLog");
    assert_eq!(report["faults"][0]["place"], "consistent index 99");
    let facts = &report["facts"];
    assert_eq!(facts["memberId"], own_member_id().to_string());
    assert_eq!(
        facts["members"][0]["id"],
        test_membership().members()[0].id.to_string()
    );
    assert_eq!(facts["revision"], 6);
    assert_eq!(facts["lastWalIndex"], LAST_INDEX);
    assert_eq!(facts["compactRevision"], serde_json::Value::Null);
}

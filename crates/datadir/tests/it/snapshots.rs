//! Raft snapshots with one fault each, and databases received from a leader.

use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use mainstay_datadir::{Depth, DirVerdict, FaultKind, WarningKind};
use mainstay_ids::{RaftIndex, Revision};
use mainstay_wal::{ConfChangeKind, SegmentName, SnapFile};

use crate::support::{
    DataDir, DatabaseContent, LAST_INDEX, PUT_REQUEST, SNAPSHOT_INDEX, TERM, conf_change_entry,
    file_length, flip_byte, hard_state, normal_entry, put_row, set_length, snap_file,
    snapshot_mark, test_membership,
};

/// A WAL of one segment that starts at the first entry, with snapshot records at these positions.
fn log_with_marks(marks: &[u64]) -> [(SegmentName, Vec<u8>); 1] {
    DataDir::one_segment(|segment| {
        for (index, member) in (1..).zip(test_membership().members()) {
            segment
                .write_entry(&conf_change_entry(
                    index,
                    ConfChangeKind::AddNode,
                    member.id,
                ))
                .unwrap();
        }
        for index in 4..=LAST_INDEX {
            segment
                .write_entry(&normal_entry(index, TERM, PUT_REQUEST))
                .unwrap();
        }
        segment.write_state(&hard_state(TERM, LAST_INDEX)).unwrap();
        for index in marks {
            let conf_state = Some(test_membership().conf_state());
            segment
                .write_snapshot(&snapshot_mark(*index, conf_state))
                .unwrap();
        }
    })
}

/// Snapshots at 5 and 9.
fn dir_with_two_snapshots() -> (DataDir, PathBuf) {
    let dir = DataDir::valid();
    dir.write_log(&log_with_marks(&[SNAPSHOT_INDEX, 9]));
    let newest = dir.write_snapshot(&snap_file(9, &test_membership()));
    (dir, newest)
}

fn snapshot_index(report: mainstay_datadir::DirReport) -> u64 {
    report.facts.unwrap().snapshot_index.unwrap().0
}

#[test]
fn newest_snapshot_is_used() {
    let (dir, _) = dir_with_two_snapshots();
    assert_eq!(snapshot_index(dir.assert_warnings(&[])), 9);
    assert_eq!(snapshot_index(dir.verify(Depth::Sanity)), 9);
}

#[test]
fn older_snapshot_is_used_when_the_newest_is_damaged() {
    for depth in [Depth::Sanity, Depth::Full] {
        let (dir, newest) = dir_with_two_snapshots();
        flip_byte(&newest, 40, 1);
        let report = dir.verify(depth);
        assert!(report.is_valid(), "{report:?}");
        assert_eq!(report.warnings.len(), 1);
        assert_eq!(report.warnings[0].what, WarningKind::SnapshotUnusable);
        assert_eq!(report.warnings[0].file, newest);
        assert!(report.warnings[0].reason.contains("crc mismatch"));
        assert_eq!(snapshot_index(report), SNAPSHOT_INDEX);
    }
}

#[test]
fn older_snapshot_is_used_when_the_newest_file_is_missing() {
    let (dir, newest) = dir_with_two_snapshots();
    fs::remove_file(newest).unwrap();
    let report = dir.assert_warnings(&[WarningKind::SnapshotUnusable]);
    assert!(report.warnings[0].reason.contains("index 9"), "{report:?}");
    assert_eq!(snapshot_index(report), SNAPSHOT_INDEX);
}

/// A crash between writing the file and its WAL record leaves a snapshot without record.
#[test]
fn snapshot_without_a_wal_record_is_skipped() {
    let (dir, _) = dir_with_two_snapshots();
    dir.write_snapshot(&snap_file(11, &test_membership()));
    let report = dir.assert_warnings(&[WarningKind::SnapshotUnusable]);
    assert_eq!(snapshot_index(report), 9);
}

#[test]
fn snapshot_record_above_the_commit_index_is_ignored() {
    let dir = DataDir::valid();
    dir.write_log(&DataDir::one_segment(|segment| {
        for (index, member) in (1..).zip(test_membership().members()) {
            segment
                .write_entry(&conf_change_entry(
                    index,
                    ConfChangeKind::AddNode,
                    member.id,
                ))
                .unwrap();
        }
        for index in 4..=LAST_INDEX {
            segment
                .write_entry(&normal_entry(index, TERM, PUT_REQUEST))
                .unwrap();
        }
        segment.write_state(&hard_state(TERM, 8)).unwrap();
        segment
            .write_snapshot(&snapshot_mark(SNAPSHOT_INDEX, None))
            .unwrap();
        segment.write_snapshot(&snapshot_mark(9, None)).unwrap();
    }));
    dir.write_snapshot(&snap_file(9, &test_membership()));
    assert_eq!(
        snapshot_index(dir.assert_warnings(&[WarningKind::SnapshotUnusable])),
        SNAPSHOT_INDEX
    );
}

#[test]
fn wal_without_any_snapshot_must_start_at_the_beginning() {
    let dir = DataDir::valid();
    let name = "0000000000000002-0000000000000005.snap";
    set_length(&dir.snap_path(name), 10);
    assert_eq!(
        snapshot_index(dir.assert_warnings(&[WarningKind::SnapshotUnusable])),
        0
    );
    fs::remove_file(dir.wal_path("0000000000000000-0000000000000000.wal")).unwrap();
    dir.assert_faults(&[FaultKind::NoSnapshot]);
    let report = dir.verify(Depth::Sanity);
    assert_eq!(report.faults[0].what, FaultKind::NoSnapshot);
}

#[test]
fn wal_must_reach_back_to_the_snapshot() {
    let dir = DataDir::valid();
    let [_, (name, second)] = DataDir::segments();
    dir.write_log(&[(name, second)]);
    // The record was in the removed first segment, so a full verification cannot use the snapshot.
    dir.assert_faults(&[FaultKind::NoSnapshot]);
    let report = dir.verify(Depth::Sanity);
    assert_eq!(report.verdict, DirVerdict::Corrupt);
    assert_eq!(report.faults[0].what, FaultKind::WalBeginLost);
    assert!(
        report.faults[0].reason.contains("starts with entry 8"),
        "{report:?}"
    );
}

#[test]
fn older_snapshots_are_verified() {
    let (dir, _) = dir_with_two_snapshots();
    flip_byte(
        &dir.snap_path("0000000000000002-0000000000000005.snap"),
        40,
        1,
    );
    assert_eq!(
        snapshot_index(dir.assert_warnings(&[WarningKind::SnapshotUnusable])),
        9
    );
    assert!(dir.verify(Depth::Sanity).warnings.is_empty());
}

#[test]
fn v2_store_in_the_snapshot_must_be_valid_or_empty() {
    let broken = SnapFile {
        data: Bytes::from_static(b"{\"Root\":7}"),
        ..snap_file(SNAPSHOT_INDEX, &test_membership())
    };
    let dir = DataDir::valid();
    dir.write_snapshot(&broken);
    dir.assert_faults(&[FaultKind::SnapshotContent]);
    let empty = SnapFile {
        data: Bytes::new(),
        ..broken
    };
    dir.write_snapshot(&empty);
    dir.assert_warnings(&[]);
}

#[test]
fn v2_keys_are_a_warning() {
    let mut with_keys = snap_file(SNAPSHOT_INDEX, &test_membership());
    let text = String::from_utf8(with_keys.data.to_vec()).unwrap();
    let key = r#""Path":"/1","CreatedIndex":0,"ModifiedIndex":0,"ExpireTime":"0001-01-01T00:00:00Z","Value":"","Children":{"#;
    assert!(text.contains(key));
    with_keys.data = Bytes::from(text.replace(key, &format!(r#"{key}"x":{{}}"#)));
    let dir = DataDir::valid();
    dir.write_snapshot(&with_keys);
    dir.assert_warnings(&[WarningKind::V2Keys]);
}

/// A follower killed between saving the leader's snapshot at 9 and applying its database.
fn dir_with_received_database(index: u64) -> (DataDir, PathBuf) {
    let old = DatabaseContent {
        consistent_index: Some(6),
        ..DatabaseContent::valid()
    };
    let dir = DataDir::with_content(&old);
    dir.write_log(&log_with_marks(&[SNAPSHOT_INDEX, 9]));
    dir.write_snapshot(&snap_file(9, &test_membership()));
    let mut received = DatabaseContent::valid();
    received.rows.push(put_row((7, 0), "new", 7, 1));
    received.consistent_index = Some(index);
    let path = dir.snap_path("0000000000000009.snap.db");
    received.write(&path);
    (dir, path)
}

#[test]
fn database_received_from_the_leader_is_verified_instead() {
    let (dir, path) = dir_with_received_database(9);
    let facts = dir
        .assert_warnings(&[WarningKind::SnapshotDatabase])
        .facts
        .unwrap();
    assert_eq!((facts.revision, facts.rows), (Revision(7), Some(7)));
    assert_eq!(facts.consistent_index, Some(RaftIndex(9)));
    assert_eq!(facts.possible_writes_in_wal, Some(3), "10 to 12");
    assert_eq!(
        dir.verify(Depth::Sanity).facts.unwrap().revision,
        Revision(7)
    );

    set_length(&path, file_length(&path) - 1);
    let report = dir.assert_faults(&[FaultKind::Truncated]);
    assert_eq!(report.faults[0].file, path);
    fs::remove_file(&path).unwrap();
    let sentence = dir.assert_single_fault(FaultKind::IndexBehindSnapshot);
    assert!(
        sentence.contains("0000000000000009.snap.db does not exist"),
        "{sentence}"
    );
}

#[test]
fn database_received_from_the_leader_must_be_as_new_as_its_name() {
    let (dir, path) = dir_with_received_database(8);
    let report = dir.assert_faults(&[FaultKind::IndexBehindSnapshot]);
    assert_eq!(report.faults[0].file, path);
}

#[test]
fn received_database_without_a_wal_record_is_ignored() {
    let dir = DataDir::valid();
    fs::write(dir.snap_path("00000000000000ff.snap.db"), b"half received").unwrap();
    assert_eq!(
        dir.assert_warnings(&[]).facts.unwrap().revision,
        Revision(6)
    );
}

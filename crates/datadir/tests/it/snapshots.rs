//! One thing wrong with the raft snapshots, and databases received from a leader.

use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use mainstay_datadir::{Depth, DirVerdict, FaultKind, WarningKind};
use mainstay_ids::{RaftIndex, Revision};
use mainstay_wal::{ConfChangeKind, SegmentName, SnapFile};

use crate::support::{
    Content, Dir, LAST, PUT_REQUEST, SNAPSHOT, TERM, change, cut, entry, flip, length, mark,
    members, put, snapshot, state,
};

/// A log of one segment from the first entry on, with marks at these places.
fn log_with_marks(marks: &[u64]) -> [(SegmentName, Vec<u8>); 1] {
    Dir::one_segment(|segment| {
        for (index, member) in (1..).zip(members().members()) {
            segment
                .entry(&change(index, ConfChangeKind::AddNode, member.id))
                .unwrap();
        }
        for index in 4..=LAST {
            segment.entry(&entry(index, TERM, PUT_REQUEST)).unwrap();
        }
        segment.state(&state(TERM, LAST)).unwrap();
        for index in marks {
            let conf_state = Some(members().conf_state());
            segment.snapshot(&mark(*index, conf_state)).unwrap();
        }
    })
}

/// Snapshots at 5 and 9.
fn two_snapshots() -> (Dir, PathBuf) {
    let dir = Dir::sound();
    dir.write_log(&log_with_marks(&[SNAPSHOT, 9]));
    let newest = dir.write_snapshot(&snapshot(9, &members()));
    (dir, newest)
}

fn snapshot_index(report: mainstay_datadir::Report) -> u64 {
    report.facts.unwrap().snapshot_index.unwrap().0
}

#[test]
fn the_newest_snapshot_is_the_one_to_start_from() {
    let (dir, _) = two_snapshots();
    assert_eq!(snapshot_index(dir.warnings(&[])), 9);
    assert_eq!(snapshot_index(dir.verify(Depth::Sanity)), 9);
}

#[test]
fn an_older_snapshot_serves_when_the_newest_is_damaged() {
    for depth in [Depth::Sanity, Depth::Full] {
        let (dir, newest) = two_snapshots();
        flip(&newest, 40, 1);
        let report = dir.verify(depth);
        assert!(report.is_valid(), "{report:?}");
        assert_eq!(report.warnings.len(), 1);
        assert_eq!(report.warnings[0].what, WarningKind::SnapshotUnusable);
        assert_eq!(report.warnings[0].file, newest);
        assert!(report.warnings[0].reason.contains("crc mismatch"));
        assert_eq!(snapshot_index(report), SNAPSHOT);
    }
}

#[test]
fn an_older_snapshot_serves_when_the_file_of_the_newest_mark_is_missing() {
    let (dir, newest) = two_snapshots();
    fs::remove_file(newest).unwrap();
    let report = dir.warnings(&[WarningKind::SnapshotUnusable]);
    assert!(report.warnings[0].reason.contains("index 9"), "{report:?}");
    assert_eq!(snapshot_index(report), SNAPSHOT);
}

/// A crash between the file and its mark leaves a snapshot the log knows nothing of.
#[test]
fn a_snapshot_without_its_mark_is_passed_over() {
    let (dir, _) = two_snapshots();
    dir.write_snapshot(&snapshot(11, &members()));
    let report = dir.warnings(&[WarningKind::SnapshotUnusable]);
    assert_eq!(snapshot_index(report), 9);
}

#[test]
fn a_mark_above_the_commit_index_does_not_count() {
    let dir = Dir::sound();
    dir.write_log(&Dir::one_segment(|segment| {
        for (index, member) in (1..).zip(members().members()) {
            segment
                .entry(&change(index, ConfChangeKind::AddNode, member.id))
                .unwrap();
        }
        for index in 4..=LAST {
            segment.entry(&entry(index, TERM, PUT_REQUEST)).unwrap();
        }
        segment.state(&state(TERM, 8)).unwrap();
        segment.snapshot(&mark(SNAPSHOT, None)).unwrap();
        segment.snapshot(&mark(9, None)).unwrap();
    }));
    dir.write_snapshot(&snapshot(9, &members()));
    assert_eq!(
        snapshot_index(dir.warnings(&[WarningKind::SnapshotUnusable])),
        SNAPSHOT
    );
}

#[test]
fn without_any_snapshot_the_log_must_reach_back_to_the_beginning() {
    let dir = Dir::sound();
    let name = "0000000000000002-0000000000000005.snap";
    cut(&dir.snap(name), 10);
    assert_eq!(
        snapshot_index(dir.warnings(&[WarningKind::SnapshotUnusable])),
        0
    );
    fs::remove_file(dir.wal("0000000000000000-0000000000000000.wal")).unwrap();
    dir.faults(&[FaultKind::NoSnapshot]);
    let report = dir.verify(Depth::Sanity);
    assert_eq!(report.faults[0].what, FaultKind::NoSnapshot);
}

#[test]
fn the_log_must_reach_back_to_the_snapshot() {
    let dir = Dir::sound();
    let [_, (name, second)] = Dir::log();
    dir.write_log(&[(name, second)]);
    // The mark went with the first segment, so that a full verification cannot use the snapshot at all.
    dir.faults(&[FaultKind::NoSnapshot]);
    let report = dir.verify(Depth::Sanity);
    assert_eq!(report.verdict, DirVerdict::Corrupt);
    assert_eq!(report.faults[0].what, FaultKind::WalBeginLost);
    assert!(
        report.faults[0].reason.contains("begins with entry 8"),
        "{report:?}"
    );
}

#[test]
fn older_snapshots_are_read_as_well() {
    let (dir, _) = two_snapshots();
    flip(&dir.snap("0000000000000002-0000000000000005.snap"), 40, 1);
    assert_eq!(
        snapshot_index(dir.warnings(&[WarningKind::SnapshotUnusable])),
        9
    );
    assert!(dir.verify(Depth::Sanity).warnings.is_empty());
}

#[test]
fn the_tree_in_the_snapshot_must_be_one() {
    let broken = SnapFile {
        data: Bytes::from_static(b"{\"Root\":7}"),
        ..snapshot(SNAPSHOT, &members())
    };
    let dir = Dir::sound();
    dir.write_snapshot(&broken);
    dir.faults(&[FaultKind::SnapshotContent]);
    let empty = SnapFile {
        data: Bytes::new(),
        ..broken
    };
    dir.write_snapshot(&empty);
    dir.warnings(&[]);
}

#[test]
fn keys_of_the_old_api_are_worth_a_warning() {
    let mut with_keys = snapshot(SNAPSHOT, &members());
    let text = String::from_utf8(with_keys.data.to_vec()).unwrap();
    let key = r#""Path":"/1","CreatedIndex":0,"ModifiedIndex":0,"ExpireTime":"0001-01-01T00:00:00Z","Value":"","Children":{"#;
    assert!(text.contains(key));
    with_keys.data = Bytes::from(text.replace(key, &format!(r#"{key}"x":{{}}"#)));
    let dir = Dir::sound();
    dir.write_snapshot(&with_keys);
    dir.warnings(&[WarningKind::V2Keys]);
}

/// A follower that was killed between saving the leader's snapshot at 9 and adopting its database.
fn half_adopted(index: u64) -> (Dir, PathBuf) {
    let old = Content {
        consistent_index: Some(6),
        ..Content::sound()
    };
    let dir = Dir::of(&old);
    dir.write_log(&log_with_marks(&[SNAPSHOT, 9]));
    dir.write_snapshot(&snapshot(9, &members()));
    let mut received = Content::sound();
    received.rows.push(put((7, 0), "new", 7, 1));
    received.consistent_index = Some(index);
    let path = dir.snap("0000000000000009.snap.db");
    received.write(&path);
    (dir, path)
}

#[test]
fn a_database_from_the_leader_that_is_to_be_adopted_is_the_one_that_counts() {
    let (dir, path) = half_adopted(9);
    let facts = dir
        .warnings(&[WarningKind::SnapshotDatabase])
        .facts
        .unwrap();
    assert_eq!((facts.revision, facts.rows), (Revision(7), Some(7)));
    assert_eq!(facts.consistent_index, Some(RaftIndex(9)));
    assert_eq!(facts.possible_writes_in_wal, Some(3), "10 to 12");
    assert_eq!(
        dir.verify(Depth::Sanity).facts.unwrap().revision,
        Revision(7)
    );

    cut(&path, length(&path) - 1);
    let report = dir.faults(&[FaultKind::Truncated]);
    assert_eq!(report.faults[0].file, path);
    fs::remove_file(&path).unwrap();
    let sentence = dir.sentence(FaultKind::IndexBehindSnapshot);
    assert!(
        sentence.contains("no 0000000000000009.snap.db"),
        "{sentence}"
    );
}

#[test]
fn a_database_from_the_leader_must_be_as_new_as_its_name() {
    let (dir, path) = half_adopted(8);
    let report = dir.faults(&[FaultKind::IndexBehindSnapshot]);
    assert_eq!(report.faults[0].file, path);
}

#[test]
fn a_database_from_the_leader_that_the_log_knows_nothing_of_is_left_alone() {
    let dir = Dir::sound();
    fs::write(dir.snap("00000000000000ff.snap.db"), b"half received").unwrap();
    assert_eq!(dir.warnings(&[]).facts.unwrap().revision, Revision(6));
}

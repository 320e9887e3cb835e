//! WALs with one fault each.

use std::fs;
use std::path::Path;

use mainstay_datadir::{Depth, FaultKind, WarningKind};
use mainstay_ids::{MemberId, RaftIndex};
use mainstay_wal::{
    ConfChangeKind, Decoder, Encoder, NextRecord, SegmentName, SegmentRole, WalIdentity,
};

use crate::support::{
    DataDir, DatabaseContent, LAST_INDEX, PUT_REQUEST, SNAPSHOT_INDEX, TERM, conf_change_entry,
    file_length, flip_byte, hard_state, normal_entry, set_length, snapshot_mark, test_membership,
    wal_identity,
};

const FIRST_SEGMENT: &str = "0000000000000000-0000000000000000.wal";
const LAST_SEGMENT: &str = "0000000000000001-0000000000000008.wal";

/// Offset of the zeros after the last record.
fn written_length(dir: &DataDir) -> u64 {
    file_length(&dir.wal_path(LAST_SEGMENT)) - 4096
}

/// A valid directory with another second segment.
fn dir_with_second_segment(
    name: (u64, u64),
    identity: WalIdentity,
    build: impl FnOnce(&mut Encoder<Vec<u8>>),
) -> DataDir {
    let dir = DataDir::valid();
    let [first, _] = DataDir::segments();
    let crc = segment_crc(&first.1);
    let mut second = Encoder::begin(Vec::new(), crc, identity).unwrap();
    second.write_state(&hard_state(TERM, 7)).unwrap();
    build(&mut second);
    let name = SegmentName {
        sequence: name.0,
        first_index: RaftIndex(name.1),
    };
    dir.write_log(&[first, (name, second.into_inner())]);
    dir
}

/// The CRC at the end of a valid segment, from the CRC record of the next one.
fn segment_crc(segment: &[u8]) -> u32 {
    let length = segment.len() as u64;
    let mut decoder = Decoder::new(segment, Path::new(""), length, SegmentRole::Inner, 0);
    while let NextRecord::Record(_) = decoder.next_record().unwrap() {}
    decoder.crc()
}

fn append_entries(segment: &mut Encoder<Vec<u8>>, range: impl Iterator<Item = u64>, term: u64) {
    for index in range {
        segment
            .write_entry(&normal_entry(index, term, PUT_REQUEST))
            .unwrap();
    }
}

#[test]
fn gap_between_segments_is_found_without_reading_them() {
    let dir = DataDir::valid();
    let [first, (_, second)] = DataDir::segments();
    let name = SegmentName {
        sequence: 2,
        first_index: RaftIndex(8),
    };
    dir.write_log(&[first, (name, second)]);
    assert_eq!(
        dir.verify(Depth::Sanity).faults[0].what,
        FaultKind::WalNames
    );
    let sentence = dir.assert_single_fault(FaultKind::WalNames);
    assert!(sentence.contains("missing or duplicate"), "{sentence}");
}

#[test]
fn flipped_bit_in_a_record_is_named_with_file_and_byte() {
    let dir = DataDir::valid();
    for name in [FIRST_SEGMENT, LAST_SEGMENT] {
        flip_byte(&dir.wal_path(name), 67, 0x10);
        let report = dir.assert_faults(&[FaultKind::WalRecord]);
        assert_eq!(report.faults[0].file, dir.wal_path(name));
        assert!(report.faults[0].place.starts_with("byte "), "{report:?}");
        flip_byte(&dir.wal_path(name), 67, 0x10);
    }
    dir.assert_warnings(&[]);
}

#[test]
fn truncated_inner_segment_is_corruption() {
    let dir = DataDir::valid();
    set_length(
        &dir.wal_path(FIRST_SEGMENT),
        file_length(&dir.wal_path(FIRST_SEGMENT)) - 8,
    );
    dir.assert_faults(&[FaultKind::WalRecord]);
}

#[test]
fn segments_must_continue_each_other() {
    let whole = |segment: &mut Encoder<Vec<u8>>| {
        append_entries(segment, 8..=LAST_INDEX, TERM);
        segment.write_state(&hard_state(TERM, LAST_INDEX)).unwrap();
    };
    dir_with_second_segment((1, 8), wal_identity(), whole).assert_warnings(&[]);
    let stranger = WalIdentity {
        node: MemberId(5),
        ..wal_identity()
    };
    dir_with_second_segment((1, 8), stranger, whole).assert_faults(&[FaultKind::WalOrder]);
    dir_with_second_segment((1, 9), wal_identity(), whole).assert_faults(&[FaultKind::WalOrder]);
    let gap = |segment: &mut Encoder<Vec<u8>>| append_entries(segment, 9..=LAST_INDEX, TERM);
    dir_with_second_segment((1, 8), wal_identity(), gap).assert_faults(&[FaultKind::WalOrder]);
    let fallen = |segment: &mut Encoder<Vec<u8>>| append_entries(segment, 8..=LAST_INDEX, TERM - 1);
    let sentence = dir_with_second_segment((1, 8), wal_identity(), fallen)
        .assert_single_fault(FaultKind::WalOrder);
    assert!(sentence.contains("entry 8 has term 1"), "{sentence}");
}

#[test]
fn broken_checksum_chain_between_segments_is_found() {
    let dir = DataDir::valid();
    let [first, (name, _)] = DataDir::segments();
    let mut other = Encoder::begin(Vec::new(), 1, wal_identity()).unwrap();
    other.write_state(&hard_state(TERM, 7)).unwrap();
    dir.write_log(&[first, (name, other.into_inner())]);
    let sentence = dir.assert_single_fault(FaultKind::WalRecord);
    assert!(
        sentence.contains("segment starts with 00000001"),
        "{sentence}"
    );
}

/// A record torn by a crash was never acknowledged.
#[test]
fn torn_tail_is_a_warning() {
    let dir = DataDir::valid();
    set_length(&dir.wal_path(LAST_SEGMENT), written_length(&dir) - 3);
    for depth in [Depth::Sanity, Depth::Full] {
        let report = dir.verify(depth);
        assert!(report.is_valid(), "{report:?}");
        assert_eq!(report.warnings[0].what, WarningKind::TornTail);
        let facts = report.facts.unwrap();
        assert_eq!(facts.last_wal_index, Some(RaftIndex(LAST_INDEX)));
        assert_eq!(
            facts.commit,
            Some(RaftIndex(7)),
            "the record with a higher commit index is torn"
        );
    }
}

#[test]
fn torn_tail_that_loses_applied_entries_is_corruption() {
    let dir = DataDir::valid();
    set_length(&dir.wal_path(LAST_SEGMENT), written_length(&dir) - 60);
    let report = dir.assert_faults(&[FaultKind::IndexBeyondLog]);
    assert_eq!(report.warnings[0].what, WarningKind::TornTail);
    assert_eq!(
        report.facts.unwrap().last_wal_index,
        Some(RaftIndex(LAST_INDEX - 1))
    );
}

#[test]
fn bytes_after_the_end_of_the_wal_are_a_warning() {
    let dir = DataDir::valid();
    flip_byte(
        &dir.wal_path(LAST_SEGMENT),
        written_length(&dir) + 1000,
        0xff,
    );
    dir.assert_warnings(&[WarningKind::TrailingBytes]);
}

#[test]
fn wal_that_lost_committed_entries_is_corruption() {
    let lost = |segment: &mut Encoder<Vec<u8>>| {
        append_entries(segment, 8..=LAST_INDEX, TERM);
        segment
            .write_state(&hard_state(TERM, LAST_INDEX + 1))
            .unwrap();
    };
    let report = dir_with_second_segment((1, 8), wal_identity(), lost)
        .assert_faults(&[FaultKind::WalEndLost]);
    assert_eq!(report.faults[0].place, format!("index {LAST_INDEX}"));
}

#[test]
fn temporary_files_are_ignored_and_broken_files_are_a_warning() {
    let dir = DataDir::valid();
    fs::write(dir.wal_path("1.tmp"), [0; 100]).unwrap();
    fs::write(
        dir.snap_path("db.tmp.123"),
        b"temporary file of a defragmentation",
    )
    .unwrap();
    dir.assert_warnings(&[]);
    fs::write(
        dir.wal_path("0000000000000001-0000000000000008.wal.broken"),
        b"",
    )
    .unwrap();
    fs::write(
        dir.snap_path("0000000000000001-0000000000000001.snap.broken"),
        b"",
    )
    .unwrap();
    dir.assert_warnings(&[WarningKind::Evidence, WarningKind::Evidence]);
}

/// After a clean stop the database has applied the last entry, so the last segment is sufficient.
#[test]
fn sanity_check_does_not_read_older_segments() {
    let dir = DataDir::valid();
    flip_byte(&dir.wal_path(FIRST_SEGMENT), 67, 1);
    assert!(dir.verify(Depth::Sanity).is_valid());
    dir.assert_faults(&[FaultKind::WalRecord]);
    flip_byte(&dir.wal_path(LAST_SEGMENT), 67, 1);
    assert_eq!(
        dir.verify(Depth::Sanity).faults[0].what,
        FaultKind::WalRecord
    );
}

#[test]
fn unapplied_wal_entries_are_counted() {
    let content = DatabaseContent {
        consistent_index: Some(SNAPSHOT_INDEX + 1),
        ..DatabaseContent::valid()
    };
    let dir = DataDir::with_content(&content);
    dir.write_log(&DataDir::one_segment(|segment| {
        for (index, member) in (1..).zip(test_membership().members()) {
            let kind = ConfChangeKind::AddNode;
            segment
                .write_entry(&conf_change_entry(index, kind, member.id))
                .unwrap();
        }
        append_entries(segment, 4..=8, TERM);
        segment.write_entry(&normal_entry(9, TERM, b"")).unwrap();
        segment
            .write_entry(&normal_entry(10, TERM, b"\x3a\x00"))
            .unwrap();
        append_entries(segment, 11..=13, TERM);
        segment.write_state(&hard_state(TERM, 11)).unwrap();
        segment
            .write_snapshot(&snapshot_mark(SNAPSHOT_INDEX, None))
            .unwrap();
    }));
    for depth in [Depth::Sanity, Depth::Full] {
        let report = dir.verify(depth);
        assert!(report.is_valid(), "{report:?}");
        let facts = report.facts.unwrap();
        assert_eq!(facts.possible_writes_in_wal, Some(5), "7, 8, 11, 12, 13");
        assert_eq!(facts.committed_writes_in_wal, Some(3), "7, 8, 11");
    }
}

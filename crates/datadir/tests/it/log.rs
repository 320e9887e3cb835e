//! One thing wrong with the log.

use std::fs;
use std::path::Path;

use mainstay_datadir::{Depth, FaultKind, WarningKind};
use mainstay_ids::{MemberId, RaftIndex};
use mainstay_wal::{ConfChangeKind, Decoded, Decoder, Encoder, Identity, Place, SegmentName};

use crate::support::{
    Content, Dir, LAST, PUT_REQUEST, SNAPSHOT, TERM, change, cut, entry, flip, identity, length,
    mark, members, state,
};

const FIRST: &str = "0000000000000000-0000000000000000.wal";
const LAST_SEGMENT: &str = "0000000000000001-0000000000000008.wal";

/// Where the zeros behind the last record begin.
fn written(dir: &Dir) -> u64 {
    length(&dir.wal(LAST_SEGMENT)) - 4096
}

/// A sound directory whose second segment is another.
fn with_second(
    name: (u64, u64),
    identity: Identity,
    build: impl FnOnce(&mut Encoder<Vec<u8>>),
) -> Dir {
    let dir = Dir::sound();
    let [first, _] = Dir::log();
    let crc = crc_of(&first.1);
    let mut second = Encoder::begin(Vec::new(), crc, identity).unwrap();
    second.state(&state(TERM, 7)).unwrap();
    build(&mut second);
    let name = SegmentName {
        sequence: name.0,
        first_index: RaftIndex(name.1),
    };
    dir.write_log(&[first, (name, second.into_inner())]);
    dir
}

/// The checksum a sound segment ends with, from the record that carries it over.
fn crc_of(segment: &[u8]) -> u32 {
    let length = segment.len() as u64;
    let mut decoder = Decoder::new(segment, Path::new(""), length, Place::Inner, 0);
    while let Decoded::Record(_) = decoder.next_record().unwrap() {}
    decoder.crc()
}

fn entries(segment: &mut Encoder<Vec<u8>>, range: impl Iterator<Item = u64>, term: u64) {
    for index in range {
        segment.entry(&entry(index, term, PUT_REQUEST)).unwrap();
    }
}

#[test]
fn a_hole_between_segments_is_found_without_reading_them() {
    let dir = Dir::sound();
    let [first, (_, second)] = Dir::log();
    let name = SegmentName {
        sequence: 2,
        first_index: RaftIndex(8),
    };
    dir.write_log(&[first, (name, second)]);
    assert_eq!(
        dir.verify(Depth::Sanity).faults[0].what,
        FaultKind::WalNames
    );
    let sentence = dir.sentence(FaultKind::WalNames);
    assert!(sentence.contains("missing or doubled"), "{sentence}");
}

#[test]
fn a_flipped_bit_in_a_record_is_named_with_file_and_byte() {
    let dir = Dir::sound();
    for name in [FIRST, LAST_SEGMENT] {
        flip(&dir.wal(name), 67, 0x10);
        let report = dir.faults(&[FaultKind::WalRecord]);
        assert_eq!(report.faults[0].file, dir.wal(name));
        assert!(report.faults[0].place.starts_with("byte "), "{report:?}");
        flip(&dir.wal(name), 67, 0x10);
    }
    dir.warnings(&[]);
}

#[test]
fn an_inner_segment_that_is_cut_is_damage() {
    let dir = Dir::sound();
    cut(&dir.wal(FIRST), length(&dir.wal(FIRST)) - 8);
    dir.faults(&[FaultKind::WalRecord]);
}

#[test]
fn segments_must_continue_each_other() {
    let whole = |segment: &mut Encoder<Vec<u8>>| {
        entries(segment, 8..=LAST, TERM);
        segment.state(&state(TERM, LAST)).unwrap();
    };
    with_second((1, 8), identity(), whole).warnings(&[]);
    let stranger = Identity {
        node: MemberId(5),
        ..identity()
    };
    with_second((1, 8), stranger, whole).faults(&[FaultKind::WalOrder]);
    with_second((1, 9), identity(), whole).faults(&[FaultKind::WalOrder]);
    let gap = |segment: &mut Encoder<Vec<u8>>| entries(segment, 9..=LAST, TERM);
    with_second((1, 8), identity(), gap).faults(&[FaultKind::WalOrder]);
    let fallen = |segment: &mut Encoder<Vec<u8>>| entries(segment, 8..=LAST, TERM - 1);
    let sentence = with_second((1, 8), identity(), fallen).sentence(FaultKind::WalOrder);
    assert!(sentence.contains("entry 8 of term 1"), "{sentence}");
}

#[test]
fn a_broken_chain_between_segments_is_found() {
    let dir = Dir::sound();
    let [first, (name, _)] = Dir::log();
    let mut other = Encoder::begin(Vec::new(), 1, identity()).unwrap();
    other.state(&state(TERM, 7)).unwrap();
    dir.write_log(&[first, (name, other.into_inner())]);
    let sentence = dir.sentence(FaultKind::WalRecord);
    assert!(sentence.contains("continues crc 00000001"), "{sentence}");
}

/// What a crash cuts off was never acknowledged.
#[test]
fn a_torn_tail_is_worth_a_warning() {
    let dir = Dir::sound();
    cut(&dir.wal(LAST_SEGMENT), written(&dir) - 3);
    for depth in [Depth::Sanity, Depth::Full] {
        let report = dir.verify(depth);
        assert!(report.is_valid(), "{report:?}");
        assert_eq!(report.warnings[0].what, WarningKind::TornTail);
        let facts = report.facts.unwrap();
        assert_eq!(facts.last_wal_index, Some(RaftIndex(LAST)));
        assert_eq!(
            facts.commit,
            Some(RaftIndex(7)),
            "the record that said more is torn"
        );
    }
}

#[test]
fn a_torn_tail_that_takes_applied_entries_along_is_damage() {
    let dir = Dir::sound();
    cut(&dir.wal(LAST_SEGMENT), written(&dir) - 60);
    let report = dir.faults(&[FaultKind::IndexBeyondLog]);
    assert_eq!(report.warnings[0].what, WarningKind::TornTail);
    assert_eq!(
        report.facts.unwrap().last_wal_index,
        Some(RaftIndex(LAST - 1))
    );
}

#[test]
fn bytes_behind_the_end_mark_are_worth_a_warning() {
    let dir = Dir::sound();
    flip(&dir.wal(LAST_SEGMENT), written(&dir) + 1000, 0xff);
    dir.warnings(&[WarningKind::TrailingBytes]);
}

#[test]
fn a_log_that_has_lost_committed_entries_is_damage() {
    let lost = |segment: &mut Encoder<Vec<u8>>| {
        entries(segment, 8..=LAST, TERM);
        segment.state(&state(TERM, LAST + 1)).unwrap();
    };
    let report = with_second((1, 8), identity(), lost).faults(&[FaultKind::WalEndLost]);
    assert_eq!(report.faults[0].place, format!("index {LAST}"));
}

#[test]
fn a_prepared_segment_is_nothing_special_and_evidence_of_a_repair_is() {
    let dir = Dir::sound();
    fs::write(dir.wal("1.tmp"), [0; 100]).unwrap();
    fs::write(dir.snap("db.tmp.123"), b"left by a defragmentation").unwrap();
    dir.warnings(&[]);
    fs::write(dir.wal("0000000000000001-0000000000000008.wal.broken"), b"").unwrap();
    fs::write(
        dir.snap("0000000000000001-0000000000000001.snap.broken"),
        b"",
    )
    .unwrap();
    dir.warnings(&[WarningKind::Evidence, WarningKind::Evidence]);
}

/// After a clean stop the database has applied the last entry, so the last segment is enough.
#[test]
fn a_sanity_check_leaves_older_segments_alone() {
    let dir = Dir::sound();
    flip(&dir.wal(FIRST), 67, 1);
    assert!(dir.verify(Depth::Sanity).is_valid());
    dir.faults(&[FaultKind::WalRecord]);
    flip(&dir.wal(LAST_SEGMENT), 67, 1);
    assert_eq!(
        dir.verify(Depth::Sanity).faults[0].what,
        FaultKind::WalRecord
    );
}

#[test]
fn entries_the_database_has_not_applied_are_counted() {
    let content = Content {
        consistent_index: Some(SNAPSHOT + 1),
        ..Content::sound()
    };
    let dir = Dir::of(&content);
    dir.write_log(&Dir::one_segment(|segment| {
        for (index, member) in (1..).zip(members().members()) {
            let kind = ConfChangeKind::AddNode;
            segment.entry(&change(index, kind, member.id)).unwrap();
        }
        entries(segment, 4..=8, TERM);
        segment.entry(&entry(9, TERM, b"")).unwrap();
        segment.entry(&entry(10, TERM, b"\x3a\x00")).unwrap();
        entries(segment, 11..=13, TERM);
        segment.state(&state(TERM, 11)).unwrap();
        segment.snapshot(&mark(SNAPSHOT, None)).unwrap();
    }));
    for depth in [Depth::Sanity, Depth::Full] {
        let report = dir.verify(depth);
        assert!(report.is_valid(), "{report:?}");
        let facts = report.facts.unwrap();
        assert_eq!(facts.possible_writes_in_wal, Some(5), "7, 8, 11, 12, 13");
        assert_eq!(facts.committed_writes_in_wal, Some(3), "7, 8, 11");
    }
}

//! Truncating a torn tail.

use std::fs;

use mainstay_wal::{LogTail, RepairError, SegmentName, repair};

use crate::support::{WalDir, entry, first_segment, hard_state};

fn torn_log() -> (WalDir, Vec<u8>, usize) {
    let mut segment = first_segment();
    segment.write_entry(&entry(1, 1, b"kept")).unwrap();
    segment.write_state(&hard_state(1, 1)).unwrap();
    let intact = segment.crc();
    segment
        .write_entry(&entry(2, 1, b"cut off by a crash"))
        .unwrap();
    assert_ne!(segment.crc(), intact);
    let bytes = segment.into_inner();
    let end = *crate::support::frame_starts(&bytes)
        .iter()
        .nth_back(1)
        .unwrap();
    let cut = bytes[..bytes.len() - 8].to_vec();
    (WalDir::with_segment(&cut), cut, end)
}

#[test]
fn torn_tail_is_cut_and_a_broken_copy_is_kept() {
    let (disk, before, end) = torn_log();
    let report = repair(disk.path())
        .unwrap()
        .expect("there is something to repair");
    assert_eq!(report.end.offset, end as u64);
    assert_eq!(report.discarded_bytes, (before.len() - end) as u64);
    assert_eq!(fs::read(&report.broken_copy).unwrap(), before);
    assert_eq!(
        report.broken_copy,
        disk.path()
            .join("0000000000000000-0000000000000000.wal.broken")
    );
    assert_eq!(
        fs::read(disk.segment_path(SegmentName::FIRST)).unwrap(),
        before[..end]
    );
    let summary = disk.read_summary().unwrap();
    assert_eq!((summary.tail, summary.last_index.0), (LogTail::Clean, 1));
    assert_eq!(
        repair(disk.path()).unwrap(),
        None,
        "nothing is left to repair"
    );
}

#[test]
fn broken_copy_of_an_earlier_repair_is_kept() {
    let (disk, before, _) = torn_log();
    repair(disk.path()).unwrap();
    disk.write_segment(SegmentName::FIRST, &before);
    let second = repair(disk.path()).unwrap().unwrap();
    assert!(
        second
            .broken_copy
            .to_string_lossy()
            .ends_with(".wal.1.broken")
    );
    assert_eq!(disk.open_log().other_files().len(), 2);
}

#[test]
fn reading_never_writes() {
    let (disk, before, _) = torn_log();
    disk.read_summary().unwrap();
    assert_eq!(
        fs::read(disk.segment_path(SegmentName::FIRST)).unwrap(),
        before
    );
    assert_eq!(disk.open_log().other_files().len(), 0);
}

#[test]
fn damage_is_not_repaired() {
    let (disk, mut bytes, end) = torn_log();
    bytes[end - 20] ^= 1;
    disk.write_segment(SegmentName::FIRST, &bytes);
    assert!(matches!(repair(disk.path()), Err(RepairError::Read(_))));
    assert_eq!(
        fs::read(disk.segment_path(SegmentName::FIRST)).unwrap(),
        bytes
    );
    assert_eq!(disk.open_log().other_files().len(), 0);
}

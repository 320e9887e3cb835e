//! Flipped bits, truncation and zeroed sectors: never a panic, never a wrong result without an error.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use mainstay_ids::RaftIndex;
use mainstay_wal::{
    DecodeError, Entry, HardState, Log, LogError, LogSummary, LogTail, SegmentName,
    SegmentPosition, SnapshotMark, TornReason,
};

use crate::support::{
    WalDir, entry, first_segment, frame_starts, hard_state, new_segment_name, next_segment,
    snapshot_mark,
};
use crate::vectors::DEFAULT_RESTORE;

/// Everything read from a log.
#[derive(Debug, PartialEq)]
struct LogContent {
    entries: Vec<Entry>,
    snapshots: Vec<SnapshotMark>,
    hard_state: Option<HardState>,
    last_index: RaftIndex,
}

fn read_content(log: &Log, summary: &LogSummary) -> Result<LogContent, LogError> {
    Ok(LogContent {
        entries: log
            .entries_after(summary, RaftIndex(0))
            .collect::<Result<_, _>>()?,
        snapshots: summary.snapshots.clone(),
        hard_state: summary.hard_state,
        last_index: summary.last_index,
    })
}

/// A log with every kind of record, and values in which whole sectors are zero.
fn sample_log() -> Vec<u8> {
    let mut segment = first_segment();
    segment.write_entry(&entry(1, 1, b"")).unwrap();
    segment.write_state(&hard_state(1, 1)).unwrap();
    segment.write_entry(&entry(2, 1, b"\x22\x04abcd")).unwrap();
    segment.write_entry(&entry(3, 1, &[0; 1200])).unwrap();
    segment.write_entry(&entry(4, 1, &[7; 1200])).unwrap();
    segment.write_state(&hard_state(1, 4)).unwrap();
    segment.write_snapshot(&snapshot_mark(3, 1)).unwrap();
    segment.write_state(&hard_state(2, 4)).unwrap();
    segment.write_entry(&entry(5, 2, b"")).unwrap();
    segment.write_state(&hard_state(2, 5)).unwrap();
    segment.into_inner()
}

/// Bits of `bytes` to flip: all of a frame's length field and one of each byte after it.
fn bits_to_flip(bytes: &[u8]) -> Vec<usize> {
    const HEAD_BYTES: usize = 40;
    let starts = frame_starts(bytes);
    let is_head = |byte| {
        starts
            .iter()
            .any(|start| (*start..start + HEAD_BYTES).contains(&byte))
    };
    (0..bytes.len() * 8)
        .filter(|bit| is_head(bit / 8) || bit % 8 == bit / 8 % 8)
        .collect()
}

/// One flipped bit of a file, put back when dropped.
struct BitFlip<'a> {
    file: &'a File,
    byte: u8,
    at: u64,
}

impl<'a> BitFlip<'a> {
    fn apply(file: &'a File, bytes: &[u8], bit: usize) -> Self {
        let (byte, at) = (bytes[bit / 8], (bit / 8) as u64);
        file.write_all_at(&[byte ^ (1 << (bit % 8))], at).unwrap();
        Self { file, byte, at }
    }
}

impl Drop for BitFlip<'_> {
    fn drop(&mut self) {
        self.file.write_all_at(&[self.byte], self.at).unwrap();
    }
}

/// Flips the bits of `bytes`, written as a segment followed by `zeros`, one at a time.
fn flip_bits(bytes: &[u8], zeros: usize) {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len() + zeros, 0);
    let disk = WalDir::with_segment(&padded);
    let log = disk.open_log();
    let truth = read_content(&log, &log.read().unwrap()).unwrap();
    // Patched in place: some file systems flush a file that is truncated and rewritten.
    let file = File::options()
        .write(true)
        .open(disk.segment_path(SegmentName::FIRST))
        .unwrap();
    for bit in bits_to_flip(bytes) {
        let _restored = BitFlip::apply(&file, bytes, bit);
        let log = disk.open_log();
        let Ok(summary) = log.read() else { continue };
        if summary.tail != LogTail::Clean {
            continue;
        }
        // Padding, and spare bits of a varint, can change without changing the content of the log.
        assert_eq!(
            read_content(&log, &summary).unwrap(),
            truth,
            "byte {}, bit {}",
            bit / 8,
            bit % 8
        );
    }
}

#[test]
fn flipped_bit_never_changes_the_content_of_a_restored_log() {
    let bytes = hex::decode(DEFAULT_RESTORE).unwrap();
    flip_bits(&bytes, 0);
    flip_bits(&bytes, 4096);
}

#[test]
fn flipped_bit_never_changes_the_content_of_a_log() {
    flip_bits(&sample_log(), 0);
    flip_bits(&sample_log(), 4096);
}

#[test]
fn truncation_anywhere_keeps_the_records_before_it() {
    let bytes = sample_log();
    let starts = frame_starts(&bytes);
    assert_eq!(starts.last(), Some(&bytes.len()));
    let disk = WalDir::with_segment(&bytes);
    let file = File::options()
        .write(true)
        .open(disk.segment_path(SegmentName::FIRST))
        .unwrap();
    for length in (0..bytes.len()).rev() {
        file.set_len(length as u64).unwrap();
        let intact = *starts.iter().rev().find(|start| **start <= length).unwrap();
        let is_boundary = intact == length;
        match disk.read_summary() {
            Err(error) => assert!(
                matches!(
                    error,
                    LogError::NoMetadata { .. } | LogError::MissingHeader { .. }
                ) && intact < starts[2],
                "cut at {length}: {error}"
            ),
            Ok(summary) if is_boundary => {
                assert_eq!(summary.tail, LogTail::Clean, "cut at {length}");
            }
            Ok(summary) => {
                let discarded = bytes[intact..length].iter().rposition(|byte| *byte != 0);
                let expected = LogTail::Torn {
                    at: SegmentPosition {
                        file: disk.segment_path(SegmentName::FIRST),
                        offset: intact as u64,
                    },
                    discarded_bytes: discarded.map_or(0, |last| last as u64 + 1),
                    reason: TornReason::Truncated,
                };
                assert_eq!(summary.tail, expected, "cut at {length}");
            }
        }
    }
}

#[test]
fn truncated_segment_with_a_successor_is_damage() {
    let disk = WalDir::new();
    let mut segment = first_segment();
    segment.write_entry(&entry(1, 1, b"payload")).unwrap();
    let crc = segment.crc();
    let bytes = segment.into_inner();
    disk.write_segment(new_segment_name(1, 2), &next_segment(crc).into_inner());
    for length in 0..bytes.len() {
        disk.write_segment(SegmentName::FIRST, &bytes[..length]);
        let error = disk.read_summary().unwrap_err();
        let found = matches!(
            error,
            LogError::Decode(DecodeError::FrameTooLong { .. } | DecodeError::CrcChainBroken { .. })
                | LogError::MissingHeader { .. }
        );
        assert!(found, "cut at {length}: {error}");
    }
    disk.write_segment(SegmentName::FIRST, &bytes);
    assert_eq!(disk.read_summary().unwrap().tail, LogTail::Clean);
}

/// The tail after zeroing `range` of the frame that holds entry 4 in [`sample`], and that frame's start.
fn read_zeroed(range: std::ops::Range<usize>) -> (Result<LogSummary, LogError>, u64) {
    let mut bytes = sample_log();
    let start = frame_starts(&bytes)[7];
    bytes[range].fill(0);
    (WalDir::with_segment(&bytes).read_summary(), start as u64)
}

#[test]
fn record_with_a_zeroed_sector_is_torn() {
    let start = frame_starts(&sample_log())[7];
    let sector = (start + 8).next_multiple_of(512);
    let (read, start) = read_zeroed(sector..sector + 512);
    let LogTail::Torn { at, reason, .. } = read.unwrap().tail else {
        panic!("not torn")
    };
    assert_eq!((at.offset, reason), (start, TornReason::ZeroSector));
}

#[test]
fn record_with_less_than_a_sector_zeroed_is_damage() {
    let start = frame_starts(&sample_log())[7];
    let sector = (start + 8).next_multiple_of(512);
    let (read, start) = read_zeroed(sector + 1..sector + 512);
    let error = read.unwrap_err();
    let LogError::Decode(DecodeError::CrcMismatch { at, .. }) = &error else {
        panic!("{error}")
    };
    assert_eq!(at.offset, start);
    assert!(
        error.to_string().contains(&format!("byte {start}")),
        "{error}"
    );
}

#[test]
fn zeroed_sector_in_a_segment_with_a_successor_is_damage() {
    let mut bytes = sample_log();
    let start = frame_starts(&bytes)[7];
    let sector = (start + 8).next_multiple_of(512);
    bytes[sector..sector + 512].fill(0);
    let disk = WalDir::with_segment(&bytes);
    disk.write_segment(new_segment_name(1, 6), &next_segment(1).into_inner());
    let error = disk.read_summary().unwrap_err();
    assert!(
        matches!(error, LogError::Decode(DecodeError::CrcMismatch { .. })),
        "{error}"
    );
}

#[test]
fn bytes_after_the_end_mark_are_reported() {
    let mut bytes = sample_log();
    let end = bytes.len();
    bytes.resize(end + 5000, 0);
    bytes[end + 100] = 1;
    let disk = WalDir::with_segment(&bytes);
    let at = SegmentPosition {
        file: disk.segment_path(SegmentName::FIRST),
        offset: end as u64,
    };
    assert_eq!(
        disk.read_summary().unwrap().tail,
        LogTail::Trailing {
            at,
            discarded_bytes: 101
        }
    );
}

#[test]
fn wrong_length_allocates_no_memory() {
    let mut bytes = first_segment().into_inner();
    bytes.extend(((1_u64 << 55) | 8).to_le_bytes());
    bytes.extend([1; 64]);
    let tail = WalDir::with_segment(&bytes).read_summary().unwrap().tail;
    assert!(
        matches!(
            tail,
            LogTail::Torn {
                reason: TornReason::Truncated,
                ..
            }
        ),
        "{tail:?}"
    );

    // A sparse file that has the length given in the record.
    let mut bytes = first_segment().into_inner();
    bytes.extend((1_u64 << 30).to_le_bytes());
    let disk = WalDir::with_segment(&bytes);
    let file = File::options()
        .write(true)
        .open(disk.segment_path(SegmentName::FIRST))
        .unwrap();
    file.set_len(2 << 30).unwrap();
    let error = disk.read_summary().unwrap_err();
    assert!(
        matches!(error, LogError::Decode(DecodeError::RecordTooLarge { .. })),
        "{error}"
    );
}

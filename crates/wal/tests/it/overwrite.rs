//! Effective state of a log: overwrites, gaps, several segments, snapshots from a leader.

use mainstay_ids::{ClusterId, MemberId, RaftIndex, Term};
use mainstay_wal::{DecodeError, Encoder, Entry, LogError, WalIdentity, count_possible_writes};

use crate::support::{
    WalDir, entry, first_segment, hard_state, new_segment_name, next_segment, snapshot_mark,
};

fn read_entries(disk: &WalDir, after: u64) -> Vec<(u64, u64)> {
    let log = disk.open_log();
    let summary = log.read().unwrap();
    let entries: Vec<Entry> = log
        .entries_after(&summary, RaftIndex(after))
        .collect::<Result<_, _>>()
        .unwrap();
    entries
        .iter()
        .map(|entry| (entry.index.0, entry.term.0))
        .collect()
}

fn log_of_entries(entries: &[(u64, u64)]) -> WalDir {
    let mut segment = first_segment();
    for (index, term) in entries {
        segment.write_entry(&entry(*index, *term, b"x")).unwrap();
    }
    WalDir::with_segment(&segment.into_inner())
}

#[test]
fn entry_replaces_everything_from_its_index_on() {
    let disk = log_of_entries(&[(1, 1), (2, 1), (3, 1), (4, 1), (3, 2), (4, 3)]);
    let summary = disk.read_summary().unwrap();
    assert_eq!(summary.last_index, RaftIndex(4));
    let terms: Vec<_> = (0..=5)
        .map(|index| summary.term_at(RaftIndex(index)))
        .collect();
    let expected = [0, 1, 1, 2, 3].map(|term| Some(Term(term)));
    assert_eq!(terms[..5], expected);
    assert_eq!(terms[5], None, "after the end of the log");
    assert_eq!(read_entries(&disk, 0), [(1, 1), (2, 1), (3, 2), (4, 3)]);
    assert_eq!(read_entries(&disk, 3), [(4, 3)]);
}

#[test]
fn shortened_log_ends_at_the_overwriting_entry() {
    let disk = log_of_entries(&[(1, 1), (2, 1), (3, 1), (2, 2)]);
    assert_eq!(disk.read_summary().unwrap().last_index, RaftIndex(2));
    assert_eq!(read_entries(&disk, 0), [(1, 1), (2, 2)]);
}

#[test]
fn skipped_index_is_a_gap() {
    let error = log_of_entries(&[(1, 1), (3, 1)])
        .read_summary()
        .unwrap_err();
    assert!(
        matches!(
            error,
            LogError::IndexGap {
                last: RaftIndex(1),
                found: RaftIndex(3),
                ..
            }
        ),
        "{error}"
    );
    assert!(matches!(
        log_of_entries(&[(2, 1)]).read_summary(),
        Err(LogError::IndexGap { .. })
    ));
    assert!(matches!(
        log_of_entries(&[(0, 1)]).read_summary(),
        Err(LogError::IndexZero { .. })
    ));
}

#[test]
fn decreasing_term_is_an_error() {
    let error = log_of_entries(&[(1, 2), (2, 1)])
        .read_summary()
        .unwrap_err();
    assert!(
        matches!(
            error,
            LogError::TermDecreased {
                index: RaftIndex(2),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn decreasing_hard_state_is_an_error() {
    let mut segment = first_segment();
    segment.write_state(&hard_state(2, 0)).unwrap();
    segment.write_state(&hard_state(1, 0)).unwrap();
    let error = WalDir::with_segment(&segment.into_inner())
        .read_summary()
        .unwrap_err();
    assert!(
        matches!(
            error,
            LogError::StateTermDecreased {
                before: Term(2),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn snapshot_ahead_of_the_log_restarts_the_log() {
    let mut segment = first_segment();
    segment.write_entry(&entry(1, 1, b"x")).unwrap();
    segment.write_snapshot(&snapshot_mark(100, 5)).unwrap();
    segment.write_state(&hard_state(5, 100)).unwrap();
    segment.write_entry(&entry(101, 5, b"y")).unwrap();
    let disk = WalDir::with_segment(&segment.into_inner());
    let summary = disk.read_summary().unwrap();
    assert_eq!(
        (summary.first_index, summary.last_index),
        (Some(RaftIndex(101)), RaftIndex(101))
    );
    assert_eq!(summary.term_at(RaftIndex(100)), Some(Term(5)));
    assert_eq!(read_entries(&disk, 0), [(101, 5)]);
}

#[test]
fn only_snapshot_marks_up_to_the_commit_index_are_usable() {
    let mut segment = first_segment();
    for index in 1..=4 {
        segment.write_entry(&entry(index, 1, b"x")).unwrap();
    }
    segment.write_snapshot(&snapshot_mark(2, 1)).unwrap();
    segment.write_snapshot(&snapshot_mark(4, 1)).unwrap();
    segment.write_state(&hard_state(1, 3)).unwrap();
    let summary = WalDir::with_segment(&segment.into_inner())
        .read_summary()
        .unwrap();
    let is_usable: Vec<_> = summary
        .usable_snapshots()
        .map(|mark| mark.index.0)
        .collect();
    assert_eq!(is_usable, [2, 0]);
}

/// Three segments of two entries each; the last hard state commits entry 5.
fn three_segments() -> (WalDir, Vec<Vec<u8>>) {
    let disk = WalDir::new();
    let mut segments = Vec::new();
    let mut crc = 0;
    for sequence in 0..3 {
        let first_index = sequence * 2 + 1;
        let mut segment = if sequence == 0 {
            first_segment()
        } else {
            next_segment(crc)
        };
        if sequence > 0 {
            segment
                .write_state(&hard_state(1, first_index - 1))
                .unwrap();
        }
        segment
            .write_entry(&entry(first_index, 1, b"\x22\x00"))
            .unwrap();
        segment
            .write_entry(&entry(first_index + 1, 1, b"\x3a\x00"))
            .unwrap();
        segment.write_state(&hard_state(1, first_index)).unwrap();
        crc = segment.crc();
        let bytes = segment.into_inner();
        disk.write_segment(
            new_segment_name(sequence, if sequence == 0 { 0 } else { first_index }),
            &bytes,
        );
        segments.push(bytes);
    }
    (disk, segments)
}

#[test]
fn segments_are_read_as_one_log() {
    let (disk, _) = three_segments();
    let summary = disk.read_summary().unwrap();
    assert_eq!(
        (summary.first_index, summary.last_index),
        (Some(RaftIndex(1)), RaftIndex(6))
    );
    assert_eq!(summary.commit_index(), RaftIndex(5));
    let all: Vec<_> = (1..=6).map(|index| (index, 1)).collect();
    for after in 0..=6 {
        let skip = usize::try_from(after).unwrap();
        assert_eq!(read_entries(&disk, after), all[skip..], "after {after}");
    }
}

#[test]
fn committed_writes_after_an_index_are_counted() {
    let (disk, _) = three_segments();
    let log = disk.open_log();
    let summary = log.read().unwrap();
    let writes =
        |after| count_possible_writes(log.committed_after(&summary, RaftIndex(after))).unwrap();
    assert_eq!([0, 1, 4, 5, 9].map(writes), [3, 2, 1, 0, 0]);
}

#[test]
fn newer_segments_are_enough_to_read_the_end_of_the_log() {
    let (disk, _) = three_segments();
    let log = disk.open_log();
    let whole = log.read().unwrap();
    for (index, segments) in [(0, 3), (2, 3), (3, 2), (4, 2), (5, 1), (9, 1)] {
        let part = log.since(RaftIndex(index));
        assert_eq!(part.segments().len(), segments, "since {index}");
        let summary = part.read().unwrap();
        assert_eq!(summary.last_index, whole.last_index);
        assert_eq!(summary.hard_state, whole.hard_state);
        assert_eq!(summary.term_at(RaftIndex(6)), whole.term_at(RaftIndex(6)));
    }
}

#[test]
fn log_with_purged_first_segments_is_complete() {
    let (disk, segments) = three_segments();
    let purged = WalDir::new();
    purged.write_segment(new_segment_name(1, 3), &segments[1]);
    purged.write_segment(new_segment_name(2, 5), &segments[2]);
    let summary = purged.read_summary().unwrap();
    assert_eq!(
        (summary.first_index, summary.last_index),
        (Some(RaftIndex(3)), RaftIndex(6))
    );
    assert_eq!(read_entries(&purged, 0), read_entries(&disk, 2));
}

#[test]
fn segment_of_another_log_breaks_the_crc_chain() {
    let (disk, _) = three_segments();
    let mut alien = next_segment(0x1234_5678);
    alien.write_entry(&entry(5, 1, b"x")).unwrap();
    disk.write_segment(new_segment_name(2, 5), &alien.into_inner());
    let error = disk.read_summary().unwrap_err();
    assert!(
        matches!(error, LogError::Decode(DecodeError::CrcChainBroken { .. })),
        "{error}"
    );
}

#[test]
fn segment_of_another_member_is_refused() {
    let disk = WalDir::new();
    let mut segment = first_segment();
    segment.write_entry(&entry(1, 1, b"x")).unwrap();
    let crc = segment.crc();
    disk.write_segment(new_segment_name(0, 0), &segment.into_inner());
    let other = WalIdentity {
        node: MemberId(7),
        cluster: ClusterId(8),
    };
    let alien = Encoder::begin(Vec::new(), crc, other).unwrap();
    disk.write_segment(new_segment_name(1, 2), &alien.into_inner());
    let error = disk.read_summary().unwrap_err();
    assert!(
        matches!(
            error,
            LogError::ConflictingMetadata {
                found: MemberId(7),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn segment_with_wrong_name_is_refused() {
    let (disk, segments) = three_segments();
    std::fs::remove_file(disk.segment_path(new_segment_name(2, 5))).unwrap();
    disk.write_segment(new_segment_name(2, 6), &segments[2]);
    let error = disk.read_summary().unwrap_err();
    assert!(
        matches!(
            error,
            LogError::SegmentNameMismatch {
                expected: RaftIndex(5),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn segment_right_after_a_received_snapshot_may_have_an_older_name() {
    let disk = WalDir::new();
    let mut segment = first_segment();
    segment.write_entry(&entry(1, 1, b"x")).unwrap();
    segment.write_snapshot(&snapshot_mark(100, 5)).unwrap();
    let crc = segment.crc();
    disk.write_segment(new_segment_name(0, 0), &segment.into_inner());
    let mut segment = next_segment(crc);
    segment.write_entry(&entry(101, 5, b"y")).unwrap();
    let bytes = segment.into_inner();
    disk.write_segment(new_segment_name(1, 2), &bytes);
    assert_eq!(read_entries(&disk, 0), [(101, 5)]);
    std::fs::rename(
        disk.segment_path(new_segment_name(1, 2)),
        disk.segment_path(new_segment_name(1, 102)),
    )
    .unwrap();
    assert!(matches!(
        disk.read_summary(),
        Err(LogError::SegmentNameMismatch { .. })
    ));
}

#[test]
fn segment_without_header_is_refused() {
    for bytes in [&b""[..], &[0; 4096]] {
        let (disk, _) = three_segments();
        disk.write_segment(new_segment_name(3, 7), bytes);
        let read = disk.read_summary();
        assert!(
            matches!(read, Err(LogError::MissingHeader { .. })),
            "{} bytes: {read:?}",
            bytes.len()
        );
    }
    let only_crc = WalDir::with_segment(&first_segment().into_inner()[..16]).read_summary();
    assert!(
        matches!(only_crc, Err(LogError::MissingHeader { .. })),
        "{only_crc:?}"
    );
}

#[test]
fn missing_committed_entries_are_counted() {
    let mut segment = first_segment();
    segment.write_entry(&entry(1, 1, b"x")).unwrap();
    segment.write_state(&hard_state(1, 4)).unwrap();
    assert_eq!(
        WalDir::with_segment(&segment.into_inner())
            .read_summary()
            .unwrap()
            .lost_commits(),
        3
    );
}

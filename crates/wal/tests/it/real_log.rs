//! The log of an etcd 3.6.14 after a mixed load and a clean stop.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use mainstay_ids::{MemberId, RaftIndex};
use mainstay_wal::{
    ConfChange, Entry, EntryKind, Log, LogTail, RaftRequestKind, SegmentName, SnapshotMark,
    count_possible_writes,
};
use tempfile::TempDir;

use crate::support::{WalDir, frame_starts};

fn unpack_fixture() -> (TempDir, PathBuf) {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/gzip-3.6.14/datadir.tar.gz");
    let dir = tempfile::tempdir().unwrap();
    tar::Archive::new(GzDecoder::new(File::open(archive).unwrap()))
        .unpack(dir.path())
        .unwrap();
    let wal = dir.path().join("data/member/wal");
    (dir, wal)
}

#[test]
fn real_log_reads_clean() {
    let (_dir, wal) = unpack_fixture();
    let log = Log::open(&wal).unwrap();
    assert_eq!(log.segments()[0].length, 64_000_000);
    let summary = log.read().unwrap();
    assert_eq!(summary.tail, LogTail::Clean);
    assert_eq!(summary.snapshots, [SnapshotMark::START]);
    assert_eq!(summary.first_index, Some(RaftIndex(1)));
    assert_eq!(summary.lost_commits(), 0);
    let commit = summary.commit_index();
    assert!(commit.0 > 2000, "{commit}");
    let term = summary.hard_state.unwrap().term;
    assert_eq!(summary.term_at(summary.last_index), Some(term));

    let entries: Vec<Entry> = log
        .entries_after(&summary, RaftIndex(0))
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(entries.len() as u64, summary.last_index.0);
    let joined: Vec<MemberId> = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::ConfChange)
        .map(|entry| ConfChange::decode(&entry.data).unwrap().node)
        .collect();
    assert_eq!(joined, [summary.identity.node]);
}

/// The load ended at revision 2435, one revision per effective write.
#[test]
fn write_count_of_a_real_log_bounds_its_revision() {
    let (_dir, wal) = unpack_fixture();
    let log = Log::open(&wal).unwrap();
    let summary = log.read().unwrap();
    let entries = || log.committed_after(&summary, RaftIndex(0));
    let kinds: Vec<RaftRequestKind> = entries()
        .map(|entry| RaftRequestKind::from_entry(&entry.unwrap()))
        .collect();
    assert!(!kinds.contains(&RaftRequestKind::Unreadable));
    for kind in [
        RaftRequestKind::Put,
        RaftRequestKind::DeleteRange,
        RaftRequestKind::Txn,
        RaftRequestKind::LeaseRevoke,
    ] {
        assert!(kinds.contains(&kind), "{kind:?}");
    }
    let writes = count_possible_writes(entries()).unwrap();
    assert!(
        (2434..2434 + 500).contains(&writes),
        "{writes} writes for 2434 revisions"
    );
}

#[test]
fn real_log_cut_at_any_frame_is_shorter_and_clean() {
    let (_dir, wal) = unpack_fixture();
    let name = SegmentName::FIRST;
    let bytes = fs::read(wal.join(name.to_string())).unwrap();
    let starts = frame_starts(&bytes);
    let end = *starts.last().unwrap();
    let truth = Log::open(&wal).unwrap().read().unwrap();
    let disk = WalDir::new();
    for start in starts[2..].iter().step_by(37).chain([&end]) {
        disk.write_segment(name, &bytes[..*start]);
        let summary = disk.read_summary().unwrap();
        assert_eq!(summary.tail, LogTail::Clean, "cut at {start}");
        assert!(summary.last_index <= truth.last_index);

        disk.write_segment(name, &bytes[..start + 12]);
        let tail = disk.read_summary().unwrap().tail;
        match tail {
            LogTail::Torn { at, .. } => assert_eq!(at.offset, *start as u64),
            LogTail::Clean => assert_eq!(*start, end, "only zeros follow the last frame"),
            LogTail::Trailing { .. } => panic!("cut at {start} + 12: {tail:?}"),
        }
    }
}

#[test]
fn flipped_bit_in_a_real_log_is_reported_at_its_offset() {
    let (_dir, wal) = unpack_fixture();
    let name = SegmentName::FIRST;
    let mut bytes = fs::read(wal.join(name.to_string())).unwrap();
    let starts = frame_starts(&bytes);
    bytes.truncate(*starts.last().unwrap());
    let disk = WalDir::new();
    for frame in starts.windows(2).skip(1).step_by(53) {
        // the field of the record's checksum or the first bytes of its data
        let byte = frame[0] + 8 + 4;
        bytes[byte] ^= 0x10;
        disk.write_segment(name, &bytes);
        bytes[byte] ^= 0x10;
        let place = format!("byte {}", frame[0]);
        match disk.read_summary() {
            Err(error) => assert!(error.to_string().contains(&place), "{place}: {error}"),
            Ok(summary) => {
                let LogTail::Torn { at, .. } = summary.tail else {
                    panic!("{place} was not found")
                };
                assert_eq!(at.offset, frame[0] as u64);
            }
        }
    }
}

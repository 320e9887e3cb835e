//! Logs on disk, built for a test.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use mainstay_ids::{ClusterId, MemberId, RaftIndex, Term};
use mainstay_wal::{
    Encoder, Entry, EntryKind, HardState, Log, LogError, LogSummary, SegmentName, SnapshotMark,
    WalIdentity,
};
use tempfile::TempDir;

pub(crate) const MEMBER: WalIdentity = WalIdentity {
    node: MemberId(0x8e9e_05c5_2164_694d),
    cluster: ClusterId(0xcdf8_1819_4e3a_8c32),
};

/// A directory of segments.
pub(crate) struct WalDir {
    dir: TempDir,
}

impl WalDir {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// A log of one segment.
    pub(crate) fn with_segment(bytes: &[u8]) -> Self {
        let disk = Self::new();
        disk.write_segment(SegmentName::FIRST, bytes);
        disk
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn segment_path(&self, name: SegmentName) -> PathBuf {
        self.path().join(name.to_string())
    }

    pub(crate) fn write_segment(&self, name: SegmentName, bytes: &[u8]) {
        fs::write(self.segment_path(name), bytes).unwrap();
    }

    pub(crate) fn open_log(&self) -> Log {
        Log::open(self.path()).unwrap()
    }

    pub(crate) fn read_summary(&self) -> Result<LogSummary, LogError> {
        self.open_log().read()
    }
}

pub(crate) fn new_segment_name(sequence: u64, first_index: u64) -> SegmentName {
    SegmentName {
        sequence,
        first_index: RaftIndex(first_index),
    }
}

pub(crate) fn entry(index: u64, term: u64, data: &[u8]) -> Entry {
    let data = Bytes::copy_from_slice(data);
    Entry {
        index: RaftIndex(index),
        term: Term(term),
        kind: EntryKind::Normal,
        data,
    }
}

pub(crate) fn hard_state(term: u64, commit: u64) -> HardState {
    HardState {
        term: Term(term),
        vote: MEMBER.node,
        commit: RaftIndex(commit),
    }
}

pub(crate) fn snapshot_mark(index: u64, term: u64) -> SnapshotMark {
    SnapshotMark {
        index: RaftIndex(index),
        term: Term(term),
        conf_state: None,
    }
}

/// The first segment of a log.
pub(crate) fn first_segment() -> Encoder<Vec<u8>> {
    let mut segment = Encoder::begin(Vec::new(), 0, MEMBER).unwrap();
    segment.write_snapshot(&SnapshotMark::START).unwrap();
    segment
}

/// A segment that continues at `crc`.
pub(crate) fn next_segment(crc: u32) -> Encoder<Vec<u8>> {
    Encoder::begin(Vec::new(), crc, MEMBER).unwrap()
}

/// Where each frame of a segment starts, and where the last one ends.
pub(crate) fn frame_starts(segment: &[u8]) -> Vec<usize> {
    let mut starts = vec![0];
    let mut offset = 0;
    while offset < segment.len() {
        let field = u64::from_le_bytes(segment[offset..offset + 8].try_into().unwrap());
        if field == 0 {
            break;
        }
        let length = usize::try_from(field & ((1 << 56) - 1)).unwrap();
        offset += 8 + length.next_multiple_of(8);
        starts.push(offset);
    }
    starts
}

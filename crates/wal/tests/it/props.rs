//! Round trips of random logs, and random bytes.

use std::path::Path;

use bytes::Bytes;
use mainstay_ids::{MemberId, RaftIndex, Term};
use mainstay_wal::{
    ConfState, Decoder, Entry, EntryKind, HardState, Log, LogTail, NextRecord, RaftRequestKind,
    SegmentName, SegmentRole, SnapFile, SnapshotMark, v2store::V2Store,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{
    MEMBER, WalDir, first_segment, new_segment_name, next_segment, snapshot_mark,
};

/// Steps of a log: number of entries overwritten, whether the term rises, the data.
type LogSteps = Vec<(u64, bool, Vec<u8>)>;

fn steps() -> impl Strategy<Value = LogSteps> {
    let back = prop_oneof![9 => Just(0_u64), 1 => 1..5_u64];
    vec(
        (back, prop::bool::weighted(0.1), vec(any::<u8>(), 0..700)),
        1..60,
    )
}

/// Writes `steps` into `cuts` segments and, for comparison, into a plain list.
fn write_log(disk: &WalDir, steps: LogSteps, entries_per_segment: usize) -> Vec<Entry> {
    let mut model: Vec<Entry> = Vec::new();
    let mut segment = first_segment();
    let mut segment_name = SegmentName::FIRST;
    let mut term = 1;
    let count = steps.len();
    for (position, (back, rises, data)) in steps.into_iter().enumerate() {
        let keep = model.len().saturating_sub(usize::try_from(back).unwrap());
        let overwrites = keep < model.len();
        term += u64::from(rises || overwrites);
        model.truncate(keep);
        let index = RaftIndex(keep as u64 + 1);
        let data = Bytes::from(data);
        let entry = Entry {
            index,
            term: Term(term),
            kind: EntryKind::Normal,
            data,
        };
        segment.write_entry(&entry).unwrap();
        model.push(entry);
        if (position + 1) % entries_per_segment == 0 && position + 1 < count {
            let crc = segment.crc();
            disk.write_segment(segment_name, &segment.into_inner());
            segment = next_segment(crc);
            segment_name = new_segment_name(segment_name.sequence + 1, model.len() as u64 + 1);
        }
    }
    let state = HardState {
        term: Term(term),
        vote: MEMBER.node,
        commit: RaftIndex(model.len() as u64),
    };
    segment.write_state(&state).unwrap();
    segment
        .write_snapshot(&snapshot_mark(model.len() as u64, term))
        .unwrap();
    disk.write_segment(segment_name, &segment.into_inner());
    model
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn written_log_round_trips(steps in steps(), per_segment in 1..20_usize, after in 0..70_u64) {
        let disk = WalDir::new();
        let model = write_log(&disk, steps, per_segment);
        let log = Log::open(disk.path()).unwrap();
        let summary = log.read().unwrap();
        prop_assert_eq!(&summary.tail, &LogTail::Clean);
        prop_assert_eq!(summary.last_index.0, model.len() as u64);
        for entry in &model {
            prop_assert_eq!(summary.term_at(entry.index), Some(entry.term));
        }
        let read: Vec<Entry> =
            log.committed_after(&summary, RaftIndex(after)).collect::<Result<_, _>>().unwrap();
        let skip = model.len().min(usize::try_from(after).unwrap());
        prop_assert_eq!(&read[..], &model[skip..]);
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..2000), head in any::<bool>()) {
        let mut segment = if head { first_segment().into_inner() } else { Vec::new() };
        segment.extend(&bytes);
        for place in [SegmentRole::Inner, SegmentRole::Last] {
            let length = segment.len() as u64;
            let mut decoder = Decoder::new(&segment[..], Path::new("random.wal"), length, place, 0);
            while let Ok(NextRecord::Record(_)) = decoder.next_record() {}
            prop_assert!(decoder.offset() <= length);
        }
        let _read = WalDir::with_segment(&segment).read_summary();
        let data = Bytes::from(bytes);
        let _snap = SnapFile::decode(data.clone());
        let _store = V2Store::parse(&data);
        let entry = Entry { index: RaftIndex(1), term: Term(1), kind: EntryKind::Normal, data };
        let _kind = RaftRequestKind::from_entry(&entry);
    }

    #[test]
    fn snapshot_round_trips(
        term in any::<u64>(), index in any::<u64>(), voters in vec(any::<u64>(), 0..9),
        learners in vec(any::<u64>(), 0..3), auto_leave in any::<bool>(), data in vec(any::<u8>(), 0..300),
    ) {
        let ids = |numbers: Vec<u64>| numbers.into_iter().map(MemberId).collect::<Vec<_>>();
        let conf_state = ConfState {
            voters: ids(voters), learners: ids(learners), auto_leave, ..ConfState::default()
        };
        let snap = SnapFile { term: Term(term), index: RaftIndex(index), conf_state, data: data.into() };
        prop_assert_eq!(SnapFile::decode(snap.encode().into()).unwrap(), snap.clone());

        let mut segment = first_segment();
        let mark = SnapshotMark {
            index: snap.index, term: snap.term, conf_state: Some(snap.conf_state),
        };
        segment.write_snapshot(&mark).unwrap();
        let summary = WalDir::with_segment(&segment.into_inner()).read_summary().unwrap();
        prop_assert_eq!(summary.snapshots.last(), Some(&mark));
    }
}

//! Round trips of random logs, and random bytes.

use std::path::Path;

use bytes::Bytes;
use mainstay_ids::{MemberId, RaftIndex, Term};
use mainstay_wal::{
    ConfState, Decoded, Decoder, Entry, EntryKind, HardState, Log, Place, Request, SegmentName,
    SnapFile, SnapshotMark, Tail, v2store::V2Store,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::disk::{Disk, MEMBER, first, mark, name, next};

/// Steps of a log: how far an entry goes back, whether the term rises, its data.
type Steps = Vec<(u64, bool, Vec<u8>)>;

fn steps() -> impl Strategy<Value = Steps> {
    let back = prop_oneof![9 => Just(0_u64), 1 => 1..5_u64];
    vec(
        (back, prop::bool::weighted(0.1), vec(any::<u8>(), 0..700)),
        1..60,
    )
}

/// Plays `steps` into `cuts` segments and, beside them, into a plain list.
fn play(disk: &Disk, steps: Steps, entries_per_segment: usize) -> Vec<Entry> {
    let mut model: Vec<Entry> = Vec::new();
    let mut segment = first();
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
        segment.entry(&entry).unwrap();
        model.push(entry);
        if (position + 1) % entries_per_segment == 0 && position + 1 < count {
            let crc = segment.crc();
            disk.write(segment_name, &segment.into_inner());
            segment = next(crc);
            segment_name = name(segment_name.sequence + 1, model.len() as u64 + 1);
        }
    }
    let state = HardState {
        term: Term(term),
        vote: MEMBER.node,
        commit: RaftIndex(model.len() as u64),
    };
    segment.state(&state).unwrap();
    segment.snapshot(&mark(model.len() as u64, term)).unwrap();
    disk.write(segment_name, &segment.into_inner());
    model
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_what_is_read(steps in steps(), per_segment in 1..20_usize, after in 0..70_u64) {
        let disk = Disk::empty();
        let model = play(&disk, steps, per_segment);
        let log = Log::open(disk.path()).unwrap();
        let summary = log.read().unwrap();
        prop_assert_eq!(&summary.tail, &Tail::Clean);
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
        let mut segment = if head { first().into_inner() } else { Vec::new() };
        segment.extend(&bytes);
        for place in [Place::Inner, Place::Last] {
            let length = segment.len() as u64;
            let mut decoder = Decoder::new(&segment[..], Path::new("random.wal"), length, place, 0);
            while let Ok(Decoded::Record(_)) = decoder.next_record() {}
            prop_assert!(decoder.offset() <= length);
        }
        let _read = Disk::of(&segment).read();
        let data = Bytes::from(bytes);
        let _snap = SnapFile::decode(data.clone());
        let _store = V2Store::parse(&data);
        let entry = Entry { index: RaftIndex(1), term: Term(1), kind: EntryKind::Normal, data };
        let _kind = Request::of(&entry);
    }

    #[test]
    fn a_snapshot_survives_a_round_trip(
        term in any::<u64>(), index in any::<u64>(), voters in vec(any::<u64>(), 0..9),
        learners in vec(any::<u64>(), 0..3), auto_leave in any::<bool>(), data in vec(any::<u8>(), 0..300),
    ) {
        let ids = |numbers: Vec<u64>| numbers.into_iter().map(MemberId).collect::<Vec<_>>();
        let conf_state = ConfState {
            voters: ids(voters), learners: ids(learners), auto_leave, ..ConfState::default()
        };
        let snap = SnapFile { term: Term(term), index: RaftIndex(index), conf_state, data: data.into() };
        prop_assert_eq!(SnapFile::decode(snap.encode().into()).unwrap(), snap.clone());

        let mut segment = first();
        let mark = SnapshotMark {
            index: snap.index, term: snap.term, conf_state: Some(snap.conf_state),
        };
        segment.snapshot(&mark).unwrap();
        let summary = Disk::of(&segment.into_inner()).read().unwrap();
        prop_assert_eq!(summary.snapshots.last(), Some(&mark));
    }
}

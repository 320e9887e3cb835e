//! A damaged log gives a prefix of its records, then an error or a torn tail.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use mainstay_ids::{RaftIndex, Term};
use mainstay_wal::{Decoder, Entry, EntryKind, NextRecord, RaftRequestKind, SegmentRole};

fuzz_target!(|input: &[u8]| {
    let file = mainstay_fuzz::damaged(mainstay_fuzz::wal(), input);
    let length = file.len() as u64;
    let source = std::io::Cursor::new(&file);
    let mut decoder = Decoder::new(
        source,
        Path::new("fuzzed.wal"),
        length,
        SegmentRole::Last,
        0,
    );
    let mut at = 0;
    while let Ok(NextRecord::Record(record)) = decoder.next_record() {
        assert!(decoder.offset() > at, "a record has a length");
        at = decoder.offset();
        let (kind, term, index) = (EntryKind::Normal, Term(1), RaftIndex(1));
        let _ = RaftRequestKind::from_entry(&Entry {
            kind,
            term,
            index,
            data: record.data,
        });
    }
    assert!(at <= length);
});

//! A damaged raft snapshot is an error; a sound one encodes to what decodes the same.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use mainstay_wal::{SnapFile, v2store::V2Store};

fuzz_target!(|input: &[u8]| {
    let _ = V2Store::parse(input);
    let file = mainstay_fuzz::damaged(mainstay_fuzz::snap(), input);
    if let Ok(snap) = SnapFile::decode(Bytes::from(file)) {
        let again = SnapFile::decode(Bytes::from(snap.encode())).expect("what we wrote");
        assert_eq!(again.name(), snap.name());
    }
});

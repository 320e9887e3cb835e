//! Rows, leases and alarms from arbitrary bytes; what decodes encodes to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_mvcc::schema::{Lease, StoredAlarm};
use mainstay_mvcc::{KeyValue, RevisionKey};

fuzz_target!(|input: &[u8]| {
    if let Ok(key) = RevisionKey::decode(input) {
        assert_eq!(key.encode(), input);
    }
    if let Ok(row) = KeyValue::decode(input) {
        let mut bytes = Vec::new();
        row.encode(&mut bytes);
        assert_eq!(KeyValue::decode(&bytes), Ok(row));
    }
    let _ = Lease::decode(input);
    let _ = StoredAlarm::decode(input);
});

//! An identity that was read is printed so that reading it again gives the same one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use steward_ids::MemberId;

fuzz_target!(|text: &str| {
    if let Some(id) = MemberId::from_hex(text) {
        assert_eq!(MemberId::from_hex(&id.to_string()), Some(id));
    }
});

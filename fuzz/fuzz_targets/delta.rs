//! A delta gives the events its hash covers, or an error: never others.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_archive::delta::{DeltaReader, TRAILER_LEN};

fuzz_target!(|input: &[u8]| {
    let real = mainstay_fuzz::delta();
    let file = mainstay_fuzz::damaged(real, input);
    let mut reader = DeltaReader::new(file.as_slice());
    loop {
        match reader.next_event() {
            Ok(Some(event)) => assert!(!event.key.is_empty()),
            Ok(None) => break,
            Err(_) => return,
        }
    }
    // The end was reached: the hash fits, so a patched file is the real one.
    let is_file = input.first() == Some(&0xFF);
    assert!(is_file || file == real);
    assert!(file.len() > TRAILER_LEN);
});

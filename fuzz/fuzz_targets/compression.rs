//! Damaged compressed streams end in an error or in what was compressed, in bounded memory.
#![no_main]

use std::io::Read;
use std::num::NonZeroUsize;

use libfuzzer_sys::fuzz_target;
use mainstay_archive::compression::{Compression, open_decoder};

/// Enough for every honest input; a bomb is cut off by the reader, as in the product.
const LIMIT: u64 = 8 << 20;

fuzz_target!(|input: &[u8]| {
    let file = mainstay_fuzz::damaged(mainstay_fuzz::compressed(), input);
    let all = [
        Compression::Gzip,
        Compression::Zlib,
        Compression::Lzw,
        Compression::Zstd,
    ];
    for compression in all {
        let source = std::io::Cursor::new(file.clone());
        let Ok(stream) = open_decoder(&compression, source, NonZeroUsize::MIN) else {
            continue;
        };
        let mut plain = Vec::new();
        let ended = stream.take(LIMIT).read_to_end(&mut plain);
        let is_patched = input.first() != Some(&0xFF) && compression == Compression::Gzip;
        if is_patched && ended.is_ok() && file == mainstay_fuzz::compressed() {
            assert_eq!(plain, mainstay_fuzz::delta());
        }
    }
});

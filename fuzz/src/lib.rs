//! Real files as seeds, and patches that damage them.
//!
//! Random bytes hardly ever get past a checksum. An input is therefore read in one of two ways: as a
//! file, or as a list of patches to a real one.

use std::io::Read;
use std::sync::OnceLock;

const FULL: &[u8] = include_bytes!(
    "../../tests/fixtures/gzip-3.5.30/bucket/etcd-main/v2/Full-00000000-00000695-1794795243.gz"
);
const DELTA: &[u8] = include_bytes!(
    "../../tests/fixtures/gzip-3.5.30/bucket/etcd-main/v2/Incr-00001939-00001969-1794795255.gz"
);
const DATA_DIR: &[u8] = include_bytes!("../../tests/fixtures/gzip-3.6.14/datadir.tar.gz");

/// First byte of an input that is taken as a file; any other begins a list of patches.
const AS_FILE: u8 = 0xFF;

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    flate2::read::MultiGzDecoder::new(bytes)
        .read_to_end(&mut plain)
        .expect("a valid fixture");
    plain
}

/// A database without the hash behind it, as etcd 3.5.30 wrote it.
pub fn database() -> &'static [u8] {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(|| {
        let mut plain = gunzip(FULL);
        plain.truncate(plain.len() - 32);
        plain
    })
}

/// A delta, decompressed, with its hash.
pub fn delta() -> &'static [u8] {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(|| gunzip(DELTA))
}

/// A compressed delta.
pub fn compressed() -> &'static [u8] {
    DELTA
}

/// The log of etcd 3.6.14, its first 64 KiB.
pub fn wal() -> &'static [u8] {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(|| from_data_dir("wal", 64 << 10))
}

/// A raft snapshot of etcd 3.6.14, or an empty one when the fixture has none.
pub fn snap() -> &'static [u8] {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(|| from_data_dir("snap", 64 << 10))
}

fn from_data_dir(extension: &str, limit: u64) -> Vec<u8> {
    let tar = gunzip(DATA_DIR);
    let mut archive = tar::Archive::new(tar.as_slice());
    for entry in archive.entries().expect("a valid fixture") {
        let entry = entry.expect("a valid fixture");
        let is_wanted = entry
            .path()
            .is_ok_and(|path| path.extension().is_some_and(|found| found == extension));
        if is_wanted {
            let mut bytes = Vec::new();
            entry
                .take(limit)
                .read_to_end(&mut bytes)
                .expect("a valid fixture");
            return bytes;
        }
    }
    Vec::new()
}

/// The input as a file, or the real file with patches of (offset, byte), or cut short.
pub fn damaged(real: &[u8], input: &[u8]) -> Vec<u8> {
    if let Some((&AS_FILE, file)) = input.split_first() {
        return file.to_vec();
    }
    let mut file = real.to_vec();
    for patch in input.chunks_exact(4) {
        let place = u32::from_le_bytes([patch[0], patch[1], patch[2], 0]) as usize;
        if file.is_empty() {
            return file;
        }
        let at = place % file.len();
        match patch[3] {
            0x80 if place.is_multiple_of(7) => file.truncate(at),
            byte => file[at] ^= byte,
        }
    }
    file
}

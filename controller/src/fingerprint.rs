//! Short hashes of contents.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

use sha2::{Digest, Sha256};

/// 96 bits: a collision needs intent, and whoever could cause one can write the content anyway.
const BYTES: usize = 12;

/// The first bytes of the SHA-256, in hex.
pub(crate) fn compute(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    let mut text = String::with_capacity(2 * BYTES);
    for byte in digest.iter().take(BYTES) {
        // Writing to a string does not fail.
        write!(text, "{byte:02x}").ok();
    }
    text
}

/// A hash within this process: it may differ in another version of this program.
pub(crate) fn hash_value(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_is_short_and_depends_on_content() {
        assert_eq!(compute(b"").len(), 24);
        assert_ne!(compute(b"a"), compute(b"b"));
    }
}

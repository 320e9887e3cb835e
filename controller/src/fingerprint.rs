//! Short hashes of contents.

use std::fmt::Write;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_is_short_and_depends_on_content() {
        assert_eq!(compute(b"").len(), 24);
        assert_ne!(compute(b"a"), compute(b"b"));
    }
}

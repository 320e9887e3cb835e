//! Short names for long contents.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// How long a fingerprint is: collisions would have to be made on purpose, by whoever may write the content anyway.
const BYTES: usize = 12;

/// The fingerprint of some bytes, in hex.
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
    fn a_fingerprint_is_short_and_of_its_content() {
        assert_eq!(compute(b"").len(), 24);
        assert_ne!(compute(b"a"), compute(b"b"));
    }
}

//! Digests of 16 bytes for user keys, so that a scan needs no memory for the keys themselves.

use std::hash::{BuildHasher, RandomState};

use hashbrown::DefaultHashBuilder;

/// Digest of a user key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyDigest(u64, u64);

/// Computes [`KeyDigest`]s with random secret keys. The first half (SipHash) resists user keys chosen to collide. The
/// second half, a fast hash, extends it to 128 bits against accidental collisions.
#[derive(Clone, Debug, Default)]
pub struct KeyDigester {
    first: RandomState,
    second: DefaultHashBuilder,
}

impl KeyDigester {
    /// Returns the digest of a key; comparable only with digests of the same digester.
    pub fn digest(&self, key: &[u8]) -> KeyDigest {
        KeyDigest(self.first.hash_one(key), self.second.hash_one(key))
    }
}

/// Identity hasher: a digest needs no second hash.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdentityHasher(u64);

impl std::hash::Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 ^= word;
    }
}

/// `BuildHasher` of [`IdentityHasher`].
pub(crate) type BuildIdentityHasher = std::hash::BuildHasherDefault<IdentityHasher>;

//! Stand-ins of 16 bytes for user keys, so that a walk needs no memory for the keys themselves.

use std::hash::{BuildHasher, RandomState};

use hashbrown::DefaultHashBuilder;

/// Stands for a user key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyDigest(u64, u64);

/// Makes [`Digest`]s with secret keys of its own. The first half withstands whoever chooses user
/// keys to make two of them collide; the second, a quick one, makes it 128 bits, so that it does not
/// happen by chance either.
#[derive(Clone, Debug, Default)]
pub struct KeyDigester {
    first: RandomState,
    second: DefaultHashBuilder,
}

impl KeyDigester {
    /// The stand-in of a key; comparable only with those of the same digester.
    pub fn digest(&self, key: &[u8]) -> KeyDigest {
        KeyDigest(self.first.hash_one(key), self.second.hash_one(key))
    }
}

/// Maps and sets of digests need no second hash.
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

/// `BuildHasher` of [`Ready`].
pub(crate) type BuildIdentityHasher = std::hash::BuildHasherDefault<IdentityHasher>;

//! The keys of a load: a Kubernetes-like registry in groups, and binary keys.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore};

const GROUPS: usize = 12;
const KEYS_PER_GROUP: usize = 40;
const BINARY_KEYS: usize = 60;

/// A fixed set of distinct keys. It is small, so that keys are written, deleted and written again.
#[derive(Debug)]
pub(super) struct KeyPool {
    keys: Vec<Vec<u8>>,
}

impl KeyPool {
    pub(super) fn new(random: &mut StdRng) -> Self {
        let mut keys: Vec<Vec<u8>> = (0..GROUPS * KEYS_PER_GROUP)
            .map(|i| format!("{}object-{:02}", group_prefix(i % GROUPS), i / GROUPS).into_bytes())
            .collect();
        // The first and last keys in byte order, and keys that differ from their neighbours by a zero byte only.
        keys.extend([
            vec![0],
            vec![0, 0],
            vec![0xff],
            vec![0xff; 24],
            b"/registry".to_vec(),
        ]);
        keys.extend((0..BINARY_KEYS).map(|_| {
            let mut key = vec![0; random.random_range(1..=48)];
            random.fill_bytes(&mut key);
            key
        }));
        keys.sort_unstable();
        keys.dedup();
        Self { keys }
    }

    pub(super) fn pick_key(&self, random: &mut StdRng) -> &[u8] {
        self.keys.choose(random).expect("the pool has keys")
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.keys.iter()
    }

    /// Prefix of a random group.
    pub(super) fn pick_group(random: &mut StdRng) -> Vec<u8> {
        group_prefix(random.random_range(0..GROUPS)).into_bytes()
    }
}

fn group_prefix(group: usize) -> String {
    format!("/registry/group-{group:02}/")
}

//! Counts the live keys of a revision by prefix and by lease, and finds the largest.
//!
//! Memory: 16 bytes and a hash slot per key, a bounded number of prefixes, ten keys.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};

use mainstay_bbolt::{Database, ReadAt};
use mainstay_ids::{LeaseId, Revision};
use mainstay_mvcc::hash::HashError;
use mainstay_mvcc::{DatabaseStatusError, KeyDigester, KeyValue, RevisionKey, schema};

const SEPARATOR: u8 = b'/';
/// Limit of prefixes; keys beyond it count for a shorter prefix.
const MAX_PREFIXES: usize = 1 << 16;
/// Length limit of a prefix.
const MAX_PREFIX_BYTES: usize = 1 << 10;
/// Prefixes reported.
pub(super) const TOP_PREFIXES: usize = 20;
/// Largest keys reported.
pub(super) const TOP_KEYS: usize = 10;

/// Number and size of a group of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyCount {
    pub(super) keys: u64,
    /// Bytes of keys and values.
    pub(super) bytes: u64,
}

impl KeyCount {
    fn add(&mut self, bytes: u64) {
        self.keys += 1;
        self.bytes += bytes;
    }
}

/// The live keys of a database.
#[derive(Debug, Default)]
pub(super) struct KeySpace {
    /// Rows of the `key` bucket: all versions and tombstones.
    pub(super) rows: u64,
    pub(super) live: KeyCount,
    prefixes: BTreeMap<Vec<u8>, KeyCount>,
    largest: BinaryHeap<Reverse<(u64, Vec<u8>)>>,
    /// Live keys attached to a lease.
    pub(super) leased: u64,
    /// Live keys attached to a lease that does not exist: they never expire.
    pub(super) orphaned: u64,
    pub(super) leases: usize,
}

impl KeySpace {
    /// Scans backwards from `revision` (the newest if `None`): the first row of a key is its state.
    pub(super) fn scan<S: ReadAt>(
        database: &Database<S>,
        revision: Option<Revision>,
        depth: usize,
    ) -> Result<Self, HashError> {
        let leases = read_lease_ids(database)?;
        let root = database
            .bucket(schema::KEY)?
            .ok_or(DatabaseStatusError::NotEtcd)?;
        let mut space = Self {
            leases: leases.len(),
            ..Self::default()
        };
        let digester = KeyDigester::default();
        let mut seen = HashSet::new();
        let mut cursor = database.scan_back(&root)?;
        while let Some(item) = cursor.next()? {
            let ordinal = space.rows;
            let row = RevisionKey::decode(item.key)
                .map_err(|source| HashError::RowKey { ordinal, source })?;
            space.rows += 1;
            if revision.is_some_and(|revision| row.main > revision) {
                continue;
            }
            let kv = KeyValue::decode(item.value).map_err(|source| HashError::RowValue {
                revision: row.main,
                source,
            })?;
            let is_state = !kv.key.is_empty() && seen.insert(digester.digest(kv.key));
            if is_state && !row.is_tombstone {
                space.add_key(&kv, depth, &leases);
            }
        }
        Ok(space)
    }

    fn add_key(&mut self, kv: &KeyValue<'_>, depth: usize, leases: &HashSet<LeaseId>) {
        let bytes = (kv.key.len() + kv.value.len()) as u64;
        self.live.add(bytes);
        self.count_prefix(kv.key, depth, bytes);
        if kv.lease != LeaseId::NONE {
            self.leased += 1;
            self.orphaned += u64::from(!leases.contains(&kv.lease));
        }
        let is_large = self
            .largest
            .peek()
            .is_none_or(|Reverse((least, _))| bytes > *least);
        if is_large || self.largest.len() < TOP_KEYS {
            self.largest.push(Reverse((bytes, kv.key.to_vec())));
            if self.largest.len() > TOP_KEYS {
                self.largest.pop();
            }
        }
    }

    /// Counts a key for its prefix of that depth, or for a shorter one if there are too many prefixes.
    fn count_prefix(&mut self, key: &[u8], depth: usize, bytes: u64) {
        for depth in (0..=depth).rev() {
            let found = key_prefix(key, depth);
            if let Some(tally) = self.prefixes.get_mut(found) {
                return tally.add(bytes);
            }
            let has_room = self.prefixes.len() < MAX_PREFIXES && found.len() <= MAX_PREFIX_BYTES;
            if has_room || depth == 0 {
                let mut tally = KeyCount::default();
                tally.add(bytes);
                self.prefixes.insert(found.to_vec(), tally);
                return;
            }
        }
    }

    /// Returns the prefixes with the most bytes, and the number of others.
    pub(super) fn top_prefixes(&self) -> (Vec<(&[u8], KeyCount)>, usize) {
        let mut all: Vec<(&[u8], KeyCount)> = self
            .prefixes
            .iter()
            .map(|(prefix, tally)| (prefix.as_slice(), *tally))
            .collect();
        all.sort_by_key(|(_, tally)| Reverse((tally.bytes, tally.keys)));
        let others = all.len().saturating_sub(TOP_PREFIXES);
        all.truncate(TOP_PREFIXES);
        (all, others)
    }

    /// Returns the largest keys, largest first, with the size of key and value.
    pub(super) fn largest(&self) -> Vec<(&[u8], u64)> {
        let mut all: Vec<(u64, &[u8])> = self
            .largest
            .iter()
            .map(|Reverse((bytes, key))| (*bytes, key.as_slice()))
            .collect();
        all.sort_by_key(|(bytes, key)| (Reverse(*bytes), *key));
        all.into_iter().map(|(bytes, key)| (key, bytes)).collect()
    }
}

fn read_lease_ids<S: ReadAt>(database: &Database<S>) -> Result<HashSet<LeaseId>, HashError> {
    let rows = mainstay_mvcc::read_small_bucket(database, schema::LEASE)?;
    let id = |key: &[u8]| {
        <[u8; 8]>::try_from(key)
            .ok()
            .map(u64::from_be_bytes)
            .map(LeaseId)
    };
    Ok(rows.iter().filter_map(|(key, _)| id(key)).collect())
}

/// Returns the key up to and including its `depth`-th separator, or its last one if it has fewer. A leading separator does
/// not count.
fn key_prefix(key: &[u8], depth: usize) -> &[u8] {
    let lead = usize::from(key.first() == Some(&SEPARATOR));
    let ends = key
        .iter()
        .enumerate()
        .skip(lead)
        .filter(|(_, byte)| **byte == SEPARATOR);
    let end = ends.take(depth).last().map_or(lead, |(at, _)| at + 1);
    key.get(..end.min(if depth == 0 { 0 } else { usize::MAX }))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_at_path_separators() {
        let of = |key: &str, depth| {
            String::from_utf8_lossy(key_prefix(key.as_bytes(), depth)).into_owned()
        };
        assert_eq!(of("/registry/pods/default/a", 2), "/registry/pods/");
        assert_eq!(of("/registry/pods/default/a", 1), "/registry/");
        assert_eq!(of("/registry/pods/default/a", 9), "/registry/pods/default/");
        assert_eq!(of("a/b/c", 2), "a/b/");
        assert_eq!(of("/foo", 2), "/");
        assert_eq!(of("foo", 2), "");
        assert_eq!(of("/registry/pods", 0), "");
        assert_eq!(of("//x", 1), "//");
    }

    #[test]
    fn excess_prefixes_count_toward_a_shorter_one_and_none_is_lost() {
        let mut space = KeySpace::default();
        for number in 0..MAX_PREFIXES + 100 {
            space.count_prefix(format!("/a/{number}/x").as_bytes(), 2, 1);
        }
        assert!(space.prefixes.len() <= MAX_PREFIXES + 1);
        let counted: u64 = space.prefixes.values().map(|tally| tally.keys).sum();
        assert_eq!(counted, MAX_PREFIXES as u64 + 100);
        let (top, others) = space.top_prefixes();
        assert_eq!(
            (top.len(), others),
            (TOP_PREFIXES, space.prefixes.len() - TOP_PREFIXES)
        );
        assert_eq!((top[0].0, top[0].1.keys), (b"".as_slice(), 100));
    }

    #[test]
    fn largest_keys_are_kept() {
        let mut space = KeySpace::default();
        let none = HashSet::new();
        for size in 0..100usize {
            let (key, value) = (format!("{size:03}"), vec![0; (size * 37) % 100]);
            let kv = KeyValue {
                key: key.as_bytes(),
                value: &value,
                ..KeyValue::default()
            };
            space.add_key(&kv, 1, &none);
        }
        let sizes: Vec<u64> = space.largest().iter().map(|(_, bytes)| *bytes).collect();
        assert_eq!(sizes, (93..=102).rev().collect::<Vec<u64>>());
    }
}

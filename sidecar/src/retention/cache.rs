//! State kept between runs: verified objects, objects locked by the store, and objects already logged by a dry run.
//!
//! Never larger than the listing: entries of deleted objects are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use mainstay_archive::catalogue::{Catalogue, SnapshotObject};

/// Pause before the deletion of a locked object is retried.
const LOCK_RETRY_AFTER: SignedDuration = SignedDuration::from_hours(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectHealth {
    Intact,
    Damaged,
}

struct VerifiedObject {
    size: u64,
    modified: Timestamp,
    health: ObjectHealth,
}

#[derive(Default)]
struct CacheEntries {
    verified: BTreeMap<String, VerifiedObject>,
    locked_until: BTreeMap<String, Timestamp>,
    logged: BTreeSet<String>,
}

#[derive(Default)]
pub(super) struct RetentionCache(Mutex<CacheEntries>);

impl RetentionCache {
    /// Removes entries of objects that are not in the store any more.
    pub(super) fn retain_listed(&self, catalogue: &Catalogue) {
        let objects = catalogue.fulls.iter().chain(&catalogue.deltas);
        let chunks = catalogue.chunks.iter().map(|chunk| &chunk.object);
        let present: BTreeSet<&str> = objects.chain(chunks).map(|o| o.key.as_str()).collect();
        let mut state = self.lock();
        state
            .verified
            .retain(|key, _| present.contains(key.as_str()));
        state
            .locked_until
            .retain(|key, _| present.contains(key.as_str()));
        state.logged.retain(|key| present.contains(key.as_str()));
    }

    /// Result of an earlier verification; `None` if the object was replaced since.
    pub(super) fn lookup_health(&self, object: &SnapshotObject) -> Option<ObjectHealth> {
        let state = self.lock();
        let examined = state.verified.get(&object.key)?;
        let is_same = examined.size == object.size && examined.modified == object.modified;
        is_same.then_some(examined.health)
    }

    pub(super) fn record_health(&self, object: &SnapshotObject, health: ObjectHealth) {
        let examined = VerifiedObject {
            size: object.size,
            modified: object.modified,
            health,
        };
        self.lock().verified.insert(object.key.clone(), examined);
    }

    /// Keys of damaged objects.
    pub(super) fn damaged_keys(&self) -> Vec<String> {
        let state = self.lock();
        let damaged = state
            .verified
            .iter()
            .filter(|(_, examined)| examined.health == ObjectHealth::Damaged);
        damaged.map(|(key, _)| key.clone()).collect()
    }

    /// Records that the store refused to delete an object.
    pub(super) fn record_locked(&self, key: &str, now: Timestamp) {
        let until = now.checked_add(LOCK_RETRY_AFTER).unwrap_or(Timestamp::MAX);
        self.lock().locked_until.insert(key.to_owned(), until);
    }

    /// Locked objects, with the time of the next attempt.
    pub(super) fn locked_objects(&self, now: Timestamp) -> BTreeMap<String, Timestamp> {
        let mut state = self.lock();
        state.locked_until.retain(|_, until| *until > now);
        state.locked_until.clone()
    }

    /// Marks an object as logged; `false` if it was logged before.
    pub(super) fn mark_logged(&self, key: &str) -> bool {
        self.lock().logged.insert(key.to_owned())
    }

    fn lock(&self) -> MutexGuard<'_, CacheEntries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use mainstay_archive::catalogue::ListedObject;

    use super::*;

    fn catalogue(size: u64) -> Catalogue {
        let listed = ListedObject {
            key: "v2/Full-00000000-00000010-5.gz".to_owned(),
            size,
            modified: Timestamp::UNIX_EPOCH,
        };
        Catalogue::from_listing("", vec![listed])
    }

    #[test]
    fn replaced_object_is_not_found_in_the_cache() {
        let memory = RetentionCache::default();
        let (old, new) = (catalogue(7), catalogue(8));
        memory.record_health(&old.fulls[0], ObjectHealth::Damaged);
        assert_eq!(
            memory.lookup_health(&old.fulls[0]),
            Some(ObjectHealth::Damaged)
        );
        assert_eq!(memory.lookup_health(&new.fulls[0]), None);
    }

    #[test]
    fn deleted_objects_are_removed_from_the_cache() {
        let memory = RetentionCache::default();
        let found = catalogue(7);
        let key = &found.fulls[0].key;
        memory.record_health(&found.fulls[0], ObjectHealth::Damaged);
        memory.record_locked(key, Timestamp::UNIX_EPOCH);
        assert!(memory.mark_logged(key) && !memory.mark_logged(key));
        memory.retain_listed(&found);
        assert_eq!(memory.damaged_keys(), std::slice::from_ref(key));
        assert_eq!(memory.locked_objects(Timestamp::UNIX_EPOCH).len(), 1);
        memory.retain_listed(&Catalogue::default());
        assert!(memory.damaged_keys().is_empty() && memory.mark_logged(key));
        assert!(memory.locked_objects(Timestamp::UNIX_EPOCH).is_empty());
    }

    #[test]
    fn locked_object_is_retried_after_an_hour() {
        let memory = RetentionCache::default();
        memory.record_locked("k", Timestamp::UNIX_EPOCH);
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(memory.locked_objects(at(3599)).len(), 1);
        assert!(memory.locked_objects(at(3600)).is_empty());
    }
}

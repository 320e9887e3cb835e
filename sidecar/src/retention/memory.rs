//! What is remembered between rounds: objects that were read, and objects the store would not let go.
//!
//! No larger than the listing: an object that is gone is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use mainstay_archive::catalogue::{Catalogue, Object};

/// How long an object the store would not let go is left alone.
const REFUSED_FOR: SignedDuration = SignedDuration::from_hours(1);

/// What reading an object showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is whole.
    Sound,
    /// It is not.
    Damaged,
}

struct Examined {
    size: u64,
    modified: Timestamp,
    verdict: Verdict,
}

#[derive(Default)]
struct Notes {
    examined: BTreeMap<String, Examined>,
    refused: BTreeMap<String, Timestamp>,
    told: BTreeSet<String>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Memory(Mutex<Notes>);

impl Memory {
    /// Forgets objects that are not in the store any more.
    pub(super) fn forget_all_but(&self, catalogue: &Catalogue) {
        let objects = catalogue.fulls.iter().chain(&catalogue.deltas);
        let chunks = catalogue.chunks.iter().map(|chunk| &chunk.object);
        let present: BTreeSet<&str> = objects.chain(chunks).map(|o| o.key.as_str()).collect();
        let mut notes = self.notes();
        notes
            .examined
            .retain(|key, _| present.contains(key.as_str()));
        notes
            .refused
            .retain(|key, _| present.contains(key.as_str()));
        notes.told.retain(|key| present.contains(key.as_str()));
    }

    /// What reading this very object showed; one that was replaced since is another.
    pub(super) fn verdict(&self, object: &Object) -> Option<Verdict> {
        let notes = self.notes();
        let examined = notes.examined.get(&object.key)?;
        let is_same = examined.size == object.size && examined.modified == object.modified;
        is_same.then_some(examined.verdict)
    }

    pub(super) fn examined(&self, object: &Object, verdict: Verdict) {
        let examined = Examined {
            size: object.size,
            modified: object.modified,
            verdict,
        };
        self.notes().examined.insert(object.key.clone(), examined);
    }

    /// Keys of the objects known to be damaged.
    pub(super) fn damaged(&self) -> Vec<String> {
        let notes = self.notes();
        let damaged = notes
            .examined
            .iter()
            .filter(|(_, examined)| examined.verdict == Verdict::Damaged);
        damaged.map(|(key, _)| key.clone()).collect()
    }

    /// The store would not let this object go.
    pub(super) fn refuse(&self, key: &str, now: Timestamp) {
        let until = now.checked_add(REFUSED_FOR).unwrap_or(Timestamp::MAX);
        self.notes().refused.insert(key.to_owned(), until);
    }

    /// Objects to be left alone, and until when.
    pub(super) fn refused(&self, now: Timestamp) -> BTreeMap<String, Timestamp> {
        let mut notes = self.notes();
        notes.refused.retain(|_, until| *until > now);
        notes.refused.clone()
    }

    /// Whether this object was not named before.
    pub(super) fn is_news(&self, key: &str) -> bool {
        self.notes().told.insert(key.to_owned())
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use mainstay_archive::catalogue::Listed;

    use super::*;

    fn catalogue(size: u64) -> Catalogue {
        let listed = Listed {
            key: "v2/Full-00000000-00000010-5.gz".to_owned(),
            size,
            modified: Timestamp::UNIX_EPOCH,
        };
        Catalogue::from_listing("", vec![listed])
    }

    #[test]
    fn a_replaced_object_is_not_the_one_that_was_read() {
        let memory = Memory::default();
        let (old, new) = (catalogue(7), catalogue(8));
        memory.examined(&old.fulls[0], Verdict::Damaged);
        assert_eq!(memory.verdict(&old.fulls[0]), Some(Verdict::Damaged));
        assert_eq!(memory.verdict(&new.fulls[0]), None);
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let memory = Memory::default();
        let found = catalogue(7);
        let key = &found.fulls[0].key;
        memory.examined(&found.fulls[0], Verdict::Damaged);
        memory.refuse(key, Timestamp::UNIX_EPOCH);
        assert!(memory.is_news(key) && !memory.is_news(key));
        memory.forget_all_but(&found);
        assert_eq!(memory.damaged(), std::slice::from_ref(key));
        assert_eq!(memory.refused(Timestamp::UNIX_EPOCH).len(), 1);
        memory.forget_all_but(&Catalogue::default());
        assert!(memory.damaged().is_empty() && memory.is_news(key));
        assert!(memory.refused(Timestamp::UNIX_EPOCH).is_empty());
    }

    #[test]
    fn a_refusal_is_tried_again_after_an_hour() {
        let memory = Memory::default();
        memory.refuse("k", Timestamp::UNIX_EPOCH);
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(memory.refused(at(3599)).len(), 1);
        assert!(memory.refused(at(3600)).is_empty());
    }
}

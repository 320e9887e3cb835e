//! Records acknowledged writes and checks that they are present.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use mainstay_ids::Revision;
use mainstay_testkit::Kv;

/// Acknowledged writes. Every key in here is put once and deleted at most once.
#[derive(Clone, Debug, Default)]
pub(crate) struct AckedWrites(Arc<Mutex<AckedState>>);

#[derive(Debug, Default)]
struct AckedState {
    puts: BTreeMap<Vec<u8>, (Revision, Vec<u8>)>,
    deletes: BTreeMap<Vec<u8>, Revision>,
    /// Deletes without an answer: they may or may not have happened.
    uncertain_deletes: BTreeSet<Vec<u8>>,
}

impl AckedWrites {
    pub(crate) fn record_put(&self, revision: Revision, key: Vec<u8>, value: Vec<u8>) {
        self.0.lock().unwrap().puts.insert(key, (revision, value));
    }

    pub(crate) fn record_delete(&self, revision: Revision, key: Vec<u8>) {
        self.0.lock().unwrap().deletes.insert(key, revision);
    }

    pub(crate) fn record_uncertain_delete(&self, key: Vec<u8>) {
        self.0.lock().unwrap().uncertain_deletes.insert(key);
    }

    /// Number of acknowledged writes.
    pub(crate) fn count(&self) -> usize {
        let known = self.0.lock().unwrap();
        known.puts.len() + known.deletes.len()
    }

    /// The newest acknowledged revision.
    pub(crate) fn newest_revision(&self) -> Revision {
        let known = self.0.lock().unwrap();
        let puts = known.puts.values().map(|(revision, _)| *revision);
        puts.chain(known.deletes.values().copied())
            .max()
            .unwrap_or_default()
    }

    /// Fails if a write acknowledged up to this revision is missing.
    pub(crate) fn assert_present(&self, keys: &[Kv], through: Revision, context: &str) {
        let found: BTreeMap<&[u8], &Kv> = keys.iter().map(|kv| (kv.key.as_slice(), kv)).collect();
        let known = self.0.lock().unwrap();
        let mut checked = 0;
        for (key, (revision, value)) in &known.puts {
            let name = String::from_utf8_lossy(key);
            if *revision > through || known.uncertain_deletes.contains(key) {
                continue;
            }
            checked += 1;
            let kv = found.get(key.as_slice());
            if known
                .deletes
                .get(key)
                .is_some_and(|deleted| *deleted <= through)
            {
                assert!(
                    kv.is_none(),
                    "{context}: {name} was deleted before {through}"
                );
                continue;
            }
            let kv = kv.unwrap_or_else(|| {
                panic!("{context}: {name}, acknowledged at {revision}, is not in {through}")
            });
            assert_eq!(
                (kv.mod_revision, &kv.value),
                (*revision, value),
                "{context}: {name}"
            );
        }
        assert!(
            checked > 0,
            "{context}: no write was acknowledged before {through}"
        );
    }
}

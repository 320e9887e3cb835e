//! A rebuilt database has the hash of the one that was backed up.

use mainstay_archive::chain::ChainTarget;
use mainstay_ids::Revision;
use mainstay_mvcc::hash::hash_kv;

use crate::support::{FIXTURES, FixtureBucket, FixtureState, restore_database};

#[test]
fn every_fixture_is_restored_with_the_hash_of_its_source() {
    for name in FIXTURES {
        let expected = FixtureState::load(name);
        let restored =
            restore_database(&FixtureBucket::open_fixture(name), ChainTarget::Latest).unwrap();
        assert_eq!(restored.rebuilt.revision, expected.revision, "{name}");
        let hash = hash_kv(&restored.database, None).unwrap();
        assert_eq!(
            (hash.hash, hash.revision),
            (expected.hash, expected.revision),
            "{name}"
        );
        assert_eq!(
            restored.verify(),
            (expected.keys, expected.leased_keys),
            "{name}"
        );
    }
}

#[test]
fn restore_to_any_revision_has_the_hash_of_the_full_history() {
    for name in FIXTURES {
        let bucket = FixtureBucket::open_fixture(name);
        let whole = restore_database(&bucket, ChainTarget::Latest).unwrap();
        let last = whole.rebuilt.revision.0;
        let first = bucket.catalogue().fulls[0].name.last.0;
        for revision in (first..=last)
            .step_by(97)
            .chain([first, first + 1, last - 1, last])
        {
            let revision = Revision(revision);
            let part = restore_database(&bucket, ChainTarget::Revision(revision)).unwrap();
            assert_eq!(part.rebuilt.revision, revision, "{name}");
            assert_eq!(
                hash_kv(&part.database, None).unwrap(),
                hash_kv(&whole.database, Some(revision)).unwrap(),
                "{name} at {revision}"
            );
            part.verify();
        }
    }
}

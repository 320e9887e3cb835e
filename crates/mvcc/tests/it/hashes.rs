//! `HashKV` and the status hash equal those reported by etcd 3.4.23, 3.5.16 and 3.5.30.

use mainstay_ids::Revision;
use mainstay_mvcc::DatabaseStatus;
use mainstay_mvcc::hash::{HashError, HashKv, compute_status_hash, hash_kv, hash_kv_compacted};

use crate::support::{PutRow, build_database, data_set_1, data_set_2, put};

fn hash_at(database: &mainstay_bbolt::Database<Vec<u8>>, revision: i64) -> u32 {
    hash_kv(database, Some(Revision(revision))).unwrap().hash
}

#[test]
fn empty_store_hashes_to_the_bucket_name() {
    let database = build_database(&[], None, None);
    let answer = HashKv {
        hash: 1_084_519_789,
        revision: Revision(1),
        compact_revision: None,
    };
    assert_eq!(hash_kv(&database, None).unwrap(), answer);
}

#[test]
fn uncompacted_history_hashes_like_a_live_server() {
    let database = build_database(&data_set_1(), None, None);
    let answers = [
        (1, 1_084_519_789),
        (2, 2_587_454_935),
        (3, 1_827_592_406),
        (4, 2_069_675_932),
        (5, 1_125_682_900),
        (6, 1_755_817_298),
        (7, 1_013_074_333),
        (8, 3_754_312_113),
    ];
    for (revision, answer) in answers {
        assert_eq!(hash_at(&database, revision), answer, "revision {revision}");
    }
}

#[test]
fn hash_is_the_same_before_and_after_physical_compaction() {
    let rows = data_set_1();
    let physical: Vec<_> = rows
        .iter()
        .filter(|row| row.key.main >= Revision(4))
        .cloned()
        .collect();
    let answers = [
        (5, 3_184_071_396),
        (6, 3_244_272_178),
        (7, 2_609_586_680),
        (8, 1_868_557_913),
    ];
    for rows in [&rows, &physical] {
        let database = build_database(rows, Some(5), Some(5));
        for (revision, answer) in answers {
            assert_eq!(hash_at(&database, revision), answer, "revision {revision}");
        }
        assert!(matches!(
            hash_kv(&database, Some(Revision(4))),
            Err(HashError::Compacted {
                oldest: Revision(5),
                ..
            })
        ));
        assert!(matches!(
            hash_kv(&database, Some(Revision(9))),
            Err(HashError::FutureRevision {
                current: Revision(8),
                ..
            })
        ));
    }
}

#[test]
fn file_hash_matches_servers_compacted_at_or_after_its_compaction() {
    let history = build_database(&data_set_1(), None, None);
    let compacted = build_database(&data_set_1(), Some(5), Some(5));
    let asked = (Revision(8), Some(Revision(5)));
    for database in [&history, &compacted] {
        let answer = hash_kv_compacted(database, asked.0, asked.1).unwrap();
        assert_eq!(
            (answer.hash, answer.compact_revision),
            (1_868_557_913, asked.1)
        );
    }
    for less_far in [None, Some(Revision(4))] {
        assert!(matches!(
            hash_kv_compacted(&compacted, Revision(8), less_far),
            Err(HashError::Compacted {
                oldest: Revision(5),
                ..
            })
        ));
    }
}

#[test]
fn tombstones_at_the_compaction_revision_are_not_hashed() {
    let rows = data_set_2();
    assert_eq!(hash_at(&build_database(&rows, None, None), 7), 257_016_211);
    assert_eq!(
        hash_at(&build_database(&rows, None, None), 4),
        2_631_046_912
    );
    let compacted: Vec<_> = rows
        .iter()
        .filter(|row| row.key.main != Revision(2))
        .cloned()
        .collect();
    let at_4 = build_database(&compacted, Some(4), Some(4));
    assert_eq!(hash_at(&at_4, 5), 742_924_646);
    assert_eq!(hash_at(&at_4, 6), 3_715_177_404);
    assert_eq!(hash_at(&at_4, 7), 3_709_324_901);
    let at_7 = build_database(&rows[5..], Some(7), Some(7));
    assert_eq!(hash_at(&at_7, 7), 1_084_519_789);
}

#[test]
fn compaction_mark_beyond_the_rows_raises_the_revision() {
    let rows = [
        PutRow {
            at: (5, 0),
            key: "a",
            value: "v",
            created: 3,
            version: 2,
            lease: 0,
        }
        .to_row(),
        put((7, 0), "b", "w"),
    ];
    let database = build_database(&rows, Some(1_000_000), Some(1_000_000));
    assert_eq!(
        DatabaseStatus::read(&database).unwrap().revision,
        Revision(1_000_000)
    );
    assert_eq!(hash_kv(&database, None).unwrap().hash, 2_973_617_071);
}

#[test]
fn status_hash_of_the_smallest_file_is_the_documented_one() {
    let database = build_database(&[put((2, 0), "a", "1")], None, None);
    let status = compute_status_hash(&database).unwrap();
    assert_eq!((status.hash, status.entries), (103_412_234, 3));
}

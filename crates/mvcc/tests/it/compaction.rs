//! A compaction keeps the same rows as etcd, proven by the hash.

use mainstay_bbolt::{BboltError, Database, check};
use mainstay_ids::Revision;
use mainstay_mvcc::DatabaseStatus;
use mainstay_mvcc::compact::{SurvivingRows, compact_into};
use mainstay_mvcc::hash::hash_kv;

use crate::support::{
    MemoryDisk, Row, build_database, check_history, data_set_1, data_set_2, row_names,
};

pub(crate) fn compact_database(source: &Database<Vec<u8>>, revision: i64) -> Database<Vec<u8>> {
    let revision = Revision(revision);
    let survivors = SurvivingRows::find(source, revision).unwrap();
    let disk = MemoryDisk::default();
    compact_into(source, &survivors, revision, &disk, &mut |_| {}).unwrap();
    let result = Database::open(disk.into_bytes()).unwrap();
    let checked = check(&result, |_, _| Ok::<_, BboltError>(())).unwrap();
    assert_eq!(
        checked.pages_used, checked.pages_total,
        "no page may be garbage"
    );
    result
}

fn check_compaction(rows: &[Row], revision: i64, expected: &[&str]) {
    let source = build_database(rows, None, None);
    let result = compact_database(&source, revision);
    assert_eq!(row_names(&result), expected);
    let facts = DatabaseStatus::read(&result).unwrap();
    assert_eq!(facts.compact_revision(), Some(Revision(revision)));
    assert_eq!(facts.revision, Revision(rows.last().unwrap().key.main.0));
    assert!(
        check_history(&result)
            .unwrap()
            .warnings
            .iter()
            .all(|w| !w.to_string().contains("removed"))
    );
}

#[test]
fn documented_rows_survive_compaction() {
    let at_5 = ["4.0", "5.0t", "6.0", "7.0", "7.1", "7.2t", "8.0"];
    check_compaction(&data_set_1(), 5, &at_5);
    check_compaction(&data_set_2(), 4, &["3.0", "4.0t", "5.0", "6.0t", "7.0t"]);
    check_compaction(&data_set_2(), 7, &["7.0t"]);
}

#[test]
fn compacted_file_hashes_like_a_logically_compacted_source() {
    let rows = data_set_1();
    let source = build_database(&rows, None, None);
    for compact in 2..=8 {
        let result = compact_database(&source, compact);
        let logical = build_database(&rows, Some(compact), Some(compact));
        for revision in compact..=8 {
            assert_eq!(
                hash_kv(&result, Some(Revision(revision))).unwrap(),
                hash_kv(&logical, Some(Revision(revision))).unwrap(),
                "compacted at {compact}, hash at {revision}"
            );
        }
    }
}

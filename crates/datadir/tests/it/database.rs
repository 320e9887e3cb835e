//! Databases with one fault each.

use std::fs;

use mainstay_bbolt::Update;
use mainstay_datadir::{Depth, DirVerdict, FaultKind, WarningKind};
use mainstay_ids::{LeaseId, RaftIndex, Revision};
use mainstay_mvcc::{RevisionKey, schema};

use crate::support::{
    BucketItem, DataDir, DatabaseContent, delete_row, file_length, flip_byte, leased_put_row,
    open_read_write, overwrite, put_row, set_length,
};

const PAGE_SIZE: u64 = 4096;

/// Replaces one bucket of a valid database.
fn dir_with_bucket(name: &[u8], items: &[BucketItem]) -> DataDir {
    let dir = DataDir::valid();
    let mut update = Update::open(open_read_write(&dir.db_path())).unwrap();
    let mut bucket = update.rewrite_bucket(name);
    for (key, value) in items {
        bucket.add(key, value).unwrap();
    }
    bucket.finish().unwrap();
    update.commit().unwrap();
    dir
}

fn dir_with_rows(rows: Vec<BucketItem>) -> DataDir {
    DataDir::with_content(&DatabaseContent {
        rows,
        ..DatabaseContent::valid()
    })
}

/// A key bucket of several pages.
fn multi_page_content() -> DatabaseContent {
    let rows = (2..800).map(|main| put_row((main, 0), &format!("{main:040}"), main, 1));
    DatabaseContent {
        rows: rows.collect(),
        ..DatabaseContent::valid()
    }
}

/// The pages of this kind.
fn find_pages(dir: &DataDir, flags: u8) -> Vec<u64> {
    let bytes = fs::read(dir.db_path()).unwrap();
    let pages = bytes.chunks(4096).enumerate().skip(2);
    pages
        .filter(|(_, page)| page[8] == flags)
        .map(|(at, _)| at as u64)
        .collect()
}

#[test]
fn one_damaged_meta_page_is_a_warning_and_two_are_corruption() {
    for page in [0, 1] {
        let dir = DataDir::valid();
        let sound = dir.assert_warnings(&[]).facts.unwrap();
        flip_byte(&dir.db_path(), page * PAGE_SIZE + 40, 1);
        let report = dir.assert_warnings(&[WarningKind::MetaPage]);
        assert_eq!(report.warnings[0].place, format!("page {page}"));
        let facts = report.facts.unwrap();
        assert_eq!((facts.revision, facts.rows), (sound.revision, sound.rows));
        flip_byte(&dir.db_path(), (1 - page) * PAGE_SIZE + 40, 1);
        let report = dir.assert_faults(&[FaultKind::NoMetaPage]);
        assert_eq!(report.facts, None);
    }
}

#[test]
fn database_shorter_than_its_meta_page_states_is_truncated() {
    let dir = DataDir::with_content(&multi_page_content());
    set_length(&dir.db_path(), file_length(&dir.db_path()) - 1);
    let sentence = dir.assert_single_fault(FaultKind::Truncated);
    assert!(sentence.contains("snap/db, byte "), "{sentence}");
}

#[test]
fn every_invalid_page_field_is_detected_and_named() {
    let dir = DataDir::with_content(&multi_page_content());
    let leaf = find_pages(&dir, 0x02)[1];
    let branch = find_pages(&dir, 0x01)[0];
    for (what, page, offset, mask) in [
        ("page ID", leaf, 0, 0x40),
        ("page kind", leaf, 8, 0x03),
        ("element count", leaf, 11, 0x80),
        ("page length", leaf, 13, 0x80),
        ("element offset", leaf, 16 + 6, 0x80),
        ("key length", leaf, 16 + 10, 0x80),
        ("nested bucket flag", leaf, 16, 0x01),
        ("branch child", branch, 16 + 16 + 8, 0x01),
        ("branch key", branch, 16 + 3, 0x01),
        ("child count", branch, 10, 0x01),
    ] {
        flip_byte(&dir.db_path(), page * PAGE_SIZE + offset, mask);
        let report = dir.assert_faults(&[FaultKind::Page]);
        let place = &report.faults[0].place;
        assert!(place.starts_with("page "), "{what}: {place}");
        assert!(
            report.facts.is_none_or(|facts| facts.rows.is_none()),
            "{what}"
        );
        flip_byte(&dir.db_path(), page * PAGE_SIZE + offset, mask);
    }
    dir.assert_warnings(&[]);
}

#[test]
fn unordered_keys_and_a_wrong_branch_key_are_detected() {
    let dir = DataDir::with_content(&multi_page_content());
    let leaf = find_pages(&dir, 0x02)[1];
    let bytes = fs::read(dir.db_path()).unwrap();
    let page = &bytes[usize::try_from(leaf * PAGE_SIZE).unwrap()..];
    let count = u64::from(page[10]) + u64::from(page[11]) * 256;
    let first_key = leaf * PAGE_SIZE + 16 + count * 16;
    flip_byte(&dir.db_path(), first_key + 6, 0x01);
    let sentence = dir.assert_single_fault(FaultKind::Page);
    assert!(
        sentence.contains("does not carry the first key"),
        "{sentence}"
    );
    flip_byte(&dir.db_path(), first_key + 6, 0x01);
    // The second element points at the key of the first.
    let position = u32::from_le_bytes(page[16 + 4..16 + 8].try_into().unwrap()) - 16;
    let second = leaf * PAGE_SIZE + 16 + 16;
    overwrite(&dir.db_path(), second + 4, &position.to_le_bytes());
    let sentence = dir.assert_single_fault(FaultKind::Page);
    assert!(
        sentence.contains("is not greater than the key before it"),
        "{sentence}"
    );
}

#[test]
fn applied_database_without_key_bucket_is_not_an_etcd_database() {
    let dir = DataDir::valid();
    let mut update = Update::open(open_read_write(&dir.db_path())).unwrap();
    update.remove_bucket(schema::KEY);
    update.commit().unwrap();
    dir.assert_faults(&[FaultKind::NotEtcd]);
}

#[test]
fn unknown_bucket_is_a_warning() {
    let report = dir_with_bucket(b"leasf", &[]).assert_warnings(&[WarningKind::UnknownBucket]);
    assert_eq!(report.warnings[0].place, "bucket \"leasf\"");
}

#[test]
fn unreadable_entry_is_named_with_its_bucket() {
    let item = |key: &[u8], value: &[u8]| (key.to_vec(), value.to_vec());
    for (bucket, entry, place) in [
        (
            schema::META,
            item(schema::CONSISTENT_INDEX, b"1234567"),
            "bucket meta, consistent_index",
        ),
        (schema::META, item(schema::TERM, b""), "bucket meta, term"),
        (
            schema::META,
            item(schema::FINISHED_COMPACT, b"x"),
            "bucket meta, finishedCompactRev",
        ),
        (schema::MEMBERS, item(b"xyz", b"{}"), "bucket members"),
        (schema::MEMBERS, item(b"ab", b"{"), "bucket members, ab"),
        (
            schema::MEMBERS,
            item(b"ab", b"{\"id\":1}"),
            "bucket members, ab",
        ),
        (
            schema::MEMBERS_REMOVED,
            item(b"-1", b"removed"),
            "bucket members_removed",
        ),
        (schema::ALARM, item(b"\xff", b""), "bucket alarm"),
        (schema::LEASE, item(b"12345678", b"\xff"), "bucket lease"),
        (
            schema::LEASE,
            item(b"12345678", b"\x08\x01"),
            "bucket lease",
        ),
    ] {
        let report = dir_with_bucket(bucket, &[entry]).assert_faults(&[FaultKind::Entry]);
        assert_eq!(report.faults[0].place, place, "{report:?}");
    }
}

#[test]
fn finished_compaction_that_was_never_scheduled_is_corruption() {
    let content = |scheduled_compact, finished_compact| DatabaseContent {
        scheduled_compact,
        finished_compact,
        ..DatabaseContent::valid()
    };
    DataDir::with_content(&content(Some(2), Some(3))).assert_faults(&[FaultKind::CompactionOrder]);
    for finished_compact in [None, Some(2), Some(3)] {
        let report = DataDir::with_content(&content(Some(3), finished_compact)).verify(Depth::Full);
        assert!(report.is_valid(), "{report:?}");
    }
}

#[test]
fn invalid_row_is_named_by_its_revision() {
    let first = || put_row((2, 0), "a", 2, 1);
    let broken = |value: &[u8]| (first().0, value.to_vec());
    let rows = [
        ("no revision", (b"17 bytes, no mark".to_vec(), first().1)),
        ("no message", broken(b"\xff")),
        ("cut", broken(&first().1[..first().1.len() - 1])),
        (
            "another mod revision",
            (first().0, put_row((3, 0), "a", 2, 1).1),
        ),
        ("created later", put_row((2, 0), "a", 3, 1)),
        ("created never", put_row((2, 0), "a", 0, 2)),
        ("version 0", put_row((2, 0), "a", 2, 0)),
        ("version 1 of an older key", put_row((2, 0), "a", 1, 1)),
        ("no key", put_row((2, 0), "", 2, 1)),
    ];
    for (what, row) in rows {
        let report = dir_with_rows(vec![row]).assert_faults(&[FaultKind::Row]);
        let place = &report.faults[0].place;
        let expected = ["revision 2", "row 0", "newest row"];
        assert!(expected.contains(&place.as_str()), "{what}: {place}");
    }
}

#[test]
fn row_that_does_not_continue_its_key_breaks_the_history() {
    let first = put_row((2, 0), "a", 2, 1);
    for row in [
        put_row((3, 0), "a", 2, 3),
        put_row((3, 0), "a", 1, 2),
        put_row((3, 0), "a", 3, 1),
        put_row((3, 0), "b", 2, 2),
        delete_row((3, 0), "b"),
    ] {
        let report = dir_with_rows(vec![first.clone(), row]).assert_faults(&[FaultKind::History]);
        assert_eq!(report.faults[0].place, "revision 3");
    }
}

#[test]
fn missing_transaction_is_a_gap() {
    for at in [(4, 0), (3, 1), (2, 2)] {
        let rows = vec![put_row((2, 0), "a", 2, 1), put_row(at, "b", at.0, 1)];
        let report = dir_with_rows(rows).assert_faults(&[FaultKind::RevisionGap]);
        assert_eq!(
            report.faults[0].place,
            format!("revision {}.{}", at.0, at.1)
        );
    }
}

#[test]
fn unfinished_compaction_is_valid_and_leftover_rows_are_a_warning() {
    let content = |finished_compact| DatabaseContent {
        scheduled_compact: Some(5),
        finished_compact,
        ..DatabaseContent::valid()
    };
    let facts = DataDir::with_content(&content(None))
        .assert_warnings(&[])
        .facts
        .unwrap();
    assert_eq!(facts.compact_revision, Some(Revision(5)));
    DataDir::with_content(&content(Some(5))).assert_warnings(&[WarningKind::Superseded]);
    // A compaction at 5 keeps the newest put of each key, and may keep the delete at 5.
    for rows in [
        vec![
            put_row((3, 1), "c", 3, 1),
            put_row((4, 0), "a", 2, 2),
            delete_row((5, 0), "b"),
        ],
        vec![put_row((3, 1), "c", 3, 1), put_row((4, 0), "a", 2, 2)],
    ] {
        DataDir::with_content(&DatabaseContent {
            rows,
            ..content(Some(5))
        })
        .assert_warnings(&[]);
    }
}

#[test]
fn bumped_revision_marker_is_valid() {
    let mut content = DatabaseContent::valid();
    let mark = RevisionKey::first_of(Revision(1_000_006)).encode();
    content.rows.push((mark, Vec::new()));
    content.scheduled_compact = Some(1_000_006);
    let dir = DataDir::with_content(&content);
    assert_eq!(
        dir.assert_warnings(&[]).facts.unwrap().revision,
        Revision(1_000_006)
    );
    assert!(dir.verify(Depth::Sanity).is_valid());
}

#[test]
fn keys_with_a_missing_lease_are_a_warning() {
    let rows = vec![
        leased_put_row((2, 0), "a", (2, 1), LeaseId(1)),
        leased_put_row((3, 0), "b", (3, 1), LeaseId(77)),
        leased_put_row((4, 0), "c", (4, 1), LeaseId(2)),
        put_row((5, 0), "c", 4, 2),
    ];
    let report = dir_with_rows(rows).assert_warnings(&[WarningKind::UnknownLease]);
    assert!(
        report.warnings[0].reason.starts_with("1 keys"),
        "{report:?}"
    );
}

/// The sanity check reads a few pages: of the rows only the newest.
#[test]
fn sanity_check_reads_the_newest_row_only() {
    let mut rows = DatabaseContent::valid().rows;
    rows[0].1 = b"\xff".to_vec();
    let dir = dir_with_rows(rows.clone());
    assert!(dir.verify(Depth::Sanity).is_valid());
    dir.assert_faults(&[FaultKind::Row]);
    rows[5].1 = b"\xff".to_vec();
    let report = dir_with_rows(rows).verify(Depth::Sanity);
    assert_eq!(report.verdict, DirVerdict::Corrupt);
    assert_eq!(report.faults[0].what, FaultKind::Row);
    assert_eq!(report.faults[0].place, "revision 6");
}

#[test]
fn database_and_wal_are_verified_independently() {
    let dir = DataDir::valid();
    set_length(&dir.db_path(), 100);
    flip_byte(
        &dir.wal_path("0000000000000000-0000000000000000.wal"),
        67,
        1,
    );
    let report = dir.assert_faults(&[FaultKind::Truncated, FaultKind::WalRecord]);
    assert_eq!(report.facts, None);
    let dir = DataDir::valid();
    flip_byte(
        &dir.wal_path("0000000000000000-0000000000000000.wal"),
        67,
        1,
    );
    let facts = dir.assert_faults(&[FaultKind::WalRecord]).facts.unwrap();
    assert_eq!((facts.revision, facts.rows), (Revision(6), Some(6)));
    assert_eq!(facts.consistent_index, Some(RaftIndex(12)));
    assert_eq!(facts.last_wal_index, None);
}

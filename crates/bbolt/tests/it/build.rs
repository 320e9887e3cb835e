//! Created and appended files contain the items written.

use mainstay_bbolt::{BboltError, Database, LeafWriter, Update, WrittenLeaf};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use crate::support::{BucketModel, LoggedDisk, build_file, read_bucket, rows};

#[test]
fn smallest_useful_file_is_byte_identical_to_the_reference() {
    let key: BucketModel = [(
        hex::decode("00000000000000025f0000000000000000").unwrap(),
        hex::decode("0a01611002180220012a0131").unwrap(),
    )]
    .into();
    let one = 1u64.to_be_bytes().to_vec();
    let meta: BucketModel = [
        (b"consistent_index".to_vec(), one.clone()),
        (b"term".to_vec(), one),
    ]
    .into();
    let bytes = build_file(4096, &[("key", &key), ("meta", &meta)]);
    assert_eq!(bytes.len(), 3 * 4096);
    assert_eq!(hex::encode(&bytes[72..80]), "4067af04a0b168e3");
    assert_eq!(
        hex::encode(&bytes[4096 + 72..4096 + 80]),
        "a3457d25bb065940"
    );
    assert_eq!(
        hex::encode(Sha256::digest(&bytes)),
        "be49b54738ca07b987d749906d26bec66da85c9327b06edbd55e30cee33fa5ac"
    );
}

#[test]
fn large_bucket_gets_a_tree_and_reads_back() {
    let model = rows(2, &vec![40; 60_000]);
    let bytes = build_file(4096, &[("key", &model)]);
    assert_eq!(read_bucket(&bytes, "key").unwrap(), model);
}

#[test]
fn items_out_of_order_are_refused() {
    let disk = LoggedDisk::default();
    let mut update = Update::create(&disk, 4096).unwrap();
    let mut bucket = update.rewrite_bucket(b"key");
    bucket.add(b"b", b"").unwrap();
    assert!(matches!(
        bucket.add(b"b", b""),
        Err(BboltError::NotAscending)
    ));
    assert!(matches!(
        bucket.add(b"a", b""),
        Err(BboltError::NotAscending)
    ));
}

#[test]
fn empty_key_is_refused() {
    let disk = LoggedDisk::default();
    let mut update = Update::create(&disk, 4096).unwrap();
    assert!(matches!(
        update.rewrite_bucket(b"key").add(b"", b"v"),
        Err(BboltError::UnstorableItem {
            key_len: 0,
            value_len: 1
        })
    ));
}

#[test]
fn seek_finds_the_first_key_not_below_the_bound() {
    let model = rows(10, &vec![100; 5_000]);
    let bytes = build_file(4096, &[("key", &model)]);
    let database = Database::open(bytes.as_slice()).unwrap();
    let root = database.bucket(b"key").unwrap().unwrap();
    for bound in [0u64, 9, 10, 11, 46, 47, 2_500, 5_009] {
        let mut cursor = database.scan(&root).unwrap();
        cursor.seek(&bound.to_be_bytes()).unwrap();
        let found = cursor.next().unwrap().unwrap().key.to_vec();
        assert_eq!(found, bound.max(10).to_be_bytes(), "bound {bound}");
    }
    let mut cursor = database.scan(&root).unwrap();
    cursor.seek(&5_010u64.to_be_bytes()).unwrap();
    assert!(cursor.next().unwrap().is_none());
}

fn page_size() -> impl Strategy<Value = u32> {
    prop_oneof![Just(1024u32), Just(4096), Just(16_384)]
}

fn lengths(most: usize) -> impl Strategy<Value = Vec<usize>> {
    let length = prop_oneof![4 => 0usize..60, 2 => 200usize..1_500, 1 => 3_000usize..20_000];
    prop::collection::vec(length, 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn built_file_reads_back(page_size in page_size(), lengths in lengths(900)) {
        let model = rows(2, &lengths);
        let bytes = build_file(page_size, &[("alarm", &BucketModel::new()), ("key", &model)]);
        prop_assert_eq!(read_bucket(&bytes, "key").unwrap(), model);
        prop_assert_eq!(read_bucket(&bytes, "alarm").unwrap(), BucketModel::new());
    }

    #[test]
    fn appends_and_truncations_match_the_model(
        page_size in page_size(),
        steps in prop::collection::vec((lengths(300), prop::option::of(0.0f64..1.0)), 1..8),
    ) {
        let other = rows(1, &[10, 700]);
        let disk = LoggedDisk::from_bytes(build_file(page_size, &[("meta", &other)]));
        let mut model = BucketModel::new();
        let mut next = 2u64;
        for (lengths, cut) in steps {
            let bound = cut.map(|part| fraction_of(next, part).to_be_bytes());
            let mut update = Update::open(&disk).unwrap();
            let mut bucket =
                update.append_after_key(b"key", bound.as_ref().map(<[u8; 8]>::as_slice)).unwrap();
            if let Some(bound) = bound {
                model.retain(|key, _| key.as_slice() <= bound.as_slice());
            }
            let new = rows(next, &lengths);
            next += new.len() as u64;
            for (key, value) in &new {
                bucket.add(key, value).unwrap();
            }
            bucket.finish().unwrap();
            update.commit().unwrap();
            model.extend(new);
            prop_assert_eq!(&read_bucket(&disk.bytes(), "key").unwrap(), &model);
            prop_assert_eq!(&read_bucket(&disk.bytes(), "meta").unwrap(), &other);
        }
    }

    #[test]
    fn leaves_written_ahead_are_attached(
        page_size in page_size(),
        base in lengths(400),
        ahead in lengths(400),
        overlap in 0u64..40,
    ) {
        let base = rows(2, &base);
        let bytes = build_file(page_size, &[("key", &base)]);
        let high_water = Database::open(bytes.as_slice()).unwrap().meta().high_water;
        let disk = LoggedDisk::from_bytes(bytes);
        // The base already contains the first `overlap` rows that were written ahead.
        let end = 2 + base.len() as u64;
        let again = rows(end.saturating_sub(overlap).max(2), &ahead);
        let mut writer = LeafWriter::new(&disk, page_size, high_water).unwrap();
        let mut leaves = Vec::new();
        for (key, value) in &again {
            leaves.extend(writer.add(key, value).unwrap());
        }
        let (last, next) = writer.finish().unwrap();
        leaves.extend(last);
        let bound = (end - 1).to_be_bytes().to_vec();
        let mut chosen = Vec::new();
        for (at, (first_key, page)) in leaves.iter().enumerate() {
            let is_passed = match leaves.get(at + 1) {
                Some((next_key, _)) => *next_key <= bound,
                None => false,
            };
            if is_passed {
                continue;
            }
            chosen.push(Ok(if *first_key <= bound {
                WrittenLeaf::Tail { page: *page, bound: bound.clone() }
            } else {
                WrittenLeaf::Page { first_key: first_key.clone(), page: *page }
            }));
        }
        let mut update = Update::open_after(&disk, next).unwrap();
        update.attach_leaves(b"key", chosen).unwrap();
        update.commit().unwrap();
        let mut model = base;
        for (key, value) in again {
            model.entry(key).or_insert(value);
        }
        prop_assert_eq!(read_bucket(&disk.bytes(), "key").unwrap(), model);
    }
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of a count"
)]
fn fraction_of(count: u64, part: f64) -> u64 {
    (count as f64 * part) as u64
}

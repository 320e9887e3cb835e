//! Corrupt and hostile files give errors with a position, never a panic, never a loop.

use mainstay_bbolt::{BboltError, Database, Meta, MetaFault, check};
use proptest::prelude::*;

use crate::support::{build_file, read_bucket, rows};

const PAGE: usize = 1024;

fn sample_file() -> Vec<u8> {
    build_file(
        1024,
        &[
            ("key", &rows(2, &vec![90; 150])),
            ("meta", &rows(1, &[8, 8])),
        ],
    )
}

fn check_file(bytes: &[u8]) -> Result<(), BboltError> {
    let database = Database::open(bytes)?;
    check(&database, |_, _| Ok::<_, BboltError>(()))?;
    Ok(())
}

/// First page of the given type flag.
fn find_page(bytes: &[u8], flags: u8) -> usize {
    (2..bytes.len() / PAGE)
        .find(|page| bytes[page * PAGE + 8] == flags)
        .unwrap()
        * PAGE
}

#[test]
fn file_with_one_damaged_meta_opens_and_with_two_fails() {
    let mut bytes = sample_file();
    bytes[30] ^= 1;
    assert!(check_file(&bytes).is_ok());
    bytes[PAGE + 30] ^= 1;
    assert!(matches!(check_file(&bytes), Err(BboltError::NoMeta { .. })));
}

#[test]
fn file_shorter_than_its_high_water_mark_is_truncated() {
    let bytes = sample_file();
    let cut = &bytes[..bytes.len() - 1];
    assert!(matches!(check_file(cut), Err(BboltError::Truncated { .. })));
}

#[test]
fn empty_file_has_no_meta() {
    let fault = MetaFault::Absent;
    assert!(matches!(
        check_file(&[]),
        Err(BboltError::NoMeta { first, second }) if first == fault && second == fault
    ));
}

#[test]
fn branch_with_one_child_is_rejected() {
    let mut bytes = sample_file();
    let branch = find_page(&bytes, 0x01);
    bytes[branch + 10..branch + 12].copy_from_slice(&1u16.to_le_bytes());
    assert!(matches!(
        check_file(&bytes),
        Err(BboltError::TooFewChildren { children: 1, .. })
    ));
}

#[test]
fn shortened_separator_is_rejected() {
    let mut bytes = sample_file();
    let branch = find_page(&bytes, 0x01);
    let second_key_len = branch + 16 + 16 + 4;
    bytes[second_key_len] = 7;
    assert!(matches!(
        check_file(&bytes),
        Err(BboltError::SeparatorMismatch { element: 1, .. })
    ));
}

#[test]
fn page_referenced_twice_is_rejected() {
    let mut bytes = sample_file();
    let branch = find_page(&bytes, 0x01);
    let (first, second) = (branch + 16 + 8, branch + 32 + 8);
    let child: [u8; 8] = bytes[first..first + 8].try_into().unwrap();
    bytes[second..second + 8].copy_from_slice(&child);
    assert!(matches!(
        check_file(&bytes),
        Err(BboltError::SharedPage { .. } | BboltError::SeparatorMismatch { .. })
    ));
}

#[test]
fn branch_that_points_to_itself_ends_the_walk() {
    let mut bytes = sample_file();
    let branch = find_page(&bytes, 0x01);
    let id = (branch / PAGE) as u64;
    for element in 0..2 {
        let child = branch + 16 + 16 * element + 8;
        bytes[child..child + 8].copy_from_slice(&id.to_le_bytes());
    }
    assert!(check_file(&bytes).is_err());
    let database = Database::open(bytes.as_slice()).unwrap();
    let root = database.bucket(b"key").unwrap().unwrap();
    let mut cursor = match database.scan(&root) {
        Ok(cursor) => cursor,
        Err(error) => panic!("{error}"),
    };
    let ended = loop {
        match cursor.next() {
            Ok(Some(_)) => {}
            other => break other.map(|item| item.is_some()),
        }
    };
    assert!(matches!(
        ended,
        Err(BboltError::TooDeep { .. } | BboltError::KeyOrder { .. } | BboltError::PageLoop { .. })
    ));
}

#[test]
fn page_with_wrong_header_is_reported() {
    let mut bytes = sample_file();
    let leaf = find_page(&bytes, 0x02);
    bytes[leaf] ^= 0x40;
    assert!(matches!(
        check_file(&bytes),
        Err(BboltError::WrongId { .. })
    ));
    let mut bytes = sample_file();
    bytes[leaf + 8] = 0x10;
    assert!(matches!(
        check_file(&bytes),
        Err(BboltError::WrongKind { flags: 0x10, .. })
    ));
}

#[test]
fn swapped_keys_are_reported_as_out_of_order() {
    let mut bytes = sample_file();
    let leaf = find_page(&bytes, 0x02);
    let (a, b) = (leaf + 16 + 16 + 4, leaf + 16 + 32 + 4);
    let position =
        |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (first, second) = (position(&bytes, a), position(&bytes, b));
    bytes[a..a + 4].copy_from_slice(&(second + 16).to_le_bytes());
    bytes[b..b + 4].copy_from_slice(&(first - 16).to_le_bytes());
    assert!(
        matches!(check_file(&bytes), Err(BboltError::KeyOrder { .. })),
        "{:?}",
        check_file(&bytes)
    );
}

#[test]
fn element_out_of_bounds_is_reported() {
    let mut bytes = sample_file();
    let leaf = find_page(&bytes, 0x02);
    bytes[leaf + 16 + 12..leaf + 16 + 16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(
        check_file(&bytes),
        Err(BboltError::ElementOutOfBounds { element: 0, .. })
    ));
}

#[test]
fn huge_overflow_is_refused_before_allocation() {
    let mut bytes = sample_file();
    let leaf = find_page(&bytes, 0x02);
    bytes[leaf + 12..leaf + 16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(
        check_file(&bytes),
        Err(BboltError::OutOfRange { .. })
    ));
}

#[test]
fn truncation_at_every_page_is_an_error() {
    let bytes = sample_file();
    for pages in 0..bytes.len() / PAGE {
        assert!(check_file(&bytes[..pages * PAGE]).is_err(), "{pages} pages");
    }
}

#[test]
fn flipped_structure_bit_is_an_error_or_changes_content_only() {
    let bytes = sample_file();
    let intact = read_bucket(&bytes, "key").unwrap();
    for page in 2..bytes.len() / PAGE {
        for bit in 0..(16 + 16 * 4) * 8 {
            let mut flipped = bytes.clone();
            flipped[page * PAGE + bit / 8] ^= 1 << (bit % 8);
            if check_file(&flipped).is_ok() {
                let found = read_bucket(&flipped, "key").unwrap();
                assert!(
                    found.len() <= intact.len(),
                    "page {page} bit {bit} invents items"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_bytes_after_a_valid_meta_never_panic(
        garbage in prop::collection::vec(any::<u8>(), 0..8192),
        at in 2usize..20,
    ) {
        let mut bytes = sample_file();
        let start = at * PAGE;
        let end = (start + garbage.len()).min(bytes.len());
        if start < end {
            bytes[start..end].copy_from_slice(&garbage[..end - start]);
        }
        let _ = check_file(&bytes);
    }

    #[test]
    fn random_bytes_never_decode_as_a_meta(garbage in prop::collection::vec(any::<u8>(), 0..256)) {
        prop_assert!(Meta::decode(&garbage).is_err());
    }
}

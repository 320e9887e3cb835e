//! Random histories: compaction and hashes agree with a naive model of the documented rules.

use std::collections::HashMap;

use mainstay_ids::Revision;
use mainstay_mvcc::hash::hash_kv;
use proptest::prelude::*;

use crate::compaction::compact_database;
use crate::support::{PutRow, Row, build_database, check_history, delete};

const NAMES: [&str; 6] = ["a", "b", "ab", "c", "\u{0}", "long key"];

/// Turns random choices into a valid history.
fn build_rows(transactions: &[Vec<(usize, bool)>]) -> Vec<Row> {
    let mut live: HashMap<&str, (i64, i64)> = HashMap::new();
    let mut rows = Vec::new();
    let mut main = 1;
    for changes in transactions {
        let mut sub = 0;
        for (name, is_delete) in changes {
            let (key, at) = (NAMES[*name], (main + 1, sub));
            if *is_delete {
                if live.remove(key).is_none() {
                    continue;
                }
                rows.push(delete(at, key));
            } else {
                let (created, version) = live.get(key).copied().unwrap_or((main + 1, 0));
                if version > 0 && created == main + 1 {
                    continue; // one change per key and transaction
                }
                live.insert(key, (created, version + 1));
                let value = &format!("{main}");
                rows.push(
                    PutRow {
                        at,
                        key,
                        value,
                        created,
                        version: version + 1,
                        lease: 0,
                    }
                    .to_row(),
                );
            }
            sub += 1;
        }
        main += i64::from(sub > 0);
    }
    rows
}

fn naive_hash(rows: &[Row], revision: i64, compact: Option<i64>) -> u32 {
    let newest: HashMap<&[u8], &Row> = rows
        .iter()
        .filter(|row| row.key.main.0 <= revision)
        .map(|row| (user_key(row), row))
        .collect();
    let keep: Vec<_> = newest
        .values()
        .filter(|row| !row.key.is_tombstone)
        .map(|row| row.key)
        .collect();
    let mut bytes = b"key".to_vec();
    for row in rows.iter().filter(|row| row.key.main.0 <= revision) {
        if let Some(compact) = compact {
            let is_old = row.key.main.0 <= compact;
            let is_dropped = is_old && !keep.is_empty() && !keep.contains(&row.key);
            if is_dropped || (row.key.main.0 == compact && row.key.is_tombstone) {
                continue;
            }
        }
        bytes.extend(row.key.encode());
        bytes.extend(&row.value);
    }
    crc32c::crc32c(&bytes)
}

fn user_key(row: &Row) -> &[u8] {
    mainstay_mvcc::KeyValue::decode(&row.value).unwrap().key
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn hashes_and_compactions_match_the_model(
        transactions in prop::collection::vec(
            prop::collection::vec((0..NAMES.len(), prop::bool::weighted(0.3)), 1..4), 1..40),
        at in 0.0f64..1.0,
    ) {
        let rows = build_rows(&transactions);
        let last = rows.last().map_or(1, |row| row.key.main.0);
        let source = build_database(&rows, None, None);
        prop_assert!(check_history(&source).is_ok());
        for revision in 1..=last {
            let hash = hash_kv(&source, Some(Revision(revision))).unwrap().hash;
            prop_assert_eq!(hash, naive_hash(&rows, revision, None));
        }
        let compact = fraction_of(last, at).max(1);
        let result = compact_database(&source, compact);
        prop_assert!(check_history(&result).is_ok());
        for revision in compact + 1..=last {
            let hash = hash_kv(&result, Some(Revision(revision))).unwrap().hash;
            let has_live = !naive_is_empty(&rows, revision);
            if has_live {
                prop_assert_eq!(hash, naive_hash(&rows, revision, Some(compact)));
            }
        }
    }
}

/// Without a live key the hash depends on the physical rows, which the model does not have.
fn naive_is_empty(rows: &[Row], revision: i64) -> bool {
    let newest: HashMap<&[u8], bool> = rows
        .iter()
        .filter(|row| row.key.main.0 <= revision)
        .map(|row| (user_key(row), row.key.is_tombstone))
        .collect();
    newest.values().all(|is_tombstone| *is_tombstone)
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "small numbers"
)]
fn fraction_of(count: i64, part: f64) -> i64 {
    (count as f64 * part) as i64
}

//! A crash at any write of a commit leaves the state before or after it.

use mainstay_bbolt::Update;

use crate::support::{BucketModel, DiskOp, LoggedDisk, apply_op, build_file, read_bucket, rows};

/// Possible disk contents after a crash after operation `at`: everything up to the last sync, and any part of the later
/// writes. Three cases represent all: everything, nothing, only the newest.
fn possible_states(before: &[u8], log: &[DiskOp], at: usize) -> Vec<Vec<u8>> {
    let synced = log[..at]
        .iter()
        .rposition(|op| matches!(op, DiskOp::Sync))
        .map_or(0, |position| position + 1);
    let state = |parts: &[&[DiskOp]]| {
        let mut bytes = before.to_vec();
        for op in parts.iter().flat_map(|part| part.iter()) {
            apply_op(&mut bytes, op);
        }
        bytes
    };
    let newest = at.saturating_sub(1).max(synced);
    let mut torn_log = log[newest..at].to_vec();
    for op in &mut torn_log {
        if let DiskOp::Write(_, data) = op {
            data.truncate(data.len() / 2);
        }
    }
    vec![
        state(&[&log[..at]]),
        state(&[&log[..synced]]),
        state(&[&log[..synced], &log[newest..at]]),
        state(&[&log[..newest], &torn_log]),
    ]
}

fn commit_rows(disk: &LoggedDisk, new: &BucketModel) {
    let mut update = Update::open(disk).unwrap();
    let mut bucket = update.append_to_bucket(b"key").unwrap();
    for (key, value) in new {
        bucket.add(key, value).unwrap();
    }
    bucket.finish().unwrap();
    let mut meta = update.rewrite_bucket(b"meta");
    meta.add(b"consistent_index", &(new.len() as u64).to_be_bytes())
        .unwrap();
    meta.finish().unwrap();
    update.commit().unwrap();
}

#[test]
fn crash_at_any_write_leaves_the_old_or_the_new_state() {
    let base = rows(2, &vec![300; 700]);
    let disk = LoggedDisk::from_bytes(build_file(4096, &[("key", &base)]));
    let mut old = base;
    let mut next = 702;
    for round in 0..6usize {
        let before = disk.bytes();
        let new = rows(next, &vec![200 * round + 7; 30 + 40 * round]);
        next += new.len() as u64;
        commit_rows(&disk, &new);
        let mut after = old.clone();
        after.extend(new);
        let log = disk.take_log();
        assert!(
            log.iter().filter(|op| matches!(op, DiskOp::Sync)).count() == 2,
            "{log:?}"
        );
        for at in 0..=log.len() {
            for bytes in possible_states(&before, &log, at) {
                let found = read_bucket(&bytes, "key").expect("a crash must not corrupt the file");
                assert!(
                    found == old || found == after,
                    "round {round}, crash after {at}"
                );
            }
        }
        assert_eq!(read_bucket(&disk.bytes(), "key").unwrap(), after);
        old = after;
    }
}

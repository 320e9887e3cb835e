//! A clean-stop record is valid while nothing changes, and for one start.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use mainstay_bbolt::Update;
use mainstay_datadir::{CleanStop, CleanStopError, lock_database};

use crate::support::{DataDir, LAST_INDEX, file_length, flip_byte, open_read_write, set_length};

const LAST_SEGMENT: &str = "0000000000000001-0000000000000008.wal";

fn record_path(dir: &DataDir) -> PathBuf {
    dir.path().with_extension("clean-stop")
}

fn observe(dir: &DataDir) -> CleanStop {
    CleanStop::observe(&dir.path(), "mainstay 1.2.3").unwrap()
}

#[test]
fn clean_stop_record_is_valid_for_one_start() {
    let dir = DataDir::valid();
    let written = observe(&dir);
    written.write(&dir.path()).unwrap();
    let mode = fs::metadata(record_path(&dir))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let taken = CleanStop::take(&dir.path()).unwrap().unwrap();
    assert_eq!(taken, written);
    assert_eq!(taken.wal_last.segment, LAST_SEGMENT);
    assert!(taken.is_valid_for(&dir.path()));
    assert_eq!(CleanStop::take(&dir.path()).unwrap(), None);
    assert!(!record_path(&dir).exists());
}

#[test]
fn clean_stop_record_is_beside_a_path_with_trailing_slash() {
    let dir = DataDir::valid();
    observe(&dir).write(&dir.path().join("")).unwrap();
    assert!(record_path(&dir).exists());
}

#[test]
fn unreadable_clean_stop_record_counts_as_none() {
    let dir = DataDir::valid();
    fs::write(record_path(&dir), b"{\"dbTxid\":").unwrap();
    assert_eq!(CleanStop::take(&dir.path()).unwrap(), None);
    assert!(!record_path(&dir).exists());
}

#[test]
fn new_clean_stop_record_replaces_an_old_and_an_unfinished_one() {
    let dir = DataDir::valid();
    fs::write(record_path(&dir), b"old").unwrap();
    fs::write(dir.path().with_extension("clean-stop.tmp"), b"half").unwrap();
    observe(&dir).write(&dir.path()).unwrap();
    assert_eq!(CleanStop::take(&dir.path()).unwrap(), Some(observe(&dir)));
}

/// A name and a change to a directory.
type DirMutation = (&'static str, fn(&DataDir));

/// Each change that a running etcd can have made since.
#[test]
fn clean_stop_record_is_invalid_after_any_write() {
    let changes: [DirMutation; 6] = [
        ("a commit", |dir| {
            let update = Update::open(open_read_write(&dir.db_path())).unwrap();
            update.commit().unwrap();
        }),
        ("a longer database", |dir| {
            set_length(&dir.db_path(), file_length(&dir.db_path()) + 4096);
        }),
        ("a missing WAL segment", |dir| {
            fs::remove_file(dir.wal_path(LAST_SEGMENT)).unwrap();
        }),
        ("a shorter WAL", |dir| {
            set_length(&dir.wal_path(LAST_SEGMENT), 100);
        }),
        ("a damaged WAL", |dir| {
            flip_byte(&dir.wal_path(LAST_SEGMENT), 67, 1);
        }),
        ("one more record in a file of the same length", |dir| {
            let before = file_length(&dir.wal_path(LAST_SEGMENT));
            dir.write_log(&DataDir::segments_to(LAST_INDEX + 1));
            set_length(&dir.wal_path(LAST_SEGMENT), before);
        }),
    ];
    for (what, change) in changes {
        let dir = DataDir::valid();
        let stop = observe(&dir);
        assert!(stop.is_valid_for(&dir.path()));
        change(&dir);
        assert!(!stop.is_valid_for(&dir.path()), "{what}");
    }
}

#[test]
fn running_etcd_has_no_clean_stop() {
    let dir = DataDir::valid();
    let stop = observe(&dir);
    let held = lock_database(&dir.db_path()).unwrap();
    let error = CleanStop::observe(&dir.path(), "x").unwrap_err();
    assert!(matches!(error, CleanStopError::InUse { .. }), "{error}");
    assert!(!stop.is_valid_for(&dir.path()));
    drop(held);
    assert!(stop.is_valid_for(&dir.path()));
}

#[test]
fn torn_wal_is_not_a_clean_stop() {
    let dir = DataDir::valid();
    set_length(
        &dir.wal_path(LAST_SEGMENT),
        file_length(&dir.wal_path(LAST_SEGMENT)) - 4096 - 3,
    );
    let error = CleanStop::observe(&dir.path(), "x").unwrap_err();
    assert!(matches!(error, CleanStopError::Torn { .. }), "{error}");
}

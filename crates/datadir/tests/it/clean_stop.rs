//! The note of a clean stop holds while nothing has changed, and for one start.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use mainstay_bbolt::Update;
use mainstay_datadir::{CleanStop, CleanStopError, hold};

use crate::support::{Dir, LAST, cut, flip, length, open};

const LAST_SEGMENT: &str = "0000000000000001-0000000000000008.wal";

fn note(dir: &Dir) -> PathBuf {
    dir.path().with_extension("clean-stop")
}

fn observed(dir: &Dir) -> CleanStop {
    CleanStop::observe(&dir.path(), "mainstay 1.2.3").unwrap()
}

#[test]
fn a_note_is_good_for_one_start() {
    let dir = Dir::sound();
    let written = observed(&dir);
    written.write(&dir.path()).unwrap();
    let mode = fs::metadata(note(&dir)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let taken = CleanStop::take(&dir.path()).unwrap().unwrap();
    assert_eq!(taken, written);
    assert_eq!(taken.wal_last.segment, LAST_SEGMENT);
    assert!(taken.still_holds(&dir.path()));
    assert_eq!(CleanStop::take(&dir.path()).unwrap(), None);
    assert!(!note(&dir).exists());
}

#[test]
fn a_note_lies_beside_the_directory_however_that_is_spelled() {
    let dir = Dir::sound();
    observed(&dir).write(&dir.path().join("")).unwrap();
    assert!(note(&dir).exists());
}

#[test]
fn a_note_that_says_nothing_is_none() {
    let dir = Dir::sound();
    fs::write(note(&dir), b"{\"dbTxid\":").unwrap();
    assert_eq!(CleanStop::take(&dir.path()).unwrap(), None);
    assert!(!note(&dir).exists());
}

#[test]
fn a_newer_note_replaces_an_older_one_and_what_a_crash_left_of_it() {
    let dir = Dir::sound();
    fs::write(note(&dir), b"old").unwrap();
    fs::write(dir.path().with_extension("clean-stop.tmp"), b"half").unwrap();
    observed(&dir).write(&dir.path()).unwrap();
    assert_eq!(CleanStop::take(&dir.path()).unwrap(), Some(observed(&dir)));
}

/// A name and a way to use a directory.
type Use = (&'static str, fn(&Dir));

/// Each way in which a directory can have been used since.
#[test]
fn a_note_does_not_hold_once_something_was_written() {
    let changes: [Use; 6] = [
        ("a commit", |dir| {
            let update = Update::open(open(&dir.db())).unwrap();
            update.commit().unwrap();
        }),
        ("a longer database", |dir| {
            cut(&dir.db(), length(&dir.db()) + 4096);
        }),
        ("a lost log", |dir| {
            fs::remove_file(dir.wal(LAST_SEGMENT)).unwrap();
        }),
        ("a shorter log", |dir| cut(&dir.wal(LAST_SEGMENT), 100)),
        ("a damaged log", |dir| flip(&dir.wal(LAST_SEGMENT), 67, 1)),
        ("a record more in a file of the same length", |dir| {
            let before = length(&dir.wal(LAST_SEGMENT));
            dir.write_log(&Dir::log_to(LAST + 1));
            cut(&dir.wal(LAST_SEGMENT), before);
        }),
    ];
    for (what, change) in changes {
        let dir = Dir::sound();
        let stop = observed(&dir);
        assert!(stop.still_holds(&dir.path()));
        change(&dir);
        assert!(!stop.still_holds(&dir.path()), "{what}");
    }
}

#[test]
fn a_running_etcd_has_not_stopped() {
    let dir = Dir::sound();
    let stop = observed(&dir);
    let held = hold(&dir.db()).unwrap();
    let error = CleanStop::observe(&dir.path(), "x").unwrap_err();
    assert!(matches!(error, CleanStopError::InUse { .. }), "{error}");
    assert!(!stop.still_holds(&dir.path()));
    drop(held);
    assert!(stop.still_holds(&dir.path()));
}

#[test]
fn a_torn_log_was_not_stopped_cleanly() {
    let dir = Dir::sound();
    cut(
        &dir.wal(LAST_SEGMENT),
        length(&dir.wal(LAST_SEGMENT)) - 4096 - 3,
    );
    let error = CleanStop::observe(&dir.path(), "x").unwrap_err();
    assert!(matches!(error, CleanStopError::Torn { .. }), "{error}");
}

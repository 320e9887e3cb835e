//! Where revisions begin after a restore.

use mainstay_restorer::failure::Verdict;

use crate::home::{Home, success};

const NEWEST: i64 = 2_385;

/// Restores the state of this revision, and tells with which one etcd starts.
fn start_of(home: &Home, revision: i64, by: i64) -> i64 {
    let data_dir = home.path("new.etcd");
    let (to, by) = (revision.to_string(), by.to_string());
    let flags = [
        "-d",
        data_dir.to_str().unwrap(),
        "--to-revision",
        &to,
        "--mark-compacted",
        "--bump-revision",
        &by,
    ];
    let restored = success(home.on_bucket("restore", &flags), Verdict::Restored);
    assert_eq!(restored["revision"], revision, "{restored}");
    restored["startRevision"].as_i64().unwrap()
}

#[test]
fn an_earlier_state_begins_behind_everything_the_backup_has() {
    let home = Home::of_fixture("gzip-3.5.30");
    assert_eq!(start_of(&home, NEWEST - 500, 100), NEWEST + 100);
    // So nobody takes it for a directory that lags behind its backup, and restores again.
    let data_dir = home.path("new.etcd");
    let flags = ["-d", data_dir.to_str().unwrap()];
    success(home.on_bucket("initialize", &flags), Verdict::Valid);
}

#[test]
fn without_a_bump_an_earlier_state_keeps_its_revision() {
    let home = Home::of_fixture("gzip-3.5.30");
    assert_eq!(start_of(&home, NEWEST - 500, 0), NEWEST - 500);
}

//! The start revision after a restore.

use mainstay_verdict::Verdict;

use crate::home::{Home, expect_success};

const NEWEST_REVISION: i64 = 2_385;

/// Restores the state of this revision and returns the revision etcd starts with.
fn restore_start_revision(home: &Home, revision: i64, by: i64) -> i64 {
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
    let restored = expect_success(home.run_on_bucket("restore", &flags), Verdict::Restored);
    assert_eq!(restored["revision"], revision, "{restored}");
    restored["startRevision"].as_i64().unwrap()
}

#[test]
fn bumped_earlier_state_starts_above_every_revision_of_the_backup() {
    let home = Home::from_fixture("gzip-3.5.30");
    assert_eq!(
        restore_start_revision(&home, NEWEST_REVISION - 500, 100),
        NEWEST_REVISION + 100
    );
    // So the directory does not count as older than its backup, and is not restored again.
    let data_dir = home.path("new.etcd");
    let flags = ["-d", data_dir.to_str().unwrap()];
    expect_success(home.run_on_bucket("initialize", &flags), Verdict::Valid);
}

#[test]
fn earlier_state_without_a_bump_keeps_its_revision() {
    let home = Home::from_fixture("gzip-3.5.30");
    assert_eq!(
        restore_start_revision(&home, NEWEST_REVISION - 500, 0),
        NEWEST_REVISION - 500
    );
}

//! `copy` copies backups to another store, verifies them, and resumes.

use std::os::unix::fs::MetadataExt;

use mainstay_restorer::failure::CommandFailure;
use mainstay_restorer::outcome::CommandOutcome;
use mainstay_verdict::Verdict;

use crate::home::{Home, SNAPSHOT_DIR, expect_failure, expect_success};
use crate::support::{FIXTURES, FixtureState};

const DESTINATION_DIR: &str = "other/copied/v2";

fn run_copy(home: &Home, more: &[&str]) -> Result<CommandOutcome, CommandFailure> {
    let stores = [
        "copy",
        "--source-store-container",
        "bucket",
        "--source-store-prefix",
        "etcd-main",
        "--store-container",
        "other",
        "--store-prefix",
        "copied",
    ];
    home.run(&[&stores, more].concat())
}

fn verify_copy(home: &Home) -> serde_json::Value {
    let verify = [
        "verify",
        "--store-container",
        "other",
        "--store-prefix",
        "copied",
        "--all",
    ];
    expect_success(home.run(&verify), Verdict::Restorable)
}

/// Checks that every copied object has the same bytes as in the source.
fn assert_copies_identical(home: &Home) {
    for name in home.list_names(DESTINATION_DIR) {
        let copied = std::fs::read(home.path(DESTINATION_DIR).join(&name)).unwrap();
        assert_eq!(
            copied,
            std::fs::read(home.object_path(&name)).unwrap(),
            "{name}"
        );
    }
}

#[test]
fn every_fixture_is_copied_byte_for_byte_and_restorable() {
    for name in FIXTURES {
        let home = Home::from_fixture(name);
        let report = expect_success(run_copy(&home, &[]), Verdict::Copied);
        assert_eq!(
            home.list_names(DESTINATION_DIR),
            home.list_names(SNAPSHOT_DIR),
            "{name}"
        );
        assert_eq!(
            report["copied"].as_array().unwrap().len(),
            home.list_names(SNAPSHOT_DIR).len()
        );
        assert_copies_identical(&home);
        assert_eq!(
            verify_copy(&home)["revision"],
            FixtureState::load(name).revision.0,
            "{name}"
        );
        let again = expect_success(run_copy(&home, &[]), Verdict::Unchanged);
        assert_eq!(again["present"], home.list_names(SNAPSHOT_DIR).len());
    }
}

#[test]
fn second_run_copies_only_missing_objects() {
    let home = Home::from_fixture("overlap-3.5.30");
    expect_success(run_copy(&home, &[]), Verdict::Copied);
    let names = home.list_names(DESTINATION_DIR);
    let inode = |name: &str| {
        home.path(DESTINATION_DIR)
            .join(name)
            .metadata()
            .unwrap()
            .ino()
    };
    let missing = &names[3];
    std::fs::remove_file(home.path(DESTINATION_DIR).join(missing)).unwrap();
    // The remains of an upload whose process was killed.
    std::fs::write(
        home.path(DESTINATION_DIR).join(".mainstay-upload-x"),
        b"half",
    )
    .unwrap();
    let before: Vec<u64> = names
        .iter()
        .filter(|n| *n != missing)
        .map(|n| inode(n))
        .collect();
    let report = expect_success(run_copy(&home, &[]), Verdict::Copied);
    assert_eq!(report["copied"], serde_json::json!([missing]));
    let after: Vec<u64> = names
        .iter()
        .filter(|n| *n != missing)
        .map(|n| inode(n))
        .collect();
    assert_eq!(before, after);
    std::fs::remove_file(home.path(DESTINATION_DIR).join(".mainstay-upload-x")).unwrap();
    assert_copies_identical(&home);
}

#[test]
fn bases_become_visible_first_and_deltas_in_chain_order() {
    let home = Home::from_fixture("overlap-3.5.30");
    let report = expect_success(run_copy(&home, &[]), Verdict::Copied);
    let made = |name: &str| {
        let metadata = home.path(DESTINATION_DIR).join(name).metadata().unwrap();
        (metadata.ctime(), metadata.ctime_nsec())
    };
    let order = report["copied"].as_array().unwrap();
    let times: Vec<(i64, i64)> = order
        .iter()
        .map(|name| made(name.as_str().unwrap()))
        .collect();
    assert!(times.is_sorted(), "{order:?} {times:?}");
    assert!(
        order[0]
            .as_str()
            .unwrap()
            .starts_with("Full-00000000-00000744"),
        "{order:?}"
    );
}

#[test]
fn damaged_object_is_named_and_only_the_others_are_copied() {
    for fixture in FIXTURES {
        for start in [
            "Full-00000000-0000068",
            "Full-00000000-0000069",
            "Incr-00001",
        ] {
            let home = Home::from_fixture(fixture);
            let names = home.list_names(SNAPSHOT_DIR);
            let Some(name) = names.iter().find(|name| name.starts_with(start)) else {
                continue;
            };
            home.modify_object(name, |bytes| {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            });
            let found = expect_failure(run_copy(&home, &[]), Verdict::DamagedBackup);
            assert!(found.reason().contains(name.as_str()), "{fixture}: {found}");
            let mut others = names.clone();
            others.retain(|other| other != name);
            assert_eq!(home.list_names(DESTINATION_DIR), others, "{fixture}");
            assert_eq!(found.to_json()["damaged"][0]["name"], *name, "{fixture}");
            assert_copies_identical(&home);
        }
    }
}

#[test]
fn truncated_object_is_not_copied() {
    let home = Home::from_fixture("none-3.4.23");
    let name = home.find_name("Incr-00002007");
    home.modify_object(&name, |bytes| bytes.truncate(bytes.len() - 1));
    let found = expect_failure(run_copy(&home, &[]), Verdict::DamagedBackup);
    assert!(found.reason().contains(&name), "{found}");
    assert!(!home.list_names(DESTINATION_DIR).contains(&name));
    // After a repair the next run copies it.
    let intact = Home::from_fixture("none-3.4.23");
    std::fs::copy(intact.object_path(&name), home.object_path(&name)).unwrap();
    let report = expect_success(run_copy(&home, &[]), Verdict::Copied);
    assert_eq!(report["copied"], serde_json::json!([name]));
    verify_copy(&home);
}

#[test]
fn conflicting_object_is_not_overwritten() {
    let home = Home::from_fixture("gzip-3.5.30");
    let name = home.find_name("Incr-00001545");
    std::fs::create_dir_all(home.path(DESTINATION_DIR)).unwrap();
    std::fs::write(home.path(DESTINATION_DIR).join(&name), b"something else").unwrap();
    let found = expect_failure(run_copy(&home, &[]), Verdict::DamagedBackup);
    assert!(found.reason().contains(&name), "{found}");
    assert!(found.reason().contains("not overwritten"), "{found}");
    assert_eq!(
        std::fs::read(home.path(DESTINATION_DIR).join(&name)).unwrap(),
        b"something else"
    );
    assert_eq!(
        home.list_names(DESTINATION_DIR),
        home.list_names(SNAPSHOT_DIR)
    );
}

#[test]
fn copy_removes_the_final_suffix_and_converts_v1_layout_to_v2() {
    let home = Home::from_fixture("gzip-3.5.30");
    let all = home.list_names(SNAPSHOT_DIR);
    let base = home.find_name("Full-");
    for name in &all {
        let mark = if *name == base { ".final" } else { "" };
        home.rename_object(name, &format!("../v1/Backup-1794795243/{name}{mark}"));
    }
    let report = expect_success(
        run_copy(&home, &["--wait-for-final-snapshot"]),
        Verdict::Copied,
    );
    assert_eq!(report["finalSnapshot"], true);
    assert_eq!(home.list_names(DESTINATION_DIR), all);
    expect_success(run_copy(&home, &[]), Verdict::Unchanged);
}

#[test]
fn wait_for_a_missing_final_snapshot_ends_at_the_timeout() {
    let home = Home::from_fixture("gzip-3.5.30");
    let flags = [
        "--wait-for-final-snapshot=true",
        "--wait-for-final-snapshot-timeout",
        "20ms",
    ];
    let outcome = run_copy(&home, &flags).unwrap();
    assert!(
        outcome
            .text()
            .contains("no final snapshot appeared before the timeout"),
        "{}",
        outcome.text()
    );
    assert_eq!(
        expect_success(Ok(outcome), Verdict::Copied)["finalSnapshot"],
        false
    );
    assert_eq!(
        home.list_names(DESTINATION_DIR),
        home.list_names(SNAPSHOT_DIR)
    );
}

#[test]
fn dry_run_reports_what_would_be_copied_and_writes_nothing() {
    let home = Home::from_fixture("overlap-3.5.30");
    let report = expect_success(run_copy(&home, &["--dry-run"]), Verdict::Shown);
    let planned = report["wouldCopy"].as_array().unwrap();
    assert_eq!(planned.len(), home.list_names(SNAPSHOT_DIR).len());
    assert!(!home.path("other").exists());
    let newest = ["--dry-run", "--max-backups-to-copy", "1"];
    let report = expect_success(run_copy(&home, &newest), Verdict::Shown);
    let planned = report["wouldCopy"].as_array().unwrap();
    assert!(
        planned[0]
            .as_str()
            .unwrap()
            .starts_with("Full-00000000-00000744"),
        "{planned:?}"
    );
    assert!(
        !report.to_string().contains("Full-00000000-00000674"),
        "{planned:?}"
    );
}

#[test]
fn backups_beyond_the_age_limit_are_not_copied() {
    let home = Home::from_fixture("gzip-3.5.30");
    let none = expect_success(
        run_copy(&home, &["--max-backup-age", "0"]),
        Verdict::Unchanged,
    );
    assert_eq!(none["copied"], serde_json::json!([]));
    expect_success(run_copy(&home, &["--max-backup-age", "1"]), Verdict::Copied);
    assert_eq!(
        home.list_names(DESTINATION_DIR),
        home.list_names(SNAPSHOT_DIR)
    );
}

#[test]
fn copy_succeeds_with_one_parallel_operation() {
    let home = Home::from_fixture("lzw-3.5.30");
    expect_success(
        run_copy(&home, &["--max-parallel-copy-operations", "1"]),
        Verdict::Copied,
    );
    verify_copy(&home);
}

#[test]
fn empty_source_is_no_backup_and_copy_onto_itself_is_a_usage_error() {
    let home = Home::new();
    let found = expect_failure(run_copy(&home, &[]), Verdict::NoBackup);
    assert!(found.reason().contains("Local bucket/etcd-main"), "{found}");
    let same = [
        "copy",
        "--source-store-container",
        "bucket",
        "--store-container",
        "bucket",
    ];
    expect_failure(home.run(&same), Verdict::Usage);
}

//! Invalid files lead to a precise error, never to a wrong decision. These tests need no etcd.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use mainstay_testkit::EtcdRelease;
use mainstay_verdict::Verdict;

use super::testbed::{InitResult, InitTestbed};
use crate::home::expect_success;

/// A single member with data, with the configuration of a new cluster.
fn testbed_with_data() -> InitTestbed {
    let stage = InitTestbed::with_fixture(EtcdRelease::NEWEST, 1, "gzip-3.5.30");
    let data_dir = stage.data_dir(0);
    let restored = stage
        .home
        .run_on_bucket("restore", &["--data-dir", data_dir.to_str().unwrap()]);
    expect_success(restored, Verdict::Restored);
    stage.write_templates("new", &[0]);
    stage
}

/// Returns exit code, verdict and reason.
fn summarize_failure(init_result: &InitResult) -> (i32, &str, &str) {
    let word = |key: &str| init_result.json[key].as_str().unwrap_or("");
    (init_result.code, word("verdict"), word("reason"))
}

#[test]
fn data_behind_a_symlink_is_used() {
    let stage = testbed_with_data();
    let elsewhere = stage.home.path("elsewhere");
    fs::rename(stage.data_dir(0), &elsewhere).unwrap();
    symlink(&elsewhere, stage.data_dir(0)).unwrap();
    let init_result = stage.run_init(0, &[]);
    assert_eq!(
        init_result.summary(),
        (0, "start", ""),
        "{}",
        init_result.json
    );
    assert!(
        init_result.report().data.revision > Some(2000),
        "{}",
        init_result.json
    );
}

#[test]
fn dangling_symlink_is_not_an_empty_volume() {
    let stage = InitTestbed::new(EtcdRelease::NEWEST, 1);
    stage.write_templates("new", &[0]);
    symlink("unmounted", stage.data_dir(0)).unwrap();
    let before = stage.read_volume(0);
    let init_result = stage.run_init(0, &[]);
    let (code, verdict, reason) = summarize_failure(&init_result);
    assert_eq!((code, verdict), (30, "disk"), "{reason}");
    let expected = format!(
        "{} is a symbolic link to unmounted, which does not exist",
        stage.data_dir(0).display()
    );
    assert_eq!(reason, expected);
    assert_eq!(stage.read_volume(0), before);
    assert_eq!(stage.read_config(0), None);
}

#[test]
fn file_without_read_permission_is_neither_missing_nor_damaged() {
    for hidden in [
        "safe_guard",
        "new.etcd",
        "new.etcd/member",
        "new.etcd/member/wal",
        "new.etcd/member/snap",
        "new.etcd/member/snap/db",
    ] {
        let stage = testbed_with_data();
        fs::write(stage.volume(0).join("safe_guard"), "shoot").unwrap();
        let path = stage.volume(0).join(hidden);
        let rights = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
        let init_result = stage.run_init_unprivileged(0);
        fs::set_permissions(&path, rights).unwrap();
        let (code, verdict, reason) = summarize_failure(&init_result);
        assert_eq!((code, verdict), (30, "disk"), "{hidden}: {reason}");
        assert!(
            reason.contains(path.to_str().unwrap()) && reason.contains("ermission denied"),
            "{hidden}: {reason}"
        );
        assert_eq!(stage.read_config(0), None, "{hidden}");
        // With the permissions restored, the member starts.
        let init_result = stage.run_init_unprivileged(0);
        assert_eq!(
            init_result.summary(),
            (0, "start", ""),
            "{hidden}: {}",
            init_result.json
        );
    }
}

#[test]
fn config_replaces_a_symlink_and_leaves_its_target_unchanged() {
    let stage = testbed_with_data();
    let precious = stage.home.path("precious");
    fs::write(&precious, "mine").unwrap();
    symlink(&precious, stage.config_path(0)).unwrap();
    assert_eq!(stage.run_init(0, &[]).summary(), (0, "start", ""));
    assert_eq!(fs::read_to_string(&precious).unwrap(), "mine");
    assert!(stage.read_config(0).unwrap().contains("name: etcd-0"));
}

#[test]
fn config_that_cannot_be_written_is_an_error_with_its_path() {
    let stage = testbed_with_data();
    fs::create_dir(stage.config_path(0)).unwrap();
    let before = stage.read_volume(0);
    let init_result = stage.run_init(0, &[]);
    let (code, verdict, reason) = summarize_failure(&init_result);
    assert_eq!((code, verdict), (30, "disk"), "{reason}");
    assert!(
        reason.contains(stage.config_path(0).to_str().unwrap()),
        "{reason}"
    );
    assert_eq!(
        stage.read_volume(0),
        before,
        "the volume must not be marked either"
    );
}

#[test]
fn invalid_template_is_a_usage_error_that_names_the_key_or_path() {
    let stage = testbed_with_data();
    let template = stage.template_path(0);
    let valid = fs::read_to_string(&template).unwrap();
    let without = |key: &str| {
        let lines = valid.lines().filter(|line| !line.starts_with(key));
        lines.collect::<Vec<_>>().join("\n")
    };
    let path = template.to_str().unwrap();
    for (text, named) in [
        ("- a\n- list\n".to_owned(), path),
        ("a: [1".to_owned(), path),
        ("\u{0}\u{1}".to_owned(), path),
        (without("data-dir"), "data-dir"),
        (without("initial-cluster-state"), "initial-cluster-state"),
        (without("initial-cluster:"), "initial-cluster"),
        (
            valid.split("advertise-client-urls").next().unwrap().into(),
            "advertise-client-urls",
        ),
        (
            valid.replace("state: new", "state: perhaps"),
            "initial-cluster-state",
        ),
        (
            valid.replace("initial-cluster: \"", "initial-cluster: \"etcd-9,"),
            "etcd-9",
        ),
    ] {
        fs::write(&template, &text).unwrap();
        let init_result = stage.run_init(0, &[]);
        let (code, verdict, reason) = summarize_failure(&init_result);
        assert_eq!((code, verdict), (2, "usage"), "{text}: {reason}");
        assert!(reason.contains(named), "{named}: {reason}");
        assert_eq!(stage.read_config(0), None, "{text}");
    }
    for make in [
        |path: &str| fs::remove_file(path).unwrap(),
        |path: &str| fs::create_dir(path).unwrap(),
    ] {
        make(path);
        let init_result = stage.run_init(0, &[]);
        let (code, verdict, reason) = summarize_failure(&init_result);
        assert_eq!((code, verdict), (2, "usage"), "{reason}");
        assert!(reason.contains(path), "{reason}");
    }
}

#[test]
fn invalid_guard_content_is_reported_in_a_message_that_fits() {
    let stage = testbed_with_data();
    fs::write(stage.volume(0).join("safe_guard"), "\u{1}".repeat(1 << 20)).unwrap();
    let init_result = stage.run_init(0, &[]);
    assert_eq!(
        init_result.summary(),
        (42, "refuse", "wrongVolume"),
        "{}",
        init_result.json
    );
    let reason = init_result.json["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("volume belongs to namespace"),
        "{reason}"
    );
}

//! Fencing: a later writer has taken the volume in the meantime.

use std::process::Command;

use clap::Parser;
use jiff::Timestamp;
use mainstay_datadir::VolumeFence;
use mainstay_restorer::args::RestorerArgs;
use mainstay_restorer::backup::Backup;
use mainstay_restorer::commands::RestorerCommand;
use mainstay_restorer::directory::{self, RestorePlan};
use mainstay_restorer::fallback::ChainSelection;
use mainstay_store::Environment;
use mainstay_verdict::Verdict;
use serde_json::Value;

use crate::home::{Home, NOW, expect_success};

const FIXTURE: &str = "gzip-3.5.30";

#[test]
fn superseded_restore_leaves_the_directory_unchanged() {
    let home = Home::from_fixture(FIXTURE);
    let data_dir = home.path("data/new.etcd");
    std::fs::create_dir_all(data_dir.join("member")).unwrap();
    let shown = data_dir.to_str().unwrap();
    let arguments = [
        "mainstay-restorer",
        "restore",
        "--store-container=bucket",
        "--store-prefix=etcd-main",
        "--data-dir",
        shown,
    ];
    let args = RestorerArgs::try_parse_from(arguments).unwrap();
    let RestorerCommand::Restore(args) = args.command else {
        panic!("another verb")
    };
    let environment = Environment::from_iter([("HOME", home.root().to_str().unwrap())]);
    let now = Timestamp::from_second(NOW).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let result = runtime.block_on(async {
        let config = args.store.clone().into_config().unwrap();
        let backup = Backup::open(&config, &environment).await.unwrap();
        let first = VolumeFence::acquire(&data_dir, "5/a1b2/1").unwrap();
        VolumeFence::acquire(&data_dir, "6/a1b2/2").unwrap();
        let plan = RestorePlan {
            selection: ChainSelection::find(&backup.catalogue, args.target.chain_request())
                .unwrap(),
            cluster: args.members.build_new_cluster(now).unwrap(),
            options: args.options.rebuild_options(&args.target),
            bump: args.options.revision_bump(None),
            expected_hash: None,
            fence: Some(first),
            now,
        };
        directory::restore(&backup, plan).await
    });
    let failure = result.unwrap_err();
    assert_eq!(failure.verdict(), Verdict::InUse, "{failure}");
    assert!(!data_dir.join("member/snap/db").exists());
    let names = home.list_names("data");
    let is_kept = |name: &String| name.contains(".before-");
    assert!(!names.iter().any(is_kept), "{names:?}");
}

#[test]
fn restore_with_the_newest_epoch_succeeds() {
    let home = Home::from_fixture(FIXTURE);
    let data_dir = home.path("data/new.etcd");
    std::fs::create_dir_all(home.path("data")).unwrap();
    VolumeFence::acquire(&data_dir, "5/a1b2/1").unwrap();
    let flags = [
        "--data-dir",
        data_dir.to_str().unwrap(),
        "--fence",
        "6/a1b2/2",
    ];
    expect_success(home.run_on_bucket("restore", &flags), Verdict::Restored);
    assert!(data_dir.join("member/snap/db").is_file());
}

/// Runs the program on the volume; returns its exit code and its termination message.
fn run_program(home: &Home, verb: &str, token: &str) -> (Option<i32>, Value) {
    let message = home.path("last-message");
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay-restorer"));
    command.env_clear().env("HOME", home.root()).arg(verb);
    if verb == "restore" {
        command.args(["--store-container=bucket", "--store-prefix=etcd-main"]);
    }
    let output = command
        .arg("--data-dir")
        .arg(home.path("data/new.etcd"))
        .arg(format!("--fence={token}"))
        .arg("--termination-message-path")
        .arg(&message)
        .output()
        .unwrap();
    let message = std::fs::read(message).unwrap();
    (
        output.status.code(),
        serde_json::from_slice(&message).unwrap(),
    )
}

#[test]
fn late_job_changes_nothing_and_reports_the_superseding_epoch() {
    for verb in ["restore", "set-aside"] {
        let home = Home::from_fixture(FIXTURE);
        let data_dir = home.path("data/new.etcd");
        std::fs::create_dir_all(data_dir.join("member")).unwrap();
        std::fs::write(data_dir.join("member/kept"), "as it was").unwrap();
        VolumeFence::acquire(&data_dir, "1800000007/c3d4/1/pod-b").unwrap();
        let before = home.list_names("data");

        let (code, message) = run_program(&home, verb, "1800000000/a1b2/9/pod-a");
        assert_eq!(code, Some(i32::from(Verdict::InUse.code())), "{message}");
        assert_eq!(message["verdict"], "in-use", "{message}");
        assert_eq!(message["overtakenBy"], 1_800_000_007, "{message}");
        assert_eq!(home.list_names("data"), before, "{verb}");
        let mark = std::fs::read_to_string(home.path("data/write_fence")).unwrap();
        assert_eq!(mark, "1800000007/c3d4/1/pod-b");
        let kept = std::fs::read_to_string(data_dir.join("member/kept")).unwrap();
        assert_eq!(kept, "as it was");

        let (code, message) = run_program(&home, verb, "1800000008/a1b2/9/pod-a");
        assert_eq!(code, Some(0), "{message}");
        assert_eq!(message["overtakenBy"], Value::Null);
        assert!(!data_dir.join("member/kept").exists(), "{verb}");
        assert_eq!(data_dir.join("member/snap/db").is_file(), verb == "restore");
    }
}

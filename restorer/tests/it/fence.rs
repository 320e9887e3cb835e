//! A volume that somebody else was sent to write meanwhile.

use clap::Parser;
use jiff::Timestamp;
use steward_datadir::Fence;
use steward_restorer::args::Args;
use steward_restorer::backup::Backup;
use steward_restorer::detour::Route;
use steward_restorer::directory::{self, Plan};
use steward_restorer::failure::Verdict;
use steward_restorer::verbs::Verb;
use steward_store::Environment;

use crate::home::{Home, NOW, success};

const FIXTURE: &str = "gzip-3.5.30";

#[test]
fn whoever_was_overtaken_leaves_the_directory_as_it_is() {
    let home = Home::of_fixture(FIXTURE);
    let data_dir = home.path("data/new.etcd");
    std::fs::create_dir_all(data_dir.join("member")).unwrap();
    let shown = data_dir.to_str().unwrap();
    let arguments = [
        "steward-restorer",
        "restore",
        "--store-container=bucket",
        "--store-prefix=etcd-main",
        "--data-dir",
        shown,
    ];
    let args = Args::try_parse_from(arguments).unwrap();
    let Verb::Restore(args) = args.verb else {
        panic!("another verb")
    };
    let environment = Environment::from_iter([("HOME", home.root().to_str().unwrap())]);
    let now = Timestamp::from_second(NOW).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let result = runtime.block_on(async {
        let config = args.store.clone().into_config().unwrap();
        let backup = Backup::open(&config, &environment).await.unwrap();
        let first = Fence::enter(&data_dir, "5/a1b2/1").unwrap();
        Fence::enter(&data_dir, "6/a1b2/2").unwrap();
        let plan = Plan {
            route: Route::find(&backup.catalogue, args.target.request()).unwrap(),
            seating: args.members.seating(now).unwrap(),
            options: args.how.options(&args.target),
            bump: args.how.bump(),
            expected: None,
            fence: Some(first),
            now,
        };
        directory::restore(&backup, plan).await
    });
    let failure = result.unwrap_err();
    assert_eq!(failure.verdict(), Verdict::InUse, "{failure}");
    assert!(!data_dir.join("member/snap/db").exists());
    let names = home.names("data");
    let is_kept = |name: &String| name.contains(".before-");
    assert!(!names.iter().any(is_kept), "{names:?}");
}

#[test]
fn whoever_was_sent_last_restores() {
    let home = Home::of_fixture(FIXTURE);
    let data_dir = home.path("data/new.etcd");
    std::fs::create_dir_all(home.path("data")).unwrap();
    Fence::enter(&data_dir, "5/a1b2/1").unwrap();
    let flags = [
        "--data-dir",
        data_dir.to_str().unwrap(),
        "--fence",
        "6/a1b2/2",
    ];
    success(home.on_bucket("restore", &flags), Verdict::Restored);
    assert!(data_dir.join("member/snap/db").is_file());
}

//! A home directory with buckets in it, and verbs run against them.

use std::path::{Path, PathBuf};

use clap::Parser;
use jiff::Timestamp;
use mainstay_restorer::args::RestorerArgs;
use mainstay_restorer::cli::CommandContext;
use mainstay_restorer::failure::CommandFailure;
use mainstay_restorer::outcome::CommandOutcome;
use mainstay_store::Environment;
use mainstay_verdict::Verdict;
use serde_json::Value;

use crate::support::fixture_path;

/// Directory of the snapshots in the fixtures.
pub(crate) const SNAPSHOT_DIR: &str = "bucket/etcd-main/v2";

/// A time after every fixture was written.
pub(crate) const NOW: i64 = 1_794_800_000;

/// A temporary home directory with local buckets.
pub(crate) struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    /// Creates an empty one.
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// Creates one with a copy of the bucket of a fixture.
    pub(crate) fn from_fixture(name: &str) -> Self {
        let home = Self::new();
        let from = fixture_path(name).join(SNAPSHOT_DIR);
        std::fs::create_dir_all(home.path(SNAPSHOT_DIR)).unwrap();
        for entry in from.read_dir().unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(
                entry.path(),
                home.path(SNAPSHOT_DIR).join(entry.file_name()),
            )
            .unwrap();
        }
        home
    }

    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.directory.path().join(inside)
    }

    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the sorted names in a folder.
    pub(crate) fn list_names(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = self.path(folder).read_dir() else {
            return Vec::new();
        };
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().into_string().unwrap()
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }

    /// Returns the only snapshot name that starts with `start`.
    pub(crate) fn find_name(&self, start: &str) -> String {
        let all = self.list_names(SNAPSHOT_DIR);
        let mut found = all.iter().filter(|name| name.starts_with(start));
        let name = found
            .next()
            .unwrap_or_else(|| panic!("no {start} in {all:?}"))
            .clone();
        assert_eq!(found.next(), None, "{start} is not the only one");
        name
    }

    pub(crate) fn object_path(&self, name: &str) -> PathBuf {
        self.path(SNAPSHOT_DIR).join(name)
    }

    pub(crate) fn rename_object(&self, from: &str, to: &str) {
        std::fs::create_dir_all(self.object_path(to).parent().unwrap()).unwrap();
        std::fs::rename(self.object_path(from), self.object_path(to)).unwrap();
    }

    /// Changes the bytes of an object.
    pub(crate) fn modify_object(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let path = self.object_path(name);
        let mut bytes = std::fs::read(&path).unwrap();
        change(&mut bytes);
        std::fs::write(path, bytes).unwrap();
    }

    /// Runs a verb as the program does.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<CommandOutcome, CommandFailure> {
        let arguments = ["mainstay-restorer"].iter().chain(arguments);
        let args = RestorerArgs::try_parse_from(arguments).unwrap();
        let home = self.root().to_str().unwrap();
        let context = CommandContext {
            now: Timestamp::from_second(NOW).unwrap(),
            environment: Environment::from_iter([("HOME", home)]),
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(args.command.run(&context))
    }

    /// Runs a verb on the bucket of the fixture.
    pub(crate) fn run_on_bucket(
        &self,
        verb: &str,
        more: &[&str],
    ) -> Result<CommandOutcome, CommandFailure> {
        let store = [
            verb,
            "--store-container",
            "bucket",
            "--store-prefix",
            "etcd-main",
        ];
        self.run(&[&store, more].concat())
    }
}

/// Returns the failure of a verb, which must have this verdict.
pub(crate) fn expect_failure(
    result: Result<CommandOutcome, CommandFailure>,
    verdict: Verdict,
) -> CommandFailure {
    match result {
        Ok(outcome) => panic!("expected a failure: {}", outcome.text()),
        Err(failure) => {
            assert_eq!(failure.verdict(), verdict, "{failure}");
            failure
        }
    }
}

/// Returns the JSON of a verb that must succeed with this verdict.
pub(crate) fn expect_success(
    result: Result<CommandOutcome, CommandFailure>,
    verdict: Verdict,
) -> Value {
    match result {
        Ok(outcome) => {
            assert_eq!(outcome.verdict(), verdict, "{}", outcome.text());
            outcome.to_json()
        }
        Err(failure) => panic!("{failure}"),
    }
}

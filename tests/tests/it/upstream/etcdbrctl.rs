//! Runs the real `etcdbrctl` of etcd-backup-restore on a local bucket.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use mainstay_testkit::paths::{cache_dir, env_path};

use crate::support::RestorerBackup;

/// `etcdbrctl` with the home directory that contains the bucket.
pub(crate) struct Etcdbrctl {
    home: PathBuf,
    prefix: String,
}

/// A running `etcdbrctl snapshot`. Dropping it kills it.
pub(crate) struct RunningSnapshotter(Child);

impl Drop for RunningSnapshotter {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Etcdbrctl {
    pub(crate) fn new(home: &Path, prefix: &str) -> Self {
        Self {
            home: home.to_owned(),
            prefix: prefix.to_owned(),
        }
    }

    /// The command line with an empty environment; its working files stay below the home directory.
    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(etcdbrctl_binary());
        command
            .env_clear()
            .env("HOME", &self.home)
            .env("TMPDIR", &self.home)
            .current_dir(&self.home)
            .arg(verb)
            .arg("--storage-provider=Local")
            .arg(format!("--store-container={}", RestorerBackup::CONTAINER))
            .arg(format!("--store-prefix={}", self.prefix))
            .arg(format!(
                "--snapstore-temp-directory={}",
                self.home.display()
            ))
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end; panics on failure with everything it printed.
    pub(crate) fn run(&self, verb: &str, arguments: &[&str]) {
        let output = self.command(verb).args(arguments).output();
        let output = output.unwrap_or_else(|error| panic!("failed to run etcdbrctl: {error}"));
        assert!(
            output.status.success(),
            "etcdbrctl {verb}: {}",
            show(&output)
        );
    }

    /// Restores the newest state into a directory.
    pub(crate) fn restore(&self, data_dir: &Path) {
        self.run("restore", &["--data-dir", data_dir.to_str().unwrap()]);
    }

    /// Compacts the newest chain into a new full snapshot.
    pub(crate) fn compact(&self) {
        let scratch = self.home.join("compaction");
        self.run("compact", &["--data-dir", scratch.to_str().unwrap()]);
    }

    /// Copies all backups of another prefix of the bucket to this one.
    pub(crate) fn copy_from(&self, source: &str) {
        let prefix = format!("--source-store-prefix={source}");
        let container = format!("--source-store-container={}", RestorerBackup::CONTAINER);
        let arguments = [
            prefix.as_str(),
            &container,
            "--source-storage-provider=Local",
        ];
        self.run("copy", &arguments);
    }

    /// Takes a full snapshot of an etcd, then a delta every second.
    pub(crate) fn start_snapshots(&self, endpoint: &str) -> RunningSnapshotter {
        let mut command = self.command("snapshot");
        command
            .arg(format!("--endpoints={endpoint}"))
            .args(["--delta-snapshot-period=1s", "--schedule=0 0 1 1 *"])
            .args([
                "--garbage-collection-period=0s",
                "--defragmentation-schedule=0 0 1 1 *",
            ])
            .stdout(Stdio::null());
        let started = command.spawn();
        RunningSnapshotter(started.unwrap_or_else(|error| panic!("start etcdbrctl: {error}")))
    }
}

fn show(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "{}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    )
}

/// `MAINSTAY_ETCDBRCTL`, or the one that `make setup` builds.
fn etcdbrctl_binary() -> PathBuf {
    let built = || Some(cache_dir()?.join("upstream/etcd-backup-restore/etcdbrctl"));
    let found = env_path("MAINSTAY_ETCDBRCTL").or_else(built);
    found
        .filter(|path| path.is_file())
        .expect("etcdbrctl not found: run `make setup`, or set MAINSTAY_ETCDBRCTL to its path")
}

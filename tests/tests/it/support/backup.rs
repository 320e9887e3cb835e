//! Runs the restorer on a backup.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use mainstay_ids::Revision;
use serde_json::Value;
use tempfile::TempDir;

/// A backup, as options of the restorer.
#[derive(Clone, Debug)]
pub(crate) struct RestorerBackup {
    home: PathBuf,
    flags: Vec<String>,
    variables: Vec<(String, String)>,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct RestorerRun {
    pub(crate) code: Option<i32>,
    /// The report of `-o json`.
    pub(crate) report: Value,
    /// Progress and logs, printed when a test fails.
    #[expect(dead_code, reason = "shown by Debug")]
    pub(crate) stderr: String,
}

impl RestorerBackup {
    /// The container of every local backup, below the home directory of the run.
    pub(crate) const CONTAINER: &str = "bucket";

    /// A prefix of the bucket `<home>/bucket`.
    pub(crate) fn local(home: &Path, prefix: &str) -> Self {
        Self {
            home: home.to_owned(),
            flags: to_flags(&[
                ("store-container", Self::CONTAINER),
                ("store-prefix", prefix),
            ]),
            variables: Vec::new(),
        }
    }

    /// A bucket of a server; `home` is the home directory of the run.
    pub(crate) fn remote(
        home: &Path,
        provider: &str,
        bucket: (&str, &str),
        endpoint: &str,
    ) -> Self {
        let (container, prefix) = bucket;
        Self {
            home: home.to_owned(),
            flags: to_flags(&[
                ("storage-provider", provider),
                ("store-container", container),
                ("store-prefix", prefix),
                ("store-endpoint-override", endpoint),
            ]),
            variables: Vec::new(),
        }
    }

    /// Adds an environment variable.
    pub(crate) fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// The directory of the objects of a local backup.
    pub(crate) fn container_dir(home: &TempDir) -> PathBuf {
        home.path().join(Self::CONTAINER)
    }

    /// The command line of a restorer command, with an empty environment.
    pub(crate) fn command(&self, verb: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(restorer_binary());
        command
            .env_clear()
            .env("HOME", &self.home)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .arg(verb)
            .args(&self.flags)
            .args(["-o", "json"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a command; it may fail.
    pub(crate) fn run(&self, verb: &str, arguments: &[&str]) -> RestorerRun {
        let output = self.command(verb, arguments).output();
        RestorerRun::from_output(
            &output.unwrap_or_else(|error| panic!("failed to run the restorer: {error}")),
        )
    }

    /// Restores into a directory; panics on failure.
    pub(crate) fn restore(&self, data_dir: &Path, arguments: &[&str]) -> Value {
        let directory = data_dir.to_str().unwrap();
        let all = [&["--data-dir", directory], arguments].concat();
        self.run("restore", &all).expect_success("restored")
    }

    /// Restores a revision; panics on failure or if another revision is reached.
    pub(crate) fn restore_at(&self, data_dir: &Path, revision: Revision) {
        let report = self.restore(data_dir, &["--to-revision", &revision.to_string()]);
        assert_eq!(report["revision"], revision.0, "{report:#}");
    }

    /// Verifies a directory, without warnings; returns its revision.
    pub(crate) fn verify_data_dir(&self, data_dir: &Path) -> Revision {
        let run = self.run("verify", &["--data-dir", data_dir.to_str().unwrap()]);
        let report = run.expect_success("valid");
        for warning in report["warnings"].as_array().unwrap() {
            // etcd 3.4 does not update the term in the database, so it is stale.
            assert_eq!(warning["what"], "termStale", "{report:#}");
        }
        Revision(report["revision"].as_i64().unwrap())
    }

    /// Verifies the backup; returns its newest revision.
    pub(crate) fn verify(&self) -> Revision {
        let report = self.run("verify", &["--all"]).expect_success("restorable");
        Revision(report["revision"].as_i64().unwrap())
    }

    /// The restorable ranges of revisions, by the names of the objects.
    pub(crate) fn restorable_ranges(&self) -> Vec<(Revision, Revision)> {
        let report = self.run("list", &[]).report;
        let ranges = report["restorable"].as_array().unwrap();
        let end = |range: &Value, end: &str| Revision(range[end].as_i64().unwrap());
        ranges
            .iter()
            .map(|range| (end(range, "from"), end(range, "to")))
            .collect()
    }

    /// The names of all snapshots, oldest chain first.
    pub(crate) fn snapshot_names(&self) -> Vec<String> {
        let report = self.run("list", &[]).report;
        let chains = report["chains"].as_array().unwrap();
        let objects = chains.iter().flat_map(|chain| {
            let deltas = chain["deltas"].as_array().unwrap().iter();
            std::iter::once(&chain["base"]).chain(deltas)
        });
        objects
            .filter_map(|object| object["name"].as_str())
            .map(str::to_owned)
            .collect()
    }
}

impl RestorerRun {
    pub(crate) fn from_output(output: &Output) -> Self {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Self {
            code: output.status.code(),
            report: serde_json::from_slice(&output.stdout).unwrap_or_default(),
            stderr,
        }
    }

    /// The report of a successful run with this verdict.
    pub(crate) fn expect_success(self, verdict: &str) -> Value {
        assert_eq!(self.code, Some(0), "{self:#?}");
        assert_eq!(self.report["verdict"], verdict, "{self:#?}");
        self.report
    }

    /// The reason of a run that ended with this verdict and this exit code.
    pub(crate) fn expect_refused(&self, verdict: &str, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert_eq!(self.report["verdict"], verdict, "{self:#?}");
        self.report["reason"].as_str().unwrap()
    }
}

fn to_flags(pairs: &[(&str, &str)]) -> Vec<String> {
    pairs
        .iter()
        .map(|(flag, value)| format!("--{flag}={value}"))
        .collect()
}

/// The path of the restorer: `MAINSTAY_RESTORER`, or the one built with this test.
fn restorer_binary() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let named = std::env::var_os("MAINSTAY_RESTORER").filter(|path| !path.is_empty());
        let path = named.map_or_else(default_binary_path, PathBuf::from);
        assert!(
            path.is_file(),
            "{} is not there: run `make test-live`, or `cargo build -p mainstay-restorer` first",
            path.display()
        );
        path
    })
}

/// cargo builds tests into `deps`, and programs into its parent.
fn default_binary_path() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let programs = test.ancestors().nth(2).unwrap();
    programs.join("mainstay-restorer")
}

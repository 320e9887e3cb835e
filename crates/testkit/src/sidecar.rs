//! A sidecar process next to a member, used over HTTP as in production.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::etcd::{free_url, signal_process};

/// Time limit until the program responds on a loaded machine.
const START_DEADLINE: Duration = Duration::from_mins(2);
/// Before it exits, the sidecar stores pending changes and waits for etcd.
const STOP_DEADLINE: Duration = Duration::from_mins(2);
/// A request for an on-demand snapshot returns after the snapshot is stored.
const ANSWER_DEADLINE: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Number of log lines printed when a test fails.
const LOG_TAIL_LINES: usize = 150;

/// Options of a sidecar process.
#[derive(Clone, Debug, Default)]
pub struct SidecarOptions {
    flags: Vec<String>,
    variables: Vec<(String, String)>,
}

impl SidecarOptions {
    /// Options for a sidecar of the member at this client URL, without a store.
    pub fn for_member(client_url: &str) -> Self {
        Self::default()
            .flag("endpoints", client_url)
            .flag("log-level", "debug,h2=info,hyper=info,tower=info")
            .flag("log-format", "text")
    }

    /// Sets a flag, without its dashes. The last value of a flag counts.
    #[must_use]
    pub fn flag(mut self, flag: &str, value: &str) -> Self {
        let prefix = format!("--{flag}=");
        self.flags.retain(|known| !known.starts_with(&prefix));
        self.flags.push(format!("{prefix}{value}"));
        self
    }

    /// Sets several flags.
    #[must_use]
    pub fn flags(self, flags: &[(&str, &str)]) -> Self {
        let add = |options: Self, (flag, value): &(&str, &str)| options.flag(flag, value);
        flags.iter().fold(self, add)
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }
}

/// A running sidecar. Dropping it kills the process; if the test fails, the end of the log is printed.
#[derive(Debug)]
pub struct SidecarProcess {
    options: SidecarOptions,
    temp_dir: TempDir,
    url: String,
    child: Option<Child>,
    http: reqwest::Client,
}

impl SidecarProcess {
    /// Starts a sidecar and waits until it responds.
    ///
    /// # Panics
    /// If it does not start, with its log.
    pub async fn start(options: SidecarOptions) -> Self {
        let http = reqwest::Client::builder().timeout(ANSWER_DEADLINE).build();
        let mut sidecar = Self {
            options,
            temp_dir: TempDir::with_prefix("sidecar-").expect("a temporary directory"),
            url: String::new(),
            child: None,
            http: http.expect("an HTTP client"),
        };
        sidecar.restart().await;
        sidecar
    }

    /// Starts a stopped or killed sidecar again.
    ///
    /// # Panics
    /// If it does not start, with its log, or if it is already running.
    pub async fn restart(&mut self) {
        assert!(self.child.is_none(), "the sidecar is already running");
        for _ in 0..5 {
            self.launch();
            if self.wait_until_ready().await {
                return;
            }
            // Another process took the port between allocation and use: retry with a new port.
            self.kill();
        }
        panic!("the sidecar did not start; log:\n{}", self.read_log());
    }

    /// Unless a test sets a data directory, the flag names one that does not exist.
    fn default_data_dir_flag(&self) -> Option<String> {
        let is_named = |flag: &String| flag.starts_with("--data-dir=");
        let none = self.temp_dir.path().join("none");
        let has_one = self.options.flags.iter().any(is_named);
        (!has_one).then(|| format!("--data-dir={}", none.display()))
    }

    fn launch(&mut self) {
        self.url = free_url();
        let port = self.url.rsplit(':').next().expect("a port");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path());
        let log = log.expect("open the log of the sidecar");
        let child = Command::new(sidecar_binary())
            .env_clear()
            // A `Local` store is below `HOME`.
            .env("HOME", self.temp_dir.path())
            .envs(
                self.options
                    .variables
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            .arg(format!("--server-port={port}"))
            .args(self.default_data_dir_flag())
            .args(&self.options.flags)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("share the log of the sidecar"))
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap_or_else(|error| panic!("start the sidecar: {error}")));
    }

    /// `false` if the process exited because its port was taken.
    async fn wait_until_ready(&mut self) -> bool {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            if let Some(status) = self.exit_status() {
                let log = self.read_log();
                assert!(
                    log.contains("ddress already in use"),
                    "the sidecar exited with {status}; log:\n{log}"
                );
                return false;
            }
            if self.try_status().await.is_some() {
                return true;
            }
            assert!(
                Instant::now() < deadline,
                "the sidecar does not respond; log:\n{}",
                self.read_log()
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Body of `/status`.
    ///
    /// # Panics
    /// If the sidecar does not respond.
    pub async fn status(&self) -> Value {
        let status = self.try_status().await;
        status.unwrap_or_else(|| panic!("the sidecar at {} does not respond", self.url))
    }

    /// Body of `/status`; `None` if the sidecar does not respond.
    pub async fn try_status(&self) -> Option<Value> {
        let response = self.http.get(format!("{}/status", self.url));
        let response = response.timeout(Duration::from_secs(5)).send().await.ok()?;
        response.json().await.ok()
    }

    /// Whether the sidecar reports that it is the leader.
    pub async fn is_leader(&self) -> bool {
        let status = self.try_status().await;
        status.is_some_and(|status| status["standing"] == "leader")
    }

    /// Sends a request that takes a snapshot; returns status and body of the response.
    pub async fn request(&self, path: &str) -> (u16, Value) {
        let response = self.http.get(format!("{}{path}", self.url)).send().await;
        let response =
            response.unwrap_or_else(|error| panic!("GET {path} from the sidecar: {error}"));
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or_default())
    }

    /// Value of one series with its labels; zero if it does not exist.
    pub async fn read_metric(&self, series: &str) -> u64 {
        let text = self.fetch_metrics().await;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().expect("the metric is an integer"))
    }

    /// Sum of a counter over all labels.
    pub async fn sum_metric(&self, name: &str) -> u64 {
        let text = self.fetch_metrics().await;
        let of_name = |line: &str| {
            let labelled = line.strip_prefix(name)?;
            let value = labelled.starts_with(['{', ' ']).then_some(labelled)?;
            value.rsplit_once(' ')?.1.parse::<u64>().ok()
        };
        text.lines().filter_map(of_name).sum()
    }

    async fn fetch_metrics(&self) -> String {
        let response = self.http.get(format!("{}/metrics", self.url)).send().await;
        let text = response.expect("the metrics of the sidecar").text().await;
        text.expect("the metrics of the sidecar")
    }

    /// Stops the sidecar gracefully (SIGTERM) and waits until it exits.
    ///
    /// # Panics
    /// If it is not running or does not exit.
    pub async fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + STOP_DEADLINE;
        loop {
            if let Some(status) = self.exit_status() {
                self.child = None;
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "the sidecar did not exit after SIGTERM"
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Kills the sidecar (SIGKILL).
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Fails only if the process has already exited.
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// Pauses the process (SIGSTOP).
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes a paused process (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Whether the process is running; `false` if it exited by itself.
    pub fn is_running(&mut self) -> bool {
        self.child.is_some() && self.exit_status().is_none()
    }

    /// Process ID.
    ///
    /// # Panics
    /// If the sidecar is not running.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running sidecar").id()
    }

    fn signal(&self, signal: Signal) {
        signal_process(self.pid(), signal);
    }

    fn exit_status(&mut self) -> Option<ExitStatus> {
        let child = self.child.as_mut()?;
        child.try_wait().expect("read the state of the sidecar")
    }

    /// URL of the HTTP server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Log of all starts.
    pub fn read_log(&self) -> String {
        fs::read(self.log_path())
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.temp_dir.path().join("sidecar.log")
    }
}

impl Drop for SidecarProcess {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.read_log();
            let lines: Vec<&str> = log.lines().collect();
            let shown = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
            eprintln!("--- sidecar at {}\n{}", self.url, shown.join("\n"));
        }
    }
}

/// Path of the program: from `MAINSTAY_SIDECAR`, or built next to the test.
fn sidecar_binary() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let named = std::env::var_os("MAINSTAY_SIDECAR").filter(|path| !path.is_empty());
        let path = named.map_or_else(default_binary_path, PathBuf::from);
        assert!(
            path.is_file(),
            "{} does not exist: run `make test-live`, or `cargo build -p mainstay-sidecar` first",
            path.display()
        );
        path
    })
}

/// Cargo builds tests into `deps` and programs one level above it.
fn default_binary_path() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let programs = test.ancestors().nth(2).expect("a directory of programs");
    programs.join("mainstay-sidecar")
}

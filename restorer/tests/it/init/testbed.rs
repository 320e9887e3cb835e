//! Runs members as pods do: `init`, then etcd with the configuration file it wrote.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions};
use mainstay_testkit::EtcdRelease;
use mainstay_testkit::etcd::free_url;
use mainstay_verdict::{InitReport, TerminationMessage};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::sleep;

use crate::home::Home;

pub(super) const TIMEOUT: Duration = Duration::from_mins(2);

/// Addresses of members `etcd-0`, `etcd-1`, …, and a home directory with buckets.
pub(super) struct InitTestbed {
    pub(super) home: Home,
    /// Prefix of the member names.
    name_prefix: &'static str,
    version: EtcdRelease,
    members: Vec<MemberUrls>,
}

struct MemberUrls {
    client: String,
    peer: String,
    metrics: String,
}

/// A running etcd; killed when dropped.
pub(super) struct EtcdProcess(Child);

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        self.0.kill().ok(); // fails if the process has ended already
        self.0.wait().ok();
    }
}

impl EtcdProcess {
    /// Stops etcd with SIGTERM and waits for its end.
    pub(super) fn stop(mut self) {
        let id = self.0.id().to_string();
        let signalled = Command::new("kill").args(["-TERM", &id]).status();
        assert!(signalled.unwrap().success());
        self.0.wait().unwrap();
    }
}

/// Exit code and JSON result of `init`.
pub(super) struct InitResult {
    pub(super) code: i32,
    pub(super) json: Value,
}

impl InitResult {
    /// Parses the report as the controller does.
    pub(super) fn report(&self) -> InitReport {
        let message = TerminationMessage::parse(&self.json.to_string()).unwrap();
        message
            .init_report()
            .unwrap_or_else(|error| panic!("{error}: {}", self.json))
    }

    /// Returns exit code, decision and cause.
    pub(super) fn summary(&self) -> (i32, &str, &str) {
        let word = |key: &str| self.json["init"][key].as_str().unwrap_or("");
        (self.code, word("decision"), word("cause"))
    }
}

impl InitTestbed {
    pub(super) fn new(version: EtcdRelease, members: usize) -> Self {
        let place = |_| MemberUrls {
            client: free_url(),
            peer: free_url(),
            metrics: free_url(),
        };
        Self {
            home: Home::new(),
            name_prefix: "etcd",
            version,
            members: (0..members).map(place).collect(),
        }
    }

    /// As [`Self::of`], with the bucket of a fixture.
    pub(super) fn with_fixture(version: EtcdRelease, members: usize, fixture: &str) -> Self {
        Self {
            home: Home::from_fixture(fixture),
            ..Self::new(version, members)
        }
    }

    /// Sets the prefix of the member names.
    pub(super) fn with_name_prefix(self, name_prefix: &'static str) -> Self {
        Self {
            name_prefix,
            ..self
        }
    }

    /// Creates another cluster at the same addresses, with its own volumes.
    pub(super) fn with_same_addresses(&self) -> Self {
        let place = |place: &MemberUrls| MemberUrls {
            client: place.client.clone(),
            peer: place.peer.clone(),
            metrics: place.metrics.clone(),
        };
        Self {
            home: Home::new(),
            name_prefix: self.name_prefix,
            version: self.version,
            members: self.members.iter().map(place).collect(),
        }
    }

    pub(super) fn peer_url(&self, member: usize) -> &str {
        &self.members[member].peer
    }

    pub(super) fn data_dir(&self, member: usize) -> PathBuf {
        self.volume(member).join("new.etcd")
    }

    pub(super) fn volume(&self, member: usize) -> PathBuf {
        let volume = self.home.path(&format!("volume-{member}"));
        fs::create_dir_all(&volume).unwrap();
        volume
    }

    /// Returns everything on the volume of a member, to check that nothing changed.
    pub(super) fn read_volume(&self, member: usize) -> VolumeListing {
        let mut content = VolumeListing::new();
        collect_content(&self.volume(member), &mut content);
        content
    }

    fn termination_message_path(&self, member: usize) -> PathBuf {
        self.home.path(&format!("last-words-{member}"))
    }

    pub(super) fn config_path(&self, member: usize) -> PathBuf {
        self.home.path(&format!("etcd-{member}.conf.yaml"))
    }

    /// Returns the configuration file of etcd, if `init` has written it.
    pub(super) fn read_config(&self, member: usize) -> Option<String> {
        fs::read_to_string(self.config_path(member)).ok()
    }

    /// Writes the configuration templates with this `initial-cluster-state` and these members in `initial-cluster`.
    pub(super) fn write_templates(&self, state: &str, initial: &[usize]) {
        let by_member = |url: fn(&MemberUrls) -> &String| {
            let lines = self.members.iter().enumerate();
            let lines = lines
                .map(|(i, place)| format!("  {}-{i}: [\"{}\"]\n", self.name_prefix, url(place)));
            lines.collect::<String>()
        };
        let pairs = initial
            .iter()
            .map(|i| format!("{}-{i}={}", self.name_prefix, self.members[*i].peer));
        let pairs = pairs.collect::<Vec<_>>().join(",");
        for (member, place) in self.members.iter().enumerate() {
            // With strict-reconfig-check, a cluster that started a few seconds ago refuses to remove a member. The long
            // election timeout keeps a busy machine from causing elections.
            let text = format!(
                "name: etcd-config\ndata-dir: {}\nmetrics: basic\nunsafe-no-fsync: true\n\
                 heartbeat-interval: 500\nelection-timeout: 5000\n\
                 strict-reconfig-check: false\ninitial-cluster-token: etcd-cluster\ninitial-cluster-state: {state}\n\
                 initial-cluster: \"{pairs}\"\nnext-cluster-version-compatible: true\n\
                 listen-peer-urls: {}\nlisten-client-urls: {}\nlisten-metrics-urls: {}\n\
                 initial-advertise-peer-urls:\n{}advertise-client-urls:\n{}",
                self.data_dir(member).display(),
                place.peer,
                place.client,
                place.metrics,
                by_member(|place| &place.peer),
                by_member(|place| &place.client),
            );
            fs::write(self.template_path(member), text).unwrap();
        }
    }

    pub(super) fn template_path(&self, member: usize) -> PathBuf {
        self.home.path(&format!("template-{member}.yaml"))
    }

    fn init_command(&self, member: usize, flags: &[&str]) -> Command {
        self.init_command_with(
            env!("CARGO_BIN_EXE_mainstay-restorer").as_ref(),
            member,
            flags,
        )
    }

    fn init_command_with(&self, program: &Path, member: usize, flags: &[&str]) -> Command {
        let log = fs::File::create(self.init_log_path(member)).unwrap();
        let mut command = Command::new(program);
        command
            .args(["init", "-o", "json", "--namespace", "shoot"])
            .arg(format!("--pod-name={}-{member}", self.name_prefix))
            .arg(format!(
                "--config-template={}",
                self.template_path(member).display()
            ))
            .arg(format!(
                "--config-output={}",
                self.config_path(member).display()
            ))
            .arg(format!(
                "--termination-message-path={}",
                self.termination_message_path(member).display()
            ))
            .args(flags)
            .env_clear()
            .env("HOME", self.home.root())
            .stdout(Stdio::piped())
            .stderr(log);
        command
    }

    /// Runs `init` with a wait timeout of zero.
    pub(super) fn run_init(&self, member: usize, flags: &[&str]) -> InitResult {
        let mut command = self.init_command(member, &["--wait-timeout=0s"]);
        read_init_result(
            command.args(flags).spawn().unwrap(),
            &self.termination_message_path(member),
        )
    }

    /// Runs `init` with a wait timeout while `happens` runs.
    pub(super) async fn run_init_during<F: Future>(
        &self,
        member: usize,
        wait: &str,
        happens: F,
    ) -> InitResult {
        let child = self
            .init_command(member, &["--wait-timeout", wait])
            .spawn()
            .unwrap();
        happens.await;
        read_init_result(child, &self.termination_message_path(member))
    }

    /// Runs `init` as an unprivileged user, also if the test runs as root: root ignores file permissions.
    pub(super) fn run_init_unprivileged(&self, member: usize) -> InitResult {
        const NOBODY: u32 = 65534;
        let program = self.home.path("mainstay-restorer");
        if !program.exists() {
            // Other users may not have access to the build directory.
            fs::copy(env!("CARGO_BIN_EXE_mainstay-restorer"), &program).unwrap();
        }
        let mut command = self.init_command_with(&program, member, &["--wait-timeout=0s"]);
        if fs::metadata(self.home.root()).unwrap().uid() == 0 {
            let owner = format!("{NOBODY}:{NOBODY}");
            let mut chown = Command::new("chown");
            let changed = chown.args(["-R", &owner]).arg(self.home.root()).status();
            assert!(changed.unwrap().success());
            command.uid(NOBODY).gid(NOBODY);
        }
        read_init_result(
            command.spawn().unwrap(),
            &self.termination_message_path(member),
        )
    }

    fn init_log_path(&self, member: usize) -> PathBuf {
        self.home.path(&format!("init-{member}.log"))
    }

    /// Waits until `init` logs that it waits.
    pub(super) async fn wait_until_waiting(&self, member: usize) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let log = fs::read_to_string(self.init_log_path(member)).unwrap();
            if log.contains("waiting") {
                return;
            }
            assert!(Instant::now() < deadline, "init does not wait:\n{log}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Starts etcd with the configuration that `init` wrote.
    pub(super) fn start_etcd(&self, member: usize) -> EtcdProcess {
        let log = fs::File::create(self.home.path(&format!("etcd-{member}.log"))).unwrap();
        let child = Command::new(self.version.directory().join("etcd"))
            .arg(format!(
                "--config-file={}",
                self.config_path(member).display()
            ))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        EtcdProcess(child.unwrap())
    }

    /// Runs `init`, which must succeed, and starts etcd.
    pub(super) fn init_and_start(&self, member: usize) -> EtcdProcess {
        let init_result = self.run_init(member, &[]);
        assert_eq!(init_result.code, 0, "{}", init_result.json);
        self.start_etcd(member)
    }

    /// Waits until a member answers and has a leader.
    pub(super) async fn wait_for_client(&self, member: usize) -> Client {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let options = ConnectOptions::new().with_connect_timeout(Duration::from_secs(2));
            let connected = Client::connect([&self.members[member].client], Some(options)).await;
            if let Ok(mut client) = connected
                && client
                    .status()
                    .await
                    .is_ok_and(|status| status.leader() != 0)
            {
                return client;
            }
            let log = fs::read_to_string(self.home.path(&format!("etcd-{member}.log")));
            assert!(
                Instant::now() < deadline,
                "etcd-{member} does not answer:\n{}",
                log.unwrap()
            );
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Reads the result and checks that termination message and output are equal.
fn read_init_result(child: Child, message_path: &Path) -> InitResult {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let message = fs::read(message_path).unwrap();
    assert!(
        message.len() <= 4096,
        "the kubelet would truncate the message"
    );
    let message: Value = serde_json::from_slice(&message).unwrap();
    assert_eq!(message, json, "termination message and output differ");
    InitResult {
        code: output.status.code().unwrap(),
        json,
    }
}

/// Path → mode, modification time, hash of the content or target of the link.
pub(super) type VolumeListing = BTreeMap<PathBuf, (u32, (i64, i64), String)>;

fn collect_content(path: &Path, content: &mut VolumeListing) {
    let found = fs::symlink_metadata(path).unwrap();
    let changed = (found.mtime(), found.mtime_nsec());
    let text = if found.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            collect_content(&entry.unwrap().path(), content);
        }
        String::new()
    } else if found.is_symlink() {
        fs::read_link(path).unwrap().display().to_string()
    } else {
        hex::encode(Sha256::digest(fs::read(path).unwrap()))
    };
    content.insert(path.to_owned(), (found.mode(), changed, text));
}

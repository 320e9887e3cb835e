//! Members as pods would run them: `init`, then etcd with the file it wrote.

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

/// Places of members `etcd-0`, `etcd-1`, …, and a home directory with buckets.
pub(super) struct InitTestbed {
    pub(super) home: Home,
    /// What the members are called, before their number.
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
        self.0.kill().ok(); // fails when it has ended already
        self.0.wait().ok();
    }
}

impl EtcdProcess {
    /// Ends it in order.
    pub(super) fn stop(mut self) {
        let id = self.0.id().to_string();
        let told = Command::new("kill").args(["-TERM", &id]).status();
        assert!(told.unwrap().success());
        self.0.wait().unwrap();
    }
}

/// What `init` said: its exit code and its report.
pub(super) struct InitResult {
    pub(super) code: i32,
    pub(super) json: Value,
}

impl InitResult {
    /// The report, read as the controller reads it.
    pub(super) fn report(&self) -> InitReport {
        let message = TerminationMessage::parse(&self.json.to_string()).unwrap();
        message
            .init_report()
            .unwrap_or_else(|error| panic!("{error}: {}", self.json))
    }

    /// Exit code, decision and cause, for a comparison at a glance.
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

    /// The same with the bucket of a fixture in its home.
    pub(super) fn with_fixture(version: EtcdRelease, members: usize, fixture: &str) -> Self {
        Self {
            home: Home::from_fixture(fixture),
            ..Self::new(version, members)
        }
    }

    /// The same with another name for the members.
    pub(super) fn with_name_prefix(self, called: &'static str) -> Self {
        Self { name_prefix: called, ..self }
    }

    /// Another cluster at the same addresses, with volumes of its own.
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

    /// Everything on the volume of a member: kind and rights, time of the last change, content.
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

    /// What `etcd --config-file` would read, if `init` has written it.
    pub(super) fn read_config(&self, member: usize) -> Option<String> {
        fs::read_to_string(self.config_path(member)).ok()
    }

    /// The configuration of all members, as `state`, of a cluster of the members `initial`.
    pub(super) fn write_templates(&self, state: &str, initial: &[usize]) {
        let by_member = |url: fn(&MemberUrls) -> &String| {
            let lines = self.members.iter().enumerate();
            let lines =
                lines.map(|(i, place)| format!("  {}-{i}: [\"{}\"]\n", self.name_prefix, url(place)));
            lines.collect::<String>()
        };
        let pairs = initial
            .iter()
            .map(|i| format!("{}-{i}={}", self.name_prefix, self.members[*i].peer));
        let pairs = pairs.collect::<Vec<_>>().join(",");
        for (member, place) in self.members.iter().enumerate() {
            // If it were strict, a cluster that has been up for a few seconds only would not let a member go. A leader is
            // lost after five seconds of silence: a busy machine alone causes no election.
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
            .arg(format!("--config-output={}", self.config_path(member).display()))
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

    /// Runs `init` without waiting for others.
    pub(super) fn run_init(&self, member: usize, flags: &[&str]) -> InitResult {
        let mut command = self.init_command(member, &["--wait-timeout=0s"]);
        read_init_result(
            command.args(flags).spawn().unwrap(),
            &self.termination_message_path(member),
        )
    }

    /// Runs `init`, which waits for others, while something happens.
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

    /// Runs `init` as somebody whom rights concern, also where the test itself is not.
    pub(super) fn run_init_unprivileged(&self, member: usize) -> InitResult {
        const NOBODY: u32 = 65534;
        let program = self.home.path("mainstay-restorer");
        if !program.exists() {
            // Where it was built, nobody else may go.
            fs::copy(env!("CARGO_BIN_EXE_mainstay-restorer"), &program).unwrap();
        }
        let mut command = self.init_command_with(&program, member, &["--wait-timeout=0s"]);
        if fs::metadata(self.home.root()).unwrap().uid() == 0 {
            let owner = format!("{NOBODY}:{NOBODY}");
            let mut chown = Command::new("chown");
            let given = chown.args(["-R", &owner]).arg(self.home.root()).status();
            assert!(given.unwrap().success());
            command.uid(NOBODY).gid(NOBODY);
        }
        read_init_result(command.spawn().unwrap(), &self.termination_message_path(member))
    }

    fn init_log_path(&self, member: usize) -> PathBuf {
        self.home.path(&format!("init-{member}.log"))
    }

    /// Waits until `init` says that it waits.
    pub(super) async fn wait_until_waiting(&self, member: usize) {
        let until = Instant::now() + TIMEOUT;
        loop {
            let log = fs::read_to_string(self.init_log_path(member)).unwrap();
            if log.contains("waiting") {
                return;
            }
            assert!(Instant::now() < until, "init does not wait:\n{log}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Starts etcd on what `init` wrote.
    pub(super) fn start_etcd(&self, member: usize) -> EtcdProcess {
        let log = fs::File::create(self.home.path(&format!("etcd-{member}.log"))).unwrap();
        let child = Command::new(self.version.directory().join("etcd"))
            .arg(format!("--config-file={}", self.config_path(member).display()))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        EtcdProcess(child.unwrap())
    }

    /// Runs `init`, which has to let etcd start, and starts it.
    pub(super) fn init_and_start(&self, member: usize) -> EtcdProcess {
        let init_result = self.run_init(member, &[]);
        assert_eq!(init_result.code, 0, "{}", init_result.json);
        self.start_etcd(member)
    }

    /// Waits until a member answers.
    pub(super) async fn wait_for_client(&self, member: usize) -> Client {
        let until = Instant::now() + TIMEOUT;
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
                Instant::now() < until,
                "etcd-{member} does not serve:\n{}",
                log.unwrap()
            );
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Reads what was said; the termination message and the output say the same.
fn read_init_result(child: Child, last_words: &Path) -> InitResult {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let left = fs::read(last_words).unwrap();
    assert!(left.len() <= 4096, "a kubelet would cut the message");
    let left: Value = serde_json::from_slice(&left).unwrap();
    assert_eq!(left, json, "the termination message says something else");
    InitResult {
        code: output.status.code().unwrap(),
        json,
    }
}

/// Path → rights and kind, nanoseconds of the last change, content.
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

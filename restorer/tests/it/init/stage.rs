//! Members as pods would run them: `init`, then etcd with the file it wrote.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions};
use mainstay_testkit::EtcdVersion;
use mainstay_testkit::etcd::free_url;
use mainstay_verdict::{InitReport, Message};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::sleep;

use crate::home::Home;

pub(super) const PATIENCE: Duration = Duration::from_mins(2);

/// Places of members `etcd-0`, `etcd-1`, …, and a home directory with buckets.
pub(super) struct Stage {
    pub(super) home: Home,
    /// What the members are called, before their number.
    called: &'static str,
    version: EtcdVersion,
    places: Vec<Place>,
}

struct Place {
    client: String,
    peer: String,
    metrics: String,
}

/// A running etcd; killed when dropped.
pub(super) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok(); // fails when it has ended already
        self.0.wait().ok();
    }
}

impl Running {
    /// Ends it in order.
    pub(super) fn stop(mut self) {
        let id = self.0.id().to_string();
        let told = Command::new("kill").args(["-TERM", &id]).status();
        assert!(told.unwrap().success());
        self.0.wait().unwrap();
    }
}

/// What `init` said: its exit code and its report.
pub(super) struct Said {
    pub(super) code: i32,
    pub(super) json: Value,
}

impl Said {
    /// The report, read as the controller reads it.
    pub(super) fn report(&self) -> InitReport {
        let message = Message::read(&self.json.to_string()).unwrap();
        message
            .init()
            .unwrap_or_else(|error| panic!("{error}: {}", self.json))
    }

    /// Exit code, decision and cause, for a comparison at a glance.
    pub(super) fn brief(&self) -> (i32, &str, &str) {
        let word = |key: &str| self.json["init"][key].as_str().unwrap_or("");
        (self.code, word("decision"), word("cause"))
    }
}

impl Stage {
    pub(super) fn of(version: EtcdVersion, members: usize) -> Self {
        let place = |_| Place {
            client: free_url(),
            peer: free_url(),
            metrics: free_url(),
        };
        Self {
            home: Home::new(),
            called: "etcd",
            version,
            places: (0..members).map(place).collect(),
        }
    }

    /// The same with the bucket of a fixture in its home.
    pub(super) fn with_fixture(version: EtcdVersion, members: usize, fixture: &str) -> Self {
        Self {
            home: Home::of_fixture(fixture),
            ..Self::of(version, members)
        }
    }

    /// The same with another name for the members.
    pub(super) fn called(self, called: &'static str) -> Self {
        Self { called, ..self }
    }

    /// Another cluster at the same addresses, with volumes of its own.
    pub(super) fn twin(&self) -> Self {
        let place = |place: &Place| Place {
            client: place.client.clone(),
            peer: place.peer.clone(),
            metrics: place.metrics.clone(),
        };
        Self {
            home: Home::new(),
            called: self.called,
            version: self.version,
            places: self.places.iter().map(place).collect(),
        }
    }

    pub(super) fn peer_url(&self, member: usize) -> &str {
        &self.places[member].peer
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
    pub(super) fn content(&self, member: usize) -> Content {
        let mut content = Content::new();
        collect(&self.volume(member), &mut content);
        content
    }

    fn last_words(&self, member: usize) -> PathBuf {
        self.home.path(&format!("last-words-{member}"))
    }

    pub(super) fn output(&self, member: usize) -> PathBuf {
        self.home.path(&format!("etcd-{member}.conf.yaml"))
    }

    /// What `etcd --config-file` would read, if `init` has written it.
    pub(super) fn written(&self, member: usize) -> Option<String> {
        fs::read_to_string(self.output(member)).ok()
    }

    /// The configuration of all members, as `state`, of a cluster of the members `initial`.
    pub(super) fn configure(&self, state: &str, initial: &[usize]) {
        let by_member = |url: fn(&Place) -> &String| {
            let lines = self.places.iter().enumerate();
            let lines =
                lines.map(|(i, place)| format!("  {}-{i}: [\"{}\"]\n", self.called, url(place)));
            lines.collect::<String>()
        };
        let pairs = initial
            .iter()
            .map(|i| format!("{}-{i}={}", self.called, self.places[*i].peer));
        let pairs = pairs.collect::<Vec<_>>().join(",");
        for (member, place) in self.places.iter().enumerate() {
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
            fs::write(self.template(member), text).unwrap();
        }
    }

    pub(super) fn template(&self, member: usize) -> PathBuf {
        self.home.path(&format!("template-{member}.yaml"))
    }

    fn command(&self, member: usize, flags: &[&str]) -> Command {
        self.command_of(
            env!("CARGO_BIN_EXE_mainstay-restorer").as_ref(),
            member,
            flags,
        )
    }

    fn command_of(&self, program: &Path, member: usize, flags: &[&str]) -> Command {
        let log = fs::File::create(self.init_log(member)).unwrap();
        let mut command = Command::new(program);
        command
            .args(["init", "-o", "json", "--namespace", "shoot"])
            .arg(format!("--pod-name={}-{member}", self.called))
            .arg(format!(
                "--config-template={}",
                self.template(member).display()
            ))
            .arg(format!("--config-output={}", self.output(member).display()))
            .arg(format!(
                "--termination-message-path={}",
                self.last_words(member).display()
            ))
            .args(flags)
            .env_clear()
            .env("HOME", self.home.root())
            .stdout(Stdio::piped())
            .stderr(log);
        command
    }

    /// Runs `init` without waiting for others.
    pub(super) fn init(&self, member: usize, flags: &[&str]) -> Said {
        let mut command = self.command(member, &["--wait-timeout=0s"]);
        said(
            command.args(flags).spawn().unwrap(),
            &self.last_words(member),
        )
    }

    /// Runs `init`, which waits for others, while something happens.
    pub(super) async fn init_during<F: Future>(
        &self,
        member: usize,
        wait: &str,
        happens: F,
    ) -> Said {
        let child = self
            .command(member, &["--wait-timeout", wait])
            .spawn()
            .unwrap();
        happens.await;
        said(child, &self.last_words(member))
    }

    /// Runs `init` as somebody whom rights concern, also where the test itself is not.
    pub(super) fn init_without_privileges(&self, member: usize) -> Said {
        const NOBODY: u32 = 65534;
        let program = self.home.path("mainstay-restorer");
        if !program.exists() {
            // Where it was built, nobody else may go.
            fs::copy(env!("CARGO_BIN_EXE_mainstay-restorer"), &program).unwrap();
        }
        let mut command = self.command_of(&program, member, &["--wait-timeout=0s"]);
        if fs::metadata(self.home.root()).unwrap().uid() == 0 {
            let owner = format!("{NOBODY}:{NOBODY}");
            let mut chown = Command::new("chown");
            let given = chown.args(["-R", &owner]).arg(self.home.root()).status();
            assert!(given.unwrap().success());
            command.uid(NOBODY).gid(NOBODY);
        }
        said(command.spawn().unwrap(), &self.last_words(member))
    }

    fn init_log(&self, member: usize) -> PathBuf {
        self.home.path(&format!("init-{member}.log"))
    }

    /// Waits until `init` says that it waits.
    pub(super) async fn waits(&self, member: usize) {
        let until = Instant::now() + PATIENCE;
        loop {
            let log = fs::read_to_string(self.init_log(member)).unwrap();
            if log.contains("waiting") {
                return;
            }
            assert!(Instant::now() < until, "init does not wait:\n{log}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Starts etcd on what `init` wrote.
    pub(super) fn launch(&self, member: usize) -> Running {
        let log = fs::File::create(self.home.path(&format!("etcd-{member}.log"))).unwrap();
        let child = Command::new(self.version.directory().join("etcd"))
            .arg(format!("--config-file={}", self.output(member).display()))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        Running(child.unwrap())
    }

    /// Runs `init`, which has to let etcd start, and starts it.
    pub(super) fn start(&self, member: usize) -> Running {
        let said = self.init(member, &[]);
        assert_eq!(said.code, 0, "{}", said.json);
        self.launch(member)
    }

    /// Waits until a member answers.
    pub(super) async fn client(&self, member: usize) -> Client {
        let until = Instant::now() + PATIENCE;
        loop {
            let options = ConnectOptions::new().with_connect_timeout(Duration::from_secs(2));
            let connected = Client::connect([&self.places[member].client], Some(options)).await;
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
fn said(child: Child, last_words: &Path) -> Said {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let left = fs::read(last_words).unwrap();
    assert!(left.len() <= 4096, "a kubelet would cut the message");
    let left: Value = serde_json::from_slice(&left).unwrap();
    assert_eq!(left, json, "the termination message says something else");
    Said {
        code: output.status.code().unwrap(),
        json,
    }
}

/// Path → rights and kind, nanoseconds of the last change, content.
pub(super) type Content = BTreeMap<PathBuf, (u32, (i64, i64), String)>;

fn collect(path: &Path, content: &mut Content) {
    let found = fs::symlink_metadata(path).unwrap();
    let changed = (found.mtime(), found.mtime_nsec());
    let text = if found.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), content);
        }
        String::new()
    } else if found.is_symlink() {
        fs::read_link(path).unwrap().display().to_string()
    } else {
        hex::encode(Sha256::digest(fs::read(path).unwrap()))
    };
    content.insert(path.to_owned(), (found.mode(), changed, text));
}

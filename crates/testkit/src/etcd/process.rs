//! One etcd process with its directory, ports and log.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{EtcdOptions, EtcdRelease};
use crate::ports::free_port;

/// Covers a cold start on a loaded machine; a server that needs longer is stuck.
const START_DEADLINE: Duration = Duration::from_mins(2);
/// A server that takes longer to exit after SIGTERM is stuck.
const STOP_DEADLINE: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// Why a server did not become healthy, with its log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdStartError {
    /// The process exited.
    #[error("etcd {version} exited with {status} before it became healthy; log:\n{log}")]
    Exited {
        /// Version of etcd.
        version: EtcdRelease,
        /// Exit status of the process.
        status: ExitStatus,
        /// Complete log of the process.
        log: String,
    },
    /// The process runs but is not healthy.
    #[error("etcd {version} is not healthy after {START_DEADLINE:?}; log:\n{log}")]
    Unhealthy {
        /// Version of etcd.
        version: EtcdRelease,
        /// Complete log of the process.
        log: String,
    },
}

/// A running etcd server. Dropping it kills the process and removes its temporary directory.
#[derive(Debug)]
pub struct EtcdServer {
    version: EtcdRelease,
    options: EtcdOptions,
    temp_dir: TempDir,
    data_dir: PathBuf,
    client_url: String,
    peer_url: String,
    child: Option<Child>,
    user: Option<(String, String)>,
}

impl EtcdServer {
    /// Starts a server and waits until it is healthy.
    ///
    /// # Panics
    /// If the server does not become healthy, with its log.
    pub async fn start(version: EtcdRelease, options: EtcdOptions) -> Self {
        Self::try_start(version, options)
            .await
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts a server; an error if it does not become healthy, for example because of its data directory.
    pub async fn try_start(
        version: EtcdRelease,
        options: EtcdOptions,
    ) -> Result<Self, EtcdStartError> {
        for _ in 0..5 {
            let mut etcd = Self::spawn(version, options.clone());
            match etcd.wait_until_healthy().await {
                // Another process took the port between allocation and use: retry with new ports.
                Err(EtcdStartError::Exited { log, .. })
                    if log.contains("address already in use") => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(etcd),
            }
        }
        panic!("the ports for etcd {version} were taken five times in a row")
    }

    /// Starts a server without waiting, for members that need each other to become healthy.
    pub(crate) fn spawn(version: EtcdRelease, options: EtcdOptions) -> Self {
        let temp_dir = TempDir::with_prefix("etcd-").expect("a temporary directory");
        let data_dir = options
            .data_dir
            .clone()
            .unwrap_or_else(|| temp_dir.path().join("data"));
        let peer_url = options.peer_url.clone().unwrap_or_else(free_url);
        let mut etcd = Self {
            version,
            options,
            temp_dir,
            data_dir,
            client_url: free_url(),
            peer_url,
            child: None,
            user: None,
        };
        etcd.launch();
        etcd
    }

    /// Starts a stopped or killed server again, with the same directory and URLs.
    ///
    /// # Panics
    /// If the server does not become healthy, with its log, or if it is already running.
    pub async fn restart(&mut self) {
        assert!(
            self.child.is_none(),
            "etcd {} is already running",
            self.version
        );
        self.launch();
        self.wait_until_healthy()
            .await
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Starts a stopped or killed server again without waiting, for members that have no quorum yet.
    ///
    /// # Panics
    /// If it is already running.
    pub fn relaunch(&mut self) {
        assert!(
            self.child.is_none(),
            "etcd {} is already running",
            self.version
        );
        self.launch();
    }

    /// Sets the options for the next start; directory and URLs stay.
    pub fn set_options(&mut self, options: EtcdOptions) {
        self.options = options;
    }

    fn launch(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path());
        let log = log.expect("open the log of etcd");
        let name = self.options.name.as_deref().unwrap_or("default");
        let initial_cluster = match &self.options.initial_cluster {
            Some(members) => members.clone(),
            None => format!("{name}={}", self.peer_url),
        };
        let listen_peers = self.options.peer_listen_url.as_ref();
        let listen_peers = listen_peers.unwrap_or(&self.peer_url);
        let child = Command::new(self.version.program_path("etcd"))
            // etcd refuses to start if an `ETCD_*` variable conflicts with a flag.
            .env_clear()
            .arg(format!("--name={name}"))
            .arg(format!("--data-dir={}", self.data_dir.display()))
            .arg(format!("--listen-client-urls={}", self.client_url))
            .arg(format!("--advertise-client-urls={}", self.client_url))
            .arg(format!("--listen-peer-urls={listen_peers}"))
            .arg(format!("--initial-advertise-peer-urls={}", self.peer_url))
            .arg(format!("--initial-cluster={initial_cluster}"))
            .args((!self.options.fsync).then_some("--unsafe-no-fsync"))
            .args(&self.options.flags)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("share the log of etcd"))
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap_or_else(|error| panic!("start etcd: {error}")));
    }

    /// Waits until a server that was started without waiting is healthy.
    pub async fn wait_until_healthy(&mut self) -> Result<(), EtcdStartError> {
        let version = self.version;
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            if let Some(status) = self.exit_status() {
                self.child = None;
                return Err(EtcdStartError::Exited {
                    version,
                    status,
                    log: self.read_log(),
                });
            }
            if self.is_healthy().await {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(EtcdStartError::Unhealthy {
                    version,
                    log: self.read_log(),
                });
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether the server has quorum. NOSPACE and CORRUPT alarms are ignored, because tests that raise them
    /// still use the server.
    pub async fn is_healthy(&self) -> bool {
        let Ok(response) = timeout(Duration::from_secs(5), self.request_health()).await else {
            return false;
        };
        response.is_ok_and(|text| text.starts_with("HTTP/1.1 200") || text.contains("ALARM"))
    }

    async fn request_health(&self) -> io::Result<String> {
        let address = self.client_url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).await?;
        stream
            .write_all(
                b"GET /health?exclude=NOSPACE&exclude=CORRUPT HTTP/1.1\r\n\
                  Host: etcd\r\nConnection: close\r\n\r\n",
            )
            .await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        Ok(response)
    }

    /// Stops the server gracefully (SIGTERM) and waits; the data directory is complete then.
    ///
    /// # Panics
    /// If the server is not running or does not exit.
    pub async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + STOP_DEADLINE;
        while self.exit_status().is_none() {
            assert!(
                Instant::now() < deadline,
                "etcd did not exit after SIGTERM; log:\n{}",
                self.read_log()
            );
            sleep(POLL_INTERVAL).await;
        }
        self.child = None;
    }

    /// Kills the server (SIGKILL), as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Fails only if the process has already exited.
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// Pauses the process (SIGSTOP), like a starved or suspended machine. Connections stay open without responses.
    ///
    /// # Panics
    /// If the server is not running.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes a paused process (SIGCONT).
    ///
    /// # Panics
    /// If the server is not running.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Whether there is a process, paused or not.
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Process ID.
    ///
    /// # Panics
    /// If the server is not running.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running etcd").id()
    }

    fn signal(&self, signal: Signal) {
        signal_process(self.pid(), signal);
    }

    fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child
            .as_mut()
            .and_then(|child| child.try_wait().expect("read the state of etcd"))
    }

    /// Sets the user of all following requests.
    pub fn login(&mut self, name: &str, password: &str) {
        self.user = Some((name.to_owned(), password.to_owned()));
    }

    /// User and password of the last [`login`](Self::login).
    pub fn user(&self) -> Option<&(String, String)> {
        self.user.as_ref()
    }

    /// A client of this member only.
    pub async fn client(&self) -> Client {
        self.try_client()
            .await
            .unwrap_or_else(|error| panic!("connect to {}: {error}", self.client_url))
    }

    /// A client of this member only; an error if it is down.
    pub async fn try_client(&self) -> Result<Client, etcd_client::Error> {
        let mut options = ConnectOptions::new().with_connect_timeout(Duration::from_secs(10));
        if let Some((name, password)) = &self.user {
            options = options.with_user(name, password);
        }
        Client::connect([&self.client_url], Some(options)).await
    }

    /// Version of etcd.
    pub fn version(&self) -> EtcdRelease {
        self.version
    }

    /// Client URL.
    pub fn client_url(&self) -> &str {
        &self.client_url
    }

    /// Advertised peer URL.
    pub fn peer_url(&self) -> &str {
        &self.peer_url
    }

    /// Data directory. Unless the options name one, it is removed when this value is dropped.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Log of all starts of the server.
    pub fn read_log(&self) -> String {
        fs::read(self.log_path())
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.temp_dir.path().join("etcd.log")
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn signal_process(id: u32, signal: Signal) {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process id"), signal).expect("signal a process");
}

/// A loopback URL with a port that belongs to this process.
pub fn free_url() -> String {
    format!("http://{}:{}", Ipv4Addr::LOCALHOST, free_port())
}

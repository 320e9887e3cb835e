//! A world of its own for a cluster: processes, mounts, network.
//!
//! ```text
//! outside: start ─► setsid unshare ─────► process 1: furnish ─► "furnished"
//!          link  ─► devices, routes ────► "linked" ─► init: starts every component, again and again
//! ```
//!
//! `unshare` waits outside for process 1 and takes it along when it dies itself. When process 1 ends, the
//! kernel ends every process of the world, and with the last of them go its mounts and its network.

pub(super) mod control_groups;
mod furnish;
mod init;
pub(super) mod link;

use std::fs::{self, File};
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep};

pub use furnish::PrepareError;
pub use init::{InitError, run_init};

use super::home::ClusterHome;
use super::record::ProcessRecord;

/// Mounting a dozen things takes a fraction of a second.
const PREPARE_DEADLINE: Duration = Duration::from_mins(3);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Why a world did not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartNamespacesError {
    /// Its log could not be opened.
    #[error("open the log of process 1")]
    Log(#[source] io::Error),
    /// The program that makes it could not be started.
    #[error("start unshare")]
    Unshare(#[source] io::Error),
    /// Who holds it could not be written down.
    #[error("write down which process holds the world")]
    Record(#[source] io::Error),
    /// It ended, or took too long.
    #[error("the world was not furnished: {log}")]
    NotPrepared {
        /// What process 1 said.
        log: String,
    },
}

/// Begins a world and returns who holds it, furnished and without a network.
pub(super) async fn start_namespaces(home: &ClusterHome) -> Result<ProcessRecord, StartNamespacesError> {
    let path = home.named_log_file("init");
    let log = File::create(&path).map_err(StartNamespacesError::Log)?;
    let child = Command::new("setsid")
        .args(["unshare", "--mount", "--net", "--pid", "--ipc", "--uts"])
        .args([
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation=private",
            "--",
        ])
        .arg(home.cluster_program())
        .arg(format!("--home={}", home.path().display()))
        .arg("init")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(StartNamespacesError::Log)?)
        .stderr(log)
        .spawn()
        .map_err(StartNamespacesError::Unshare)?;
    let ended = || StartNamespacesError::NotPrepared {
        log: fs::read_to_string(&path).unwrap_or_default(),
    };
    let id = i32::try_from(child.id()).map_err(|_| ended())?;
    let record = ProcessRecord::from_pid(id).ok_or_else(ended)?;
    let text = serde_json::to_vec(&record)
        .map_err(io::Error::other)
        .map_err(StartNamespacesError::Record)?;
    fs::write(home.record_file(), text).map_err(StartNamespacesError::Record)?;
    let deadline = Instant::now() + PREPARE_DEADLINE;
    while !home.prepared_file().exists() {
        if !record.is_running() || Instant::now() > deadline {
            return Err(ended());
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(record)
}

/// Who holds the world of a home, if it has one and it goes on.
pub(super) fn find_holder(home: &ClusterHome) -> Option<ProcessRecord> {
    let text = fs::read(home.record_file()).ok()?;
    let record: ProcessRecord = serde_json::from_slice(&text).ok()?;
    record.is_running().then_some(record)
}

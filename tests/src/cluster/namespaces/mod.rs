//! The namespaces of a cluster: PIDs, mounts, network.
//!
//! ```text
//! outside: start ─► setsid unshare ─────► process 1: furnish ─► file "furnished"
//!          link  ─► devices, routes ────► file "linked" ─► init: starts and restarts every component
//! ```
//!
//! `unshare` waits outside for process 1, which is killed if `unshare` dies. When process 1 ends, the kernel kills every
//! process of the PID namespace, and then removes the mounts and the network devices.

pub(super) mod control_groups;
mod init;
pub(super) mod link;
mod prepare;

use std::fs::{self, File};
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep};

pub use init::{InitError, run_init};
pub use prepare::PrepareError;

use super::home::ClusterHome;
use super::process_record::ProcessRecord;

/// Detects a hang: a dozen mounts take a fraction of a second.
const PREPARE_DEADLINE: Duration = Duration::from_mins(3);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Why the namespaces could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartNamespacesError {
    /// The log of process 1 could not be opened.
    #[error("failed to open the log of process 1")]
    Log(#[source] io::Error),
    /// `unshare` could not be started.
    #[error("failed to start unshare")]
    Unshare(#[source] io::Error),
    /// The record of `unshare` could not be written.
    #[error("failed to record the process of unshare")]
    Record(#[source] io::Error),
    /// Process 1 exited, or did not get ready in time.
    #[error("process 1 of the cluster did not get ready: {log}")]
    NotPrepared {
        /// The log of process 1.
        log: String,
    },
}

/// Creates the namespaces without a network link; returns the process that holds them.
pub(super) async fn start_namespaces(
    home: &ClusterHome,
) -> Result<ProcessRecord, StartNamespacesError> {
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

/// The process that holds the namespaces of a cluster, if it is running.
pub(super) fn find_holder(home: &ClusterHome) -> Option<ProcessRecord> {
    let text = fs::read(home.record_file()).ok()?;
    let record: ProcessRecord = serde_json::from_slice(&text).ok()?;
    record.is_running().then_some(record)
}

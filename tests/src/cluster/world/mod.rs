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

pub use furnish::FurnishError;
pub use init::{InitError, init};

use super::home::Home;
use super::record::Record;

/// Mounting a dozen things takes a fraction of a second.
const FURNISH_DEADLINE: Duration = Duration::from_mins(3);
const POLL: Duration = Duration::from_millis(50);

/// Why a world did not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
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
    Unfurnished {
        /// What process 1 said.
        log: String,
    },
}

/// Begins a world and returns who holds it, furnished and without a network.
pub(super) async fn start(home: &Home) -> Result<Record, StartError> {
    let path = home.log_named("init");
    let log = File::create(&path).map_err(StartError::Log)?;
    let child = Command::new("setsid")
        .args(["unshare", "--mount", "--net", "--pid", "--ipc", "--uts"])
        .args([
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation=private",
            "--",
        ])
        .arg(home.program())
        .arg(format!("--home={}", home.path().display()))
        .arg("init")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(StartError::Log)?)
        .stderr(log)
        .spawn()
        .map_err(StartError::Unshare)?;
    let ended = || StartError::Unfurnished {
        log: fs::read_to_string(&path).unwrap_or_default(),
    };
    let id = i32::try_from(child.id()).map_err(|_| ended())?;
    let record = Record::of(id).ok_or_else(ended)?;
    let text = serde_json::to_vec(&record)
        .map_err(io::Error::other)
        .map_err(StartError::Record)?;
    fs::write(home.record(), text).map_err(StartError::Record)?;
    let deadline = Instant::now() + FURNISH_DEADLINE;
    while !home.furnished().exists() {
        if !record.is_running() || Instant::now() > deadline {
            return Err(ended());
        }
        sleep(POLL).await;
    }
    Ok(record)
}

/// Who holds the world of a home, if it has one and it goes on.
pub(super) fn holder(home: &Home) -> Option<Record> {
    let text = fs::read(home.record()).ok()?;
    let record: Record = serde_json::from_slice(&text).ok()?;
    record.is_running().then_some(record)
}

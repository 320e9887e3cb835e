//! The note beside the data directory: etcd ended in an orderly way, and this is what it left.

use std::path::PathBuf;
use std::time::Duration;

use mainstay_datadir::{CleanStop, CleanStopError};
use mainstay_telemetry::Chain;
use tracing::{debug, info};

/// How often to look whether etcd has ended.
const LOOK: Duration = Duration::from_millis(100);

/// Waits for etcd to end and leaves the note, or does without. Never more than a convenience for the next start.
pub async fn leave_note(data_dir: PathBuf, grace: Duration) {
    if !data_dir.join("member").is_dir() {
        return; // not our volume
    }
    let waited = tokio::time::timeout(grace, async {
        loop {
            match observe(data_dir.clone()).await {
                Err(CleanStopError::InUse { .. }) => tokio::time::sleep(LOOK).await,
                outcome => return outcome,
            }
        }
    });
    match waited.await {
        Ok(Ok(())) => info!("etcd has ended in an orderly way, the next start is a quick one"),
        Ok(Err(error)) => debug!(error = %Chain(&error), "no note of an orderly stop is left"),
        Err(_) => debug!("etcd has not ended in time, no note of an orderly stop is left"),
    }
}

async fn observe(data_dir: PathBuf) -> Result<(), CleanStopError> {
    let work = tokio::task::spawn_blocking(move || {
        let note = CleanStop::observe(
            &data_dir,
            concat!("mainstay-sidecar ", env!("CARGO_PKG_VERSION")),
        )?;
        note.write(&data_dir)
    });
    work.await.unwrap_or(Ok(()))
}

//! The note beside the data directory: etcd ended in an orderly way, and this is what it left.

use std::path::PathBuf;
use std::time::Duration;

use mainstay_datadir::{CleanStop, CleanStopError};
use mainstay_telemetry::ErrorChain;
use tracing::{debug, info};

/// How often to look whether etcd has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Waits for etcd to end and leaves the note, or does without. Never more than a convenience for the next start.
pub async fn record_clean_stop(data_dir: PathBuf, grace: Duration) {
    if !data_dir.join("member").is_dir() {
        return; // not our volume
    }
    let waited = tokio::time::timeout(grace, async {
        loop {
            match write_clean_stop(data_dir.clone()).await {
                Err(CleanStopError::InUse { .. }) => tokio::time::sleep(POLL_INTERVAL).await,
                outcome => return outcome,
            }
        }
    });
    match waited.await {
        Ok(Ok(())) => info!("etcd has ended in an orderly way, the next start is a quick one"),
        Ok(Err(error)) => debug!(error = %ErrorChain(&error), "no note of an orderly stop is left"),
        Err(_) => debug!("etcd has not ended in time, no note of an orderly stop is left"),
    }
}

async fn write_clean_stop(data_dir: PathBuf) -> Result<(), CleanStopError> {
    let work = tokio::task::spawn_blocking(move || {
        let note = CleanStop::observe(
            &data_dir,
            concat!("mainstay-sidecar ", env!("CARGO_PKG_VERSION")),
        )?;
        note.write(&data_dir)
    });
    work.await.unwrap_or(Ok(()))
}

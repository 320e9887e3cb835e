//! Clean-stop marker next to the data directory: records that etcd stopped cleanly, and the state of its files.

use std::path::PathBuf;
use std::time::Duration;

use mainstay_datadir::{CleanStop, CleanStopError};
use mainstay_telemetry::ErrorChain;
use tracing::{debug, info};

/// Interval at which the data directory is checked for the exit of etcd.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Waits for etcd to exit and writes the marker. Failures are only logged: without the marker the next start verifies
/// the whole data directory.
pub(crate) async fn record_clean_stop(data_dir: PathBuf, grace: Duration) {
    if !data_dir.join("member").is_dir() {
        return; // the volume is not mounted here
    }
    let waited = tokio::time::timeout(grace, async {
        loop {
            match write_clean_stop(data_dir.clone()).await {
                // etcd holds the lock on its database until it exits.
                Err(CleanStopError::InUse { .. }) => tokio::time::sleep(POLL_INTERVAL).await,
                outcome => return outcome,
            }
        }
    });
    match waited.await {
        Ok(Ok(())) => info!("etcd stopped cleanly, clean-stop marker written"),
        Ok(Err(error)) => debug!(error = %ErrorChain(&error), "clean-stop marker not written"),
        Err(_) => debug!("etcd did not stop in time, clean-stop marker not written"),
    }
}

async fn write_clean_stop(data_dir: PathBuf) -> Result<(), CleanStopError> {
    let work = tokio::task::spawn_blocking(move || {
        let marker = CleanStop::observe(
            &data_dir,
            concat!("mainstay-sidecar ", env!("CARGO_PKG_VERSION")),
        )?;
        marker.write(&data_dir)
    });
    work.await.unwrap_or(Ok(()))
}

//! Volumes for claims: directories of this machine, on its disk or in its memory.
//!
//! ```text
//! claims, volumes ─ watch ─► steps (pure) ─► act: directory, mount, PersistentVolume, status of the claim
//! ```
//!
//! **Deleting**: `PersistentVolume` first, bytes second. The API server deletes the object only if it is still the one that was
//! decided on, and only when no PVC has its uid. The bytes follow when the object is gone and no process has them
//! mounted. If this program is killed in between, a directory without a `PersistentVolume` is left, which the next
//! pass deletes.
//!
//! **Holds**: what should be follows from the claims and volumes alone, so a pass can be repeated. A volume on
//! disk is a plain directory. One in memory has the size it was asked for: it can be full, and it grows.

mod act;
mod decide;
mod mounts;
mod size;

use std::convert::Infallible;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client};

pub use act::VolumeStepError;
pub use decide::{DISK_CLASS, MEMORY_CLASS, Medium, PROVISIONER, VolumeStep, plan_steps};
pub use size::parse_bytes;

use crate::cluster::home::ClusterHome;

/// A step that failed is tried again this much later, if nothing happens before.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Why claims are not served any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProvisionError {
    /// The watch of claims and volumes ended.
    #[error("the watch of claims ended")]
    Watch,
}

/// Serves claims until something fails.
pub(super) async fn run_provisioner(client: Client, home: ClusterHome) -> Result<Infallible, ProvisionError> {
    let (claims, claim_writer) = reflector::store::<PersistentVolumeClaim>();
    let (volumes, volume_writer) = reflector::store::<PersistentVolume>();
    let config = watcher::Config::default;
    let watch_claims = watcher(Api::<PersistentVolumeClaim>::all(client.clone()), config())
        .default_backoff()
        .reflect(claim_writer)
        .map(|_| ());
    let watch_volumes = watcher(Api::<PersistentVolume>::all(client.clone()), config())
        .default_backoff()
        .reflect(volume_writer)
        .map(|_| ());
    let mut changes = futures::stream::select(watch_claims, watch_volumes).boxed();
    loop {
        // Whether something changed or time went by is all the same.
        if let Ok(None) = tokio::time::timeout(RETRY_INTERVAL, changes.next()).await {
            return Err(ProvisionError::Watch);
        }
        let directories = act::list_directories(&home);
        for step in plan_steps(&claims.state(), &volumes.state(), &directories) {
            if let Err(error) = act::apply_step(&client, &home, &step).await {
                eprintln!("volumes: {:#}", anyhow::Error::from(error));
            }
        }
    }
}

//! Provisions volumes for PVCs: directories of this machine, on disk or in memory.
//!
//! ```text
//! PVCs, volumes ─ watch ─► steps (pure) ─► act: directory, mount, PersistentVolume, status of the PVC
//! ```
//!
//! **Deleting**: first the `PersistentVolume`, then its data. The object is deleted only if it is unchanged since the decision
//! and no PVC has its uid. The data is deleted when the object is gone and no process has it mounted. If this program is
//! killed in between, a directory without a `PersistentVolume` is left, which the next reconcile deletes.
//!
//! **Invariants**: the desired state follows from PVCs and volumes alone, so a reconcile can be repeated. A volume on
//! disk is a plain directory. A volume in memory has exactly the requested size: it can become full and be expanded.

mod apply;
mod mounts;
mod plan;
mod quantity;

use std::convert::Infallible;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client};

pub use apply::VolumeStepError;
pub use plan::{DISK_CLASS, MEMORY_CLASS, Medium, PROVISIONER, VolumeStep, plan_steps};
pub use quantity::parse_bytes;

use crate::cluster::home::ClusterHome;

/// Interval after which failed steps are retried if nothing changes.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Why the provisioner stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProvisionError {
    /// The watch of PVCs and PersistentVolumes ended.
    #[error("watch of PVCs and PersistentVolumes ended")]
    Watch,
}

/// Provisions volumes until a failure.
pub(super) async fn run_provisioner(
    client: Client,
    home: ClusterHome,
) -> Result<Infallible, ProvisionError> {
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
        // A change and the retry interval have the same effect.
        if let Ok(None) = tokio::time::timeout(RETRY_INTERVAL, changes.next()).await {
            return Err(ProvisionError::Watch);
        }
        let directories = apply::list_directories(&home);
        for step in plan_steps(&claims.state(), &volumes.state(), &directories) {
            if let Err(error) = apply::apply_step(&client, &home, &step).await {
                eprintln!("volumes: {:#}", anyhow::Error::from(error));
            }
        }
    }
}

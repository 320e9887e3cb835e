//! Executes one step of the volume provisioner.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;

use super::mounts;
use super::plan::{
    Medium, PROVISIONED_BY, PROVISIONER, VolumeStep, is_orphaned, is_unused_directory, volume_name,
};
use super::quantity::parse_bytes;
use crate::cluster::home::ClusterHome;
use crate::cluster::run::{RunError, run};

/// Containers run with any user ID, so every user may write to a volume.
const WORLD_WRITABLE: u32 = 0o777;

/// Why a step failed. Failed steps are retried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeStepError {
    /// The directory of a volume could not be created or removed.
    #[error("failed to prepare volume directory {}", path.display())]
    Directory {
        /// Affected path.
        path: PathBuf,
        /// Underlying error.
        source: io::Error,
    },
    /// A tmpfs could not be mounted, resized or unmounted.
    #[error("failed to mount, resize or unmount {}", path.display())]
    Mount {
        /// Affected path.
        path: PathBuf,
        /// Underlying error.
        source: RunError,
    },
    /// PVCs or PersistentVolumes could not be listed, so it is unknown whether a volume is in use.
    #[error("failed to list PVCs and PersistentVolumes before deleting {volume}")]
    List {
        /// Name of the volume.
        volume: String,
        /// Underlying error.
        source: Box<kube::Error>,
    },
    /// The API server rejected a write.
    #[error("failed to write {what}")]
    Write {
        /// The object.
        what: String,
        /// Underlying error.
        source: Box<kube::Error>,
    },
    /// The PVC lacks a field that a volume needs.
    #[error("cannot provision a volume for {what}")]
    InvalidPvc {
        /// The PVC, as far as it is known.
        what: String,
    },
}

/// Executes a step. Idempotent.
pub(super) async fn apply_step(
    client: &Client,
    home: &ClusterHome,
    step: &VolumeStep,
) -> Result<(), VolumeStepError> {
    let directory = |volume: &str| home.volumes_dir().join(volume);
    let volumes = Api::<PersistentVolume>::all(client.clone());
    match step {
        VolumeStep::CreateVolume { pvc, medium, size } => {
            create_volume(&volumes, home, (pvc, *medium, size)).await
        }
        VolumeStep::ExpandVolume {
            volume,
            medium,
            size,
        } => {
            if *medium == Medium::Memory {
                mount_tmpfs(&directory(volume), size, Some("remount")).await?;
            }
            let change = Patch::Merge(json!({"spec": {"capacity": {"storage": size}}}));
            let patched = volumes
                .patch(volume, &PatchParams::default(), &change)
                .await;
            patched.map_err(write_error(volume))?;
            Ok(())
        }
        VolumeStep::ReportCapacity {
            namespace,
            pvc,
            size,
        } => {
            let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
            let change = Patch::Merge(json!({"status": {"capacity": {"storage": size}}}));
            let patched = claims
                .patch_status(pvc, &PatchParams::default(), &change)
                .await;
            patched.map_err(write_error(pvc))?;
            Ok(())
        }
        VolumeStep::DeleteVolume { volume } => delete_volume(client, volume).await,
        VolumeStep::DeleteBytes { volume } => delete_bytes(client, home, volume).await,
    }
}

/// Names of the volume directories; empty if they cannot be listed.
pub(super) fn list_directories(home: &ClusterHome) -> BTreeSet<String> {
    let entries = fs::read_dir(home.volumes_dir()).into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

/// Deletes a `PersistentVolume` if no PVC has its uid. Reads from the API server, because watched objects may be stale.
async fn delete_volume(client: &Client, name: &str) -> Result<(), VolumeStepError> {
    let volumes = Api::<PersistentVolume>::all(client.clone());
    let Some(volume) = volumes.get_opt(name).await.map_err(list_error(name))? else {
        return Ok(());
    };
    // Listed after the volume was read: a PVC that is not in this list has been deleted, and no uid comes back.
    if !is_orphaned(&volume, &list_pvcs(client, name).await?) {
        return Ok(());
    }
    let only_this_one = Preconditions {
        uid: volume.metadata.uid,
        resource_version: volume.metadata.resource_version,
    };
    let params = DeleteParams::default().preconditions(only_this_one);
    match volumes.delete(name, &params).await {
        // Deleted or changed meanwhile: the next reconcile decides again.
        Err(error) if has_status_code(&error, 404) || has_status_code(&error, 409) => Ok(()),
        deleted => deleted.map(|_| ()).map_err(write_error(name)),
    }
}

/// Deletes the data of a deleted `PersistentVolume`. The processes of a force-deleted pod may still run although its
/// object is gone, so mounts of running processes are checked.
async fn delete_bytes(
    client: &Client,
    home: &ClusterHome,
    name: &str,
) -> Result<(), VolumeStepError> {
    let volumes = Api::<PersistentVolume>::all(client.clone());
    let found = volumes.get_opt(name).await.map_err(list_error(name))?;
    let found: Vec<PersistentVolume> = found.into_iter().collect();
    if !is_unused_directory(name, &list_pvcs(client, name).await?, &found) {
        return Ok(());
    }
    let directory = home.volumes_dir().join(name);
    if mounts::is_mounted_elsewhere(&directory) {
        return Ok(()); // retried at the next change or after the retry interval
    }
    remove_directory(&directory).await
}

/// All PVCs, read from the API server.
async fn list_pvcs(
    client: &Client,
    volume: &str,
) -> Result<Vec<PersistentVolumeClaim>, VolumeStepError> {
    let all = Api::<PersistentVolumeClaim>::all(client.clone());
    let all = all.list(&ListParams::default()).await;
    Ok(all.map_err(list_error(volume))?.items)
}

fn list_error(volume: &str) -> impl FnOnce(kube::Error) -> VolumeStepError {
    let volume = volume.to_owned();
    move |source| VolumeStepError::List {
        volume,
        source: Box::new(source),
    }
}

fn write_error(what: &str) -> impl FnOnce(kube::Error) -> VolumeStepError {
    let what = what.to_owned();
    move |source| VolumeStepError::Write {
        what,
        source: Box::new(source),
    }
}

fn has_status_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

async fn create_volume(
    volumes: &Api<PersistentVolume>,
    home: &ClusterHome,
    (claim, medium, size): (&PersistentVolumeClaim, Medium, &Quantity),
) -> Result<(), VolumeStepError> {
    let unknown = || VolumeStepError::InvalidPvc {
        what: claim.metadata.name.clone().unwrap_or_default(),
    };
    let name = volume_name(claim).ok_or_else(unknown)?;
    let directory = home.volumes_dir().join(&name);
    let failed = |source| VolumeStepError::Directory {
        path: directory.clone(),
        source,
    };
    fs::create_dir_all(&directory).map_err(failed)?;
    if medium == Medium::Memory && !is_mounted(&directory) {
        mount_tmpfs(&directory, size, None).await?;
    }
    fs::set_permissions(&directory, Permissions::from_mode(WORLD_WRITABLE)).map_err(failed)?;
    let volume = volume_manifest(claim, &directory, medium, size);
    let volume = serde_json::from_value(volume).map_err(|_| unknown())?;
    match volumes.create(&PostParams::default(), &volume).await {
        Err(error) if has_status_code(&error, 409) => Ok(()),
        created => created.map(|_| ()).map_err(write_error(&name)),
    }
}

/// The `PersistentVolume`, already bound to its PVC.
fn volume_manifest(
    claim: &PersistentVolumeClaim,
    directory: &Path,
    medium: Medium,
    size: &Quantity,
) -> serde_json::Value {
    json!({
        "metadata": {"name": volume_name(claim), "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": claim.spec.as_ref().map(|spec| &spec.access_modes),
            "hostPath": {"path": directory, "type": "Directory"},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": medium.class(),
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.metadata.namespace,
                "name": claim.metadata.name,
                "uid": claim.metadata.uid,
            },
        },
    })
}

async fn mount_tmpfs(
    directory: &Path,
    size: &Quantity,
    how: Option<&str>,
) -> Result<(), VolumeStepError> {
    let size = parse_bytes(size).ok_or_else(|| VolumeStepError::InvalidPvc {
        what: directory.display().to_string(),
    })?;
    let options = how.map_or(String::new(), |how| format!("{how},")) + &format!("size={size}");
    let arguments = ["-t", "tmpfs", "-o", &options, "mainstay"].map(AsRef::as_ref);
    let arguments: Vec<&Path> = arguments.into_iter().chain([directory]).collect();
    let mounted = run("mount", &arguments).await;
    mounted.map_err(|source| VolumeStepError::Mount {
        path: directory.to_owned(),
        source,
    })?;
    Ok(())
}

/// Unmounts and removes a volume directory, however much of it is left.
async fn remove_directory(directory: &Path) -> Result<(), VolumeStepError> {
    if is_mounted(directory) {
        let unmounted = run("umount", &[directory]).await;
        unmounted.map_err(|source| VolumeStepError::Mount {
            path: directory.to_owned(),
            source,
        })?;
    }
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|source| VolumeStepError::Directory {
            path: directory.to_owned(),
            source,
        }),
    }
}

fn is_mounted(directory: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let directory = directory.display().to_string();
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(&directory))
}

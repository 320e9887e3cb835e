//! Decides the steps for observed PVCs and PersistentVolumes. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::quantity::parse_bytes;

/// Name of the provisioner in storage classes.
pub const PROVISIONER: &str = "mainstay.local/volumes";
/// Storage class of directories on disk. The default class.
pub const DISK_CLASS: &str = "mainstay-disk";
/// Storage class of tmpfs volumes, of exactly the requested size.
pub const MEMORY_CLASS: &str = "mainstay-memory";

/// Annotation with the provisioner of a volume; Kubernetes leaves its deletion to that provisioner.
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Prefix of the name of a `PersistentVolume` and of its directory; the uid of its PVC follows.
const VOLUME_PREFIX: &str = "pvc-";

/// The medium of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// On disk.
    Disk,
    /// In memory.
    Memory,
}

impl Medium {
    /// The medium of a storage class; `None` for classes of other provisioners.
    pub fn from_class(class: Option<&str>) -> Option<Self> {
        match class {
            Some(DISK_CLASS) => Some(Self::Disk),
            Some(MEMORY_CLASS) => Some(Self::Memory),
            _ => None,
        }
    }

    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Disk => DISK_CLASS,
            Self::Memory => MEMORY_CLASS,
        }
    }
}

/// One step of the provisioner.
#[derive(Clone, Debug)]
pub enum VolumeStep {
    /// Creates the volume of a PVC.
    CreateVolume {
        /// The PVC.
        pvc: Arc<PersistentVolumeClaim>,
        /// Medium of the volume.
        medium: Medium,
        /// Requested size.
        size: Quantity,
    },
    /// Expands a volume to the size its PVC requests.
    ExpandVolume {
        /// Name of the volume.
        volume: String,
        /// Medium of the volume.
        medium: Medium,
        /// New size.
        size: Quantity,
    },
    /// Publishes the size of the volume in the status of its PVC.
    ReportCapacity {
        /// Namespace of the PVC.
        namespace: String,
        /// Name of the PVC.
        pvc: String,
        /// New size.
        size: Quantity,
    },
    /// Deletes a `PersistentVolume` that no PVC uses. Its data stays until the API server has deleted the object.
    DeleteVolume {
        /// Name of the `PersistentVolume`.
        volume: String,
    },
    /// Deletes the data of a `PersistentVolume` that the API server has deleted.
    DeleteBytes {
        /// Name of the `PersistentVolume` and of its directory.
        volume: String,
    },
}

/// All steps that are due now. `directories` are the names of the existing volume directories.
pub fn plan_steps(
    claims: &[Arc<PersistentVolumeClaim>],
    volumes: &[Arc<PersistentVolume>],
    directories: &BTreeSet<String>,
) -> Vec<VolumeStep> {
    let cleared = directories
        .iter()
        .filter(|name| {
            let (claims, volumes) = (claims.iter(), volumes.iter());
            is_unused_directory(name, claims.map(Arc::as_ref), volumes.map(Arc::as_ref))
        })
        .map(|name| VolumeStep::DeleteBytes {
            volume: name.clone(),
        });
    let volumes: BTreeMap<&str, &PersistentVolume> = volumes
        .iter()
        .filter(|volume| is_provisioned_here(volume))
        .filter_map(|volume| Some((volume.metadata.name.as_deref()?, volume.as_ref())))
        .collect();
    let served = claims
        .iter()
        .filter_map(|claim| plan_for_pvc(claim, &volumes));
    let removed = volumes.values();
    let removed = removed.filter(|volume| is_orphaned(volume, claims.iter().map(Arc::as_ref)));
    let removed = removed.filter_map(|volume| {
        Some(VolumeStep::DeleteVolume {
            volume: volume.metadata.name.clone()?,
        })
    });
    served.chain(removed).chain(cleared).collect()
}

fn is_provisioned_here(volume: &PersistentVolume) -> bool {
    let made_by = volume
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(PROVISIONED_BY));
    made_by.is_some_and(|by| by == PROVISIONER)
}

/// The name of the volume of a PVC.
pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> Option<String> {
    claim
        .metadata
        .uid
        .as_deref()
        .map(|uid| format!("{VOLUME_PREFIX}{uid}"))
}

fn plan_for_pvc(
    claim: &Arc<PersistentVolumeClaim>,
    volumes: &BTreeMap<&str, &PersistentVolume>,
) -> Option<VolumeStep> {
    let spec = claim.spec.as_ref()?;
    let medium = Medium::from_class(spec.storage_class_name.as_deref())?;
    let size = spec
        .resources
        .as_ref()?
        .requests
        .as_ref()?
        .get("storage")?
        .clone();
    if claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let Some(volume) = volumes.get(volume_name(claim)?.as_str()) else {
        // A PVC with a volume name had a volume, or is reserved for one of another provisioner.
        let is_new = spec.volume_name.as_deref().unwrap_or_default().is_empty();
        return is_new.then(|| VolumeStep::CreateVolume {
            pvc: claim.clone(),
            medium,
            size,
        });
    };
    let is_larger = |than: Option<&Quantity>| {
        than.and_then(parse_bytes)
            .zip(parse_bytes(&size))
            .is_some_and(|(than, size)| size > than)
    };
    let capacity = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.capacity.as_ref()?.get("storage"));
    if is_larger(capacity) {
        return Some(VolumeStep::ExpandVolume {
            volume: volume.metadata.name.clone()?,
            medium,
            size,
        });
    }
    let reported = claim
        .status
        .as_ref()
        .and_then(|status| status.capacity.as_ref()?.get("storage"));
    is_larger(reported).then_some(())?;
    Some(VolumeStep::ReportCapacity {
        namespace: claim.metadata.namespace.clone()?,
        pvc: claim.metadata.name.clone()?,
        size,
    })
}

/// Whether a `PersistentVolume` of this provisioner can be deleted: no PVC has the uid it was made for.
///
/// The phase alone is no evidence: the controller of volumes may set `Released` on the volume of a PVC that has just
/// replaced another one of the same name, because its cache still contains the PVC of before.
pub(super) fn is_orphaned<'a>(
    volume: &PersistentVolume,
    claims: impl IntoIterator<Item = &'a PersistentVolumeClaim>,
) -> bool {
    let phase = volume
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let uid = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref()?.uid.as_deref());
    let Some(uid) = uid else {
        return false; // its PVC is unknown
    };
    let is_claimed = claims.into_iter().any(|claim| {
        claim.metadata.uid.as_deref() == Some(uid) || volume_name(claim) == volume.metadata.name
    });
    let is_released = phase == Some("Released") && volume.metadata.deletion_timestamp.is_none();
    is_provisioned_here(volume) && is_released && !is_claimed
}

/// Whether a directory belongs to no `PersistentVolume`, and to none that a PVC is about to get.
pub(super) fn is_unused_directory<'a>(
    directory: &str,
    claims: impl IntoIterator<Item = &'a PersistentVolumeClaim>,
    volumes: impl IntoIterator<Item = &'a PersistentVolume>,
) -> bool {
    let mut names = volumes.into_iter().map(|volume| &volume.metadata.name);
    let is_volume = names.any(|name| name.as_deref() == Some(directory));
    let mut claimed = claims.into_iter().map(volume_name);
    let is_claimed = claimed.any(|name| name.as_deref() == Some(directory));
    directory.starts_with(VOLUME_PREFIX) && !is_volume && !is_claimed
}

#[cfg(test)]
mod tests;

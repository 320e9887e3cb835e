//! What has to be done for claims and volumes as they are. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::size::parse_bytes;

/// Who makes volumes, as storage classes name it.
pub const PROVISIONER: &str = "mainstay.local/volumes";
/// The class of directories on disk. The default one.
pub const DISK_CLASS: &str = "mainstay-disk";
/// The class of directories in memory, of exactly the size asked for.
pub const MEMORY_CLASS: &str = "mainstay-memory";

/// Says who made a volume; the controllers of Kubernetes leave its removal to that one.
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// How the name of a `PersistentVolume`, and of its directory, begins; the uid of its PVC follows.
const VOLUME_PREFIX: &str = "pvc-";

/// Where a volume's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// On disk.
    Disk,
    /// In memory.
    Memory,
}

impl Medium {
    /// The medium of a storage class; `None` for classes of others.
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

/// One thing to do.
#[derive(Clone, Debug)]
pub enum VolumeStep {
    /// A claim gets a volume.
    CreateVolume {
        /// The claim.
        pvc: Arc<PersistentVolumeClaim>,
        /// Where its bytes will be.
        medium: Medium,
        /// How much it asks for.
        size: Quantity,
    },
    /// A volume becomes as large as its claim asks.
    ExpandVolume {
        /// The volume's name.
        volume: String,
        /// Where its bytes are.
        medium: Medium,
        /// How large.
        size: Quantity,
    },
    /// A claim is told how large its volume is.
    ReportCapacity {
        /// The claim's namespace.
        namespace: String,
        /// The claim's name.
        pvc: String,
        /// How large.
        size: Quantity,
    },
    /// Deletes a `PersistentVolume` that no PVC uses. Its bytes stay until the API server has deleted the object.
    DeleteVolume {
        /// The `PersistentVolume`'s name.
        volume: String,
    },
    /// Deletes the bytes of a `PersistentVolume` that the API server has deleted.
    DeleteBytes {
        /// The `PersistentVolume`'s name, which its directory has too.
        volume: String,
    },
}

/// Everything there is to do now. Carrying it out changes claims and volumes, after which there is less.
/// `directories` are the names of the directories that hold the bytes of volumes.
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
    let served = claims.iter().filter_map(|claim| plan_for_pvc(claim, &volumes));
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

/// The name of the volume of a claim.
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
        // A claim that names a volume had one, or waits for one of somebody else.
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
    let told = claim
        .status
        .as_ref()
        .and_then(|status| status.capacity.as_ref()?.get("storage"));
    is_larger(told).then_some(())?;
    Some(VolumeStep::ReportCapacity {
        namespace: claim.metadata.namespace.clone()?,
        pvc: claim.metadata.name.clone()?,
        size,
    })
}

/// Whether a `PersistentVolume` of this provisioner can be deleted: no PVC has the uid it was made for.
///
/// The phase alone is no evidence. Kubernetes 1.20 sets `Released` for a moment on the volume of a PVC that has just replaced
/// another one of the same name: its controller compares the volume with the PVC of before.
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
        return false; // it is unknown whose it is
    };
    let is_claimed = claims.into_iter().any(|claim| {
        claim.metadata.uid.as_deref() == Some(uid) || volume_name(claim) == volume.metadata.name
    });
    let is_released = phase == Some("Released") && volume.metadata.deletion_timestamp.is_none();
    is_provisioned_here(volume) && is_released && !is_claimed
}

/// Whether a directory holds the bytes of no `PersistentVolume`, and of none that a PVC is about to get.
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

//! What has to be done for claims and volumes as they are. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::size::bytes;

/// Who makes volumes, as storage classes name it.
pub const PROVISIONER: &str = "mainstay.local/volumes";
/// The class of directories on disk. The default one.
pub const DISK: &str = "mainstay-disk";
/// The class of directories in memory, of exactly the size asked for.
pub const MEMORY: &str = "mainstay-memory";

/// Says who made a volume; the controllers of Kubernetes leave its removal to that one.
pub(super) const MADE_BY: &str = "pv.kubernetes.io/provisioned-by";

/// How the name of a `PersistentVolume`, and of its directory, begins; the uid of its PVC follows.
const PREFIX: &str = "pvc-";

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
    pub fn of(class: Option<&str>) -> Option<Self> {
        match class {
            Some(DISK) => Some(Self::Disk),
            Some(MEMORY) => Some(Self::Memory),
            _ => None,
        }
    }

    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Disk => DISK,
            Self::Memory => MEMORY,
        }
    }
}

/// One thing to do.
#[derive(Clone, Debug)]
pub enum Step {
    /// A claim gets a volume.
    Make {
        /// The claim.
        claim: Arc<PersistentVolumeClaim>,
        /// Where its bytes will be.
        medium: Medium,
        /// How much it asks for.
        size: Quantity,
    },
    /// A volume becomes as large as its claim asks.
    Enlarge {
        /// The volume's name.
        volume: String,
        /// Where its bytes are.
        medium: Medium,
        /// How large.
        size: Quantity,
    },
    /// A claim is told how large its volume is.
    Tell {
        /// The claim's namespace.
        namespace: String,
        /// The claim's name.
        claim: String,
        /// How large.
        size: Quantity,
    },
    /// Deletes a `PersistentVolume` that no PVC uses. Its bytes stay until the API server has deleted the object.
    Remove {
        /// The `PersistentVolume`'s name.
        volume: String,
    },
    /// Deletes the bytes of a `PersistentVolume` that the API server has deleted.
    Clear {
        /// The `PersistentVolume`'s name, which its directory has too.
        volume: String,
    },
}

/// Everything there is to do now. Carrying it out changes claims and volumes, after which there is less.
/// `directories` are the names of the directories that hold the bytes of volumes.
pub fn steps(
    claims: &[Arc<PersistentVolumeClaim>],
    volumes: &[Arc<PersistentVolume>],
    directories: &BTreeSet<String>,
) -> Vec<Step> {
    let cleared = directories
        .iter()
        .filter(|name| {
            let (claims, volumes) = (claims.iter(), volumes.iter());
            is_unused(name, claims.map(Arc::as_ref), volumes.map(Arc::as_ref))
        })
        .map(|name| Step::Clear {
            volume: name.clone(),
        });
    let volumes: BTreeMap<&str, &PersistentVolume> = volumes
        .iter()
        .filter(|volume| is_ours(volume))
        .filter_map(|volume| Some((volume.metadata.name.as_deref()?, volume.as_ref())))
        .collect();
    let served = claims.iter().filter_map(|claim| for_claim(claim, &volumes));
    let removed = volumes.values();
    let removed = removed.filter(|volume| is_left(volume, claims.iter().map(Arc::as_ref)));
    let removed = removed.filter_map(|volume| {
        Some(Step::Remove {
            volume: volume.metadata.name.clone()?,
        })
    });
    served.chain(removed).chain(cleared).collect()
}

fn is_ours(volume: &PersistentVolume) -> bool {
    let made_by = volume
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(MADE_BY));
    made_by.is_some_and(|by| by == PROVISIONER)
}

/// The name of the volume of a claim.
pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> Option<String> {
    claim
        .metadata
        .uid
        .as_deref()
        .map(|uid| format!("{PREFIX}{uid}"))
}

fn for_claim(
    claim: &Arc<PersistentVolumeClaim>,
    volumes: &BTreeMap<&str, &PersistentVolume>,
) -> Option<Step> {
    let spec = claim.spec.as_ref()?;
    let medium = Medium::of(spec.storage_class_name.as_deref())?;
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
        return is_new.then(|| Step::Make {
            claim: claim.clone(),
            medium,
            size,
        });
    };
    let is_larger = |than: Option<&Quantity>| {
        than.and_then(bytes)
            .zip(bytes(&size))
            .is_some_and(|(than, size)| size > than)
    };
    let capacity = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.capacity.as_ref()?.get("storage"));
    if is_larger(capacity) {
        return Some(Step::Enlarge {
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
    Some(Step::Tell {
        namespace: claim.metadata.namespace.clone()?,
        claim: claim.metadata.name.clone()?,
        size,
    })
}

/// Whether a `PersistentVolume` of this provisioner can be deleted: no PVC has the uid it was made for.
///
/// The phase alone is no evidence. Kubernetes 1.20 sets `Released` for a moment on the volume of a PVC that has just replaced
/// another one of the same name: its controller compares the volume with the PVC of before.
pub(super) fn is_left<'a>(
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
    is_ours(volume) && is_released && !is_claimed
}

/// Whether a directory holds the bytes of no `PersistentVolume`, and of none that a PVC is about to get.
pub(super) fn is_unused<'a>(
    directory: &str,
    claims: impl IntoIterator<Item = &'a PersistentVolumeClaim>,
    volumes: impl IntoIterator<Item = &'a PersistentVolume>,
) -> bool {
    let mut names = volumes.into_iter().map(|volume| &volume.metadata.name);
    let is_volume = names.any(|name| name.as_deref() == Some(directory));
    let mut claimed = claims.into_iter().map(volume_name);
    let is_claimed = claimed.any(|name| name.as_deref() == Some(directory));
    directory.starts_with(PREFIX) && !is_volume && !is_claimed
}

#[cfg(test)]
mod tests;

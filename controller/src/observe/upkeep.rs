//! The Jobs that look after the backup, and how much has piled up in it.

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use steward_crds::Etcd;
use steward_manifests::Names;

use super::jobs::{self, SeenJob};
use super::objects::get;
use crate::caches::Stores;

/// Where the sidecar says how many bytes of deltas there are behind the last full snapshot.
const DELTA_BYTES: &str = "steward.druid.gardener.cloud/delta-bytes";

/// What is known about the upkeep of a backup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenUpkeep {
    /// The Job that folds deltas into a full snapshot.
    pub compaction: Option<SeenJob>,
    /// The Job that rehearses a restore.
    pub drill: Option<SeenJob>,
    /// Bytes of deltas since the last full snapshot; older sidecars do not say.
    pub delta_bytes: Option<u64>,
    /// The full snapshot that was asked for in place of a compaction.
    pub fall_back: FallBack,
}

/// A full snapshot asked for in place of a compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FallBack {
    /// None, as far as this process knows.
    #[default]
    None,
    /// It is on its way.
    Running,
    /// It was taken.
    Taken,
    /// It was not.
    Failed {
        /// Why, in words.
        why: String,
    },
}

/// Looks into the stores.
pub(crate) fn seen(stores: &Stores, etcd: &Etcd) -> SeenUpkeep {
    let names = Names::of(etcd);
    let job = |name: &str| {
        let job = get(&stores.jobs, name, names.namespace)?;
        Some(jobs::seen(&job, &stores.pods))
    };
    let delta = get(
        &stores.leases,
        &names.delta_snapshot_lease(),
        names.namespace,
    );
    SeenUpkeep {
        compaction: job(&names.compaction_job()),
        drill: job(&names.drill_job()),
        delta_bytes: delta.and_then(|lease: std::sync::Arc<Lease>| {
            lease.annotations().get(DELTA_BYTES)?.parse().ok()
        }),
        fall_back: FallBack::None,
    }
}

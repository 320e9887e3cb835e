//! The desired state of one Etcd: its spec, validated, with parsed types and all defaults.

use std::collections::BTreeMap;

use crate::model::{EtcdKey, Ordinal, PeerTlsStage};
use jiff::Timestamp;
use mainstay_crds::Etcd;
use mainstay_crds::etcd::{RecoveryMode, VolumeGrowth};
use mainstay_manifests::names;

/// More members than any etcd has; a larger number is a typo.
pub(crate) const MAX_MEMBERS: u32 = 99;

/// The validated spec.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredState {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) generation: i64,
    /// 0 when `spec.replicas` is out of range; the value is then in `invalid_replicas` and refused.
    pub(crate) replicas: u32,
    /// `spec.replicas`, if it is negative or larger than the maximum.
    pub(crate) invalid_replicas: Option<i32>,
    pub(crate) member_prefix: Option<String>,
    /// Image of etcd, defaults applied.
    pub(crate) etcd_image: String,
    /// Bytes of each volume.
    pub(crate) storage_bytes: u64,
    /// Whether existing volumes are expanded when `storage_bytes` grows.
    pub(crate) volume_growth: VolumeGrowth,
    /// `None` without a store.
    pub(crate) backup: Option<DesiredBackup>,
    pub(crate) recovery: DesiredRecovery,
    /// Schedules and thresholds of compactions and restore drills.
    pub(crate) upkeep: DesiredUpkeep,
    pub(crate) peers: Peers,
    /// Whether the cluster still has to join an existing one.
    pub(crate) joins_existing_cluster: bool,
    pub(crate) has_external_members: bool,
    pub(crate) requests: Requests,
    pub(crate) deletion_timestamp: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredBackup {
    /// Cron expression of full snapshots; `None` means hourly.
    pub(crate) full_schedule: Option<String>,
    /// Seconds between two delta snapshots; `None` when they are disabled.
    pub(crate) delta_period_seconds: Option<i64>,
}

/// Whether and how lost data is recovered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DesiredRecovery {
    pub(crate) mode: RecoveryMode,
    /// ID of the recovery that the approval annotation names.
    pub(crate) approved_id: Option<String>,
}

/// Addresses under which members reach each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peers {
    pub(crate) tls: bool,
    pub(crate) port: i32,
    /// Further peer URLs, by member name including the prefix.
    pub(crate) additional_urls: BTreeMap<String, Vec<String>>,
}

/// What happens to manual changes of managed objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DriftPolicy {
    #[default]
    Revert,
    Keep,
}

/// What annotations request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    /// Reconcile the spec once.
    pub(crate) reconcile: bool,
    /// Do not apply spec changes.
    pub(crate) suspend: bool,
    pub(crate) drift_policy: DriftPolicy,
    /// Create configuration objects but no pods.
    pub(crate) is_runtime_disabled: bool,
    /// The generation that is applied without a snapshot before.
    pub(crate) skip_snapshot_generation: Option<i64>,
}

/// Backup maintenance settings of one Etcd. `None` means the controller's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DesiredUpkeep {
    pub(crate) events_threshold: Option<i64>,
    pub(crate) bytes_threshold: Option<u64>,
    pub(crate) full_snapshot_threshold: Option<i64>,
    /// Cron schedule on which deltas are compacted below the thresholds as well.
    pub(crate) compaction_schedule: Option<String>,
    /// Cron schedule of restore drills.
    pub(crate) drill_schedule: Option<String>,
    /// Creation time of the Etcd; schedules count from it before the first run.
    pub(crate) schedules_since: Option<Timestamp>,
}

impl DesiredState {
    pub(crate) fn key(&self) -> EtcdKey {
        EtcdKey {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    /// The drift policy of this reconcile. A new generation or a requested reconcile reverts manual changes once.
    pub(crate) fn drift_policy(&self, observed_generation: Option<i64>) -> DriftPolicy {
        let is_acted_on = observed_generation == Some(self.generation);
        if is_acted_on && !self.requests.reconcile {
            self.requests.drift_policy
        } else {
            DriftPolicy::Revert
        }
    }

    pub(crate) fn pod_name(&self, ordinal: Ordinal) -> String {
        names::pod_name(&self.name, ordinal.0)
    }

    /// DNS name of a pod behind the headless peer Service.
    pub(crate) fn pod_host(&self, ordinal: Ordinal) -> String {
        names::pod_host(&self.name, &self.namespace, &self.pod_name(ordinal))
    }

    /// Peer URLs of a member whose pod matches the template at this TLS stage.
    pub(crate) fn peer_urls(&self, ordinal: Ordinal, stage: PeerTlsStage) -> Vec<String> {
        let scheme = if stage == PeerTlsStage::On {
            "https"
        } else {
            "http"
        };
        let own = format!("{scheme}://{}:{}", self.pod_host(ordinal), self.peers.port);
        let more = self.peers.additional_urls.get(&self.member_name(ordinal));
        std::iter::once(own)
            .chain(more.into_iter().flatten().cloned())
            .collect()
    }

    /// Name of a member and of its Lease. Unlike the pod name it includes the prefix.
    pub(crate) fn member_name(&self, ordinal: Ordinal) -> String {
        names::member_name(self.member_prefix.as_deref(), &self.name, ordinal.0)
    }
}

/// `spec.replicas`, or 0 when it is out of range.
pub(crate) fn count_members(etcd: &Etcd) -> u32 {
    let members = u32::try_from(etcd.spec.replicas).unwrap_or_default();
    if members > MAX_MEMBERS { 0 } else { members }
}

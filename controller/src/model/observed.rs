//! The observed state of one cluster as plain data.

use std::collections::BTreeMap;

use crate::model::{MemberLeaseHolder, ObservedRecovery, ObservedUpkeep, Ordinal};
use jiff::Timestamp;
use mainstay_crds::tls::TlsConfig;
use mainstay_ids::{ClusterId, MemberId};

/// Observed state of one cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observation {
    pub(crate) stateful_set: Option<ObservedStatefulSet>,
    pub(crate) pods: BTreeMap<Ordinal, ObservedPod>,
    /// PVCs, including those of deleted pods.
    pub(crate) pvcs: BTreeMap<Ordinal, ObservedPvc>,
    pub(crate) leases: BTreeMap<Ordinal, ObservedMemberLease>,
    /// Lease of the newest full snapshot.
    pub(crate) full_snapshot: Option<SnapshotLease>,
    /// Lease of the newest delta snapshot.
    pub(crate) delta_snapshot: Option<SnapshotLease>,
    pub(crate) membership: ObservedMembership,
    /// The last snapshot this process requested before a disruptive change.
    pub(crate) snapshot_request: SnapshotRequest,
    /// Error of the API server when the PVCs could not be expanded.
    pub(crate) expansion_refusal: Option<String>,
    pub(crate) recovery: ObservedRecovery,
    pub(crate) upkeep: ObservedUpkeep,
}

impl Observation {
    /// Events since the last full snapshot; `None` while a snapshot Lease has no revision.
    pub(crate) fn count_events_since_full(&self) -> Option<i64> {
        let full = self.full_snapshot.as_ref()?.revision?;
        let delta = self.delta_snapshot.as_ref()?.revision?;
        Some(delta.saturating_sub(full).max(0))
    }
}

/// Observed StatefulSet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObservedStatefulSet {
    pub(crate) uid: String,
    /// Precondition of the next write.
    pub(crate) resource_version: String,
    pub(crate) is_deleting: bool,
    /// Whether the StatefulSet controller has observed the newest generation.
    pub(crate) is_observed: bool,
    pub(crate) replicas: u32,
    pub(crate) update_strategy: UpdateStrategy,
    /// Whether this controller has applied it; otherwise etcd-druid created it.
    pub(crate) is_ours: bool,
    /// Controller revision that new pods get.
    pub(crate) update_revision: Option<String>,
    /// etcd image in the pod template.
    pub(crate) etcd_image: Option<String>,
    /// Storage request of the volume claim template, in bytes.
    pub(crate) storage_bytes: Option<u64>,
    /// Stage in the pod template.
    pub(crate) peer_tls_stage: PeerTlsStage,
    /// Number of members when the cluster last ran; `None` before bootstrap.
    pub(crate) recorded_size: Option<u32>,
    pub(crate) counts: ReplicaCounts,
}

/// Stage of switching peer TLS. A running cluster passes through all three stages in both directions, so that every member
/// can connect to every other one at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PeerTlsStage {
    /// Members listen without TLS and have no certificates.
    #[default]
    Off,
    /// Members listen without TLS and have certificates, so that they can connect to members that listen with TLS.
    Prepared,
    /// Members listen with TLS.
    On,
}

impl PeerTlsStage {
    /// Value of the annotation on the StatefulSet.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Prepared => "prepared",
            Self::On => "on",
        }
    }

    /// Parses the annotation; `None` for an unknown value.
    pub(crate) fn parse(value: &str) -> Option<Self> {
        let all = [Self::Off, Self::Prepared, Self::On];
        all.into_iter().find(|stage| stage.as_str() == value)
    }
}

/// Pod counts from the status of the StatefulSet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplicaCounts {
    pub(crate) current: i32,
    pub(crate) ready: i32,
}

/// Update strategy of the StatefulSet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UpdateStrategy {
    /// Pods are replaced when they are deleted; set by this controller.
    #[default]
    OnDelete,
    /// The StatefulSet controller replaces pods without regard to quorum; set by etcd-druid.
    RollingUpdate,
}

/// Observed pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObservedPod {
    pub(crate) uid: String,
    /// Controller revision of the template it was created from.
    pub(crate) revision: Option<String>,
    pub(crate) is_ready: bool,
    /// Condition `ContainersReady`, which ignores readiness gates.
    pub(crate) has_ready_containers: bool,
    pub(crate) is_deleting: bool,
    pub(crate) created_at: Option<Timestamp>,
    /// Pod IP.
    pub(crate) address: Option<String>,
    pub(crate) etcd_image: Option<String>,
    /// Result of the init container's check of the data directory; `None` before it has finished.
    pub(crate) finding: Option<InitFinding>,
    /// Message of that check, when etcd cannot start.
    pub(crate) init_message: Option<String>,
    /// Newest revision that the check found in the data directory.
    pub(crate) data_revision: Option<i64>,
    /// Restarts of etcd while it is in CrashLoopBackOff; 0 otherwise.
    pub(crate) crash_count: u32,
    /// Pods of one cluster have different listeners while TLS is switched.
    pub(crate) listeners: PodListeners,
}

/// The listeners that a pod was created with. The spec may have changed since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodListeners {
    /// Client listener of etcd; `None` without TLS.
    pub(crate) client_tls: Option<TlsConfig>,
    /// Listener of the sidecar; `None` without TLS.
    pub(crate) backup_tls: Option<TlsConfig>,
    /// Client port of etcd; `None` when the pod does not name it.
    pub(crate) client_port: Option<u16>,
    /// Port of the sidecar; `None` when the pod does not name it.
    pub(crate) backup_port: Option<u16>,
}

/// Result of the init container's check of the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum InitFinding {
    /// The data is valid, or the member bootstraps the cluster: etcd can start.
    CanStart,
    /// No data; the member waits to be added as a learner.
    WaitingToJoin,
    /// No usable data, and no running cluster to copy it from.
    NeedsRestore,
    /// The cluster is new, and a former cluster of the same name left a backup.
    BackupExists,
    /// No data, no running cluster and no backup.
    NothingToRestore,
    /// The data is proven to be corrupt.
    Corrupt,
    /// The data belongs to a removed member or to another cluster.
    Foreign,
    /// etcd cannot start for another reason, which the message names.
    Refused,
}

impl InitFinding {
    /// Whether the data on the volume is proven to be unusable for this cluster.
    pub(crate) fn is_volume_unusable(self) -> bool {
        matches!(self, Self::Corrupt | Self::Foreign)
    }

    /// Whether the member has lost its data.
    pub(crate) fn is_data_loss(self) -> bool {
        matches!(
            self,
            Self::WaitingToJoin | Self::NeedsRestore | Self::Corrupt | Self::Foreign
        )
    }
}

/// Observed PVC.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObservedPvc {
    pub(crate) uid: String,
    pub(crate) is_deleting: bool,
    pub(crate) is_bound: bool,
    /// Phase `Lost`: its PV no longer exists.
    pub(crate) is_lost: bool,
    pub(crate) requested_bytes: Option<u64>,
    pub(crate) capacity_bytes: Option<u64>,
    /// Message of the condition `ControllerResizeError` or `NodeResizeError`.
    pub(crate) resize_error: Option<String>,
}

/// Observed Lease of a member.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObservedMemberLease {
    /// `None` before the member has renewed the Lease once, or when the holder cannot be parsed.
    pub(crate) holder: Option<MemberLeaseHolder>,
    pub(crate) renewed_at: Option<Timestamp>,
    /// Whether the member has peer TLS; `None` when the sidecar does not report it.
    pub(crate) peer_tls: Option<bool>,
}

/// Observed Lease of the full or delta snapshots.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SnapshotLease {
    pub(crate) created_at: Option<Timestamp>,
    /// Time of the newest snapshot.
    pub(crate) renewed_at: Option<Timestamp>,
    /// Last revision in the newest snapshot.
    pub(crate) revision: Option<i64>,
}

/// Membership as etcd reports it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum ObservedMembership {
    /// etcd was not queried, because no change is pending.
    #[default]
    NotQueried,
    /// No member answered with quorum.
    NoQuorum {
        reason: String,
        /// Members that answer without quorum, with their newest revision.
        reachable: BTreeMap<Ordinal, i64>,
    },
    /// Confirmed by a quorum.
    Known(QuorumMembers),
}

/// The members confirmed by a quorum.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QuorumMembers {
    pub(crate) cluster_id: ClusterId,
    pub(crate) list: Vec<ObservedEtcdMember>,
}

/// Observed etcd member.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObservedEtcdMember {
    pub(crate) id: MemberId,
    /// Empty until the member has started once.
    pub(crate) name: String,
    /// Ordinal of its pod; `None` for a member that is no pod of this Etcd.
    pub(crate) ordinal: Option<Ordinal>,
    pub(crate) peer_urls: Vec<String>,
    pub(crate) is_learner: bool,
    /// `None` when the member does not answer.
    pub(crate) status: Option<EndpointStatus>,
}

impl ObservedEtcdMember {
    /// Whether it answers and follows a leader.
    pub(crate) fn is_healthy(&self) -> bool {
        self.status
            .as_ref()
            .is_some_and(|status| status.leader.is_some())
    }

    pub(crate) fn is_leader(&self) -> bool {
        let leader = self.status.as_ref().and_then(|status| status.leader);
        leader == Some(self.id)
    }
}

/// Response of a member to a status request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EndpointStatus {
    /// `None` while the member has no leader.
    pub(crate) leader: Option<MemberId>,
    pub(crate) cluster_id: ClusterId,
    /// etcd version.
    pub(crate) version: String,
    /// Newest revision of the member.
    pub(crate) revision: i64,
    /// Size of the database file.
    pub(crate) db_bytes: i64,
    /// Part of the database file in use.
    pub(crate) db_bytes_in_use: i64,
}

/// A snapshot that this process requested from a sidecar before a disruptive change.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum SnapshotRequest {
    /// None requested since this process started.
    #[default]
    None,
    Running,
    /// Taken; the Lease may not show it yet.
    Taken {
        at: Timestamp,
    },
    Failed {
        reason: String,
        /// Earliest time of the next request.
        retry_at: Timestamp,
    },
}

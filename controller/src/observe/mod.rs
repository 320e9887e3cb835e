//! What is there: one plain picture of one cluster, without an opinion.
//!
//! ```text
//! stores of the watches ─► objects ─┐
//! member Leases ───────────────────┼─► Observation ─► decide, status
//! etcd itself, when something moves ─► members ─┘
//! ```
//!
//! **Holds**: a member that does not answer is data here, not an error. Nothing in this module chooses.

mod authorities;
pub(crate) mod dial;
pub(crate) mod jobs;
mod last_words;
mod leases;
mod local_store;
mod members;
pub(crate) mod objects;
pub(crate) mod progress;
pub(crate) mod recovery;
pub(crate) mod upkeep;
mod verdict;

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use mainstay_crds::tls::TlsConfig;
use mainstay_ids::{ClusterId, MemberId};

pub use authorities::{CaFingerprint, observe_ca};
pub use dial::{DialError, Dialer, EtcdEndpoint};
pub use jobs::{FailureClass, JobFailure, JobState, ObservedJob};
pub use leases::MemberLeaseHolder;
pub use local_store::read_local_store_root;
pub use members::{MemberTarget, query_members, list_targets};
pub use objects::{Objects, confirm_pvcs, confirm_missing_pvcs, observe_objects};
pub use progress::{LogRead, RestoreProgress};
pub use recovery::{ObservedLock, ObservedRecovery};
pub use upkeep::{FallbackSnapshot, DeltaBacklog, ObservedPin, ObservedUpkeep};

/// Which pod of the StatefulSet: the number behind its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ordinal(pub u32);

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Everything seen of one cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// The StatefulSet.
    pub stateful_set: Option<ObservedStatefulSet>,
    /// Its pods.
    pub pods: BTreeMap<Ordinal, ObservedPod>,
    /// The claims of its volumes, also of pods that are gone.
    pub pvcs: BTreeMap<Ordinal, ObservedPvc>,
    /// The Leases of the members.
    pub leases: BTreeMap<Ordinal, ObservedMemberLease>,
    /// The Lease of the newest full snapshot.
    pub full_snapshot: Option<SnapshotLease>,
    /// The Lease of the newest delta snapshot.
    pub delta_snapshot: Option<SnapshotLease>,
    /// What etcd says about itself.
    pub membership: ObservedMembership,
    /// The snapshot this process asked for last.
    pub snapshot_request: SnapshotRequest,
    /// Why volumes cannot be expanded, once that was tried.
    pub expansion_refusal: Option<String>,
    /// What is written down about lost data.
    pub recovery: ObservedRecovery,
    /// What is known about the upkeep of the backup.
    pub upkeep: ObservedUpkeep,
}

/// A StatefulSet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedStatefulSet {
    /// Identity of the object.
    pub uid: String,
    /// Version of the object: what a write is based on.
    pub resource_version: String,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// Whether its controller has seen its newest form.
    pub is_observed: bool,
    /// How many pods it asks for.
    pub replicas: u32,
    /// How pods are replaced.
    pub update_strategy: UpdateStrategy,
    /// Whether this controller has applied it; else it is as etcd-druid made it.
    pub is_ours: bool,
    /// The revision new pods get.
    pub update_revision: Option<String>,
    /// Image of etcd in its template.
    pub etcd_image: Option<String>,
    /// Bytes its claim template asks for.
    pub storage_bytes: Option<u64>,
    /// How far encryption between members is in its template.
    pub peer_tls_stage: PeerTlsStage,
    /// How many members the cluster had when it last ran, as this controller noted it.
    pub recorded_size: Option<u32>,
    /// Pods its controller counts.
    pub counts: ReplicaCounts,
}

/// How far encryption between members is. A running cluster goes through all three, in both directions, so that
/// every member can dial every other at every moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerTlsStage {
    /// Members talk plain and have no certificates.
    #[default]
    Off,
    /// Members talk plain and have certificates, so that they can dial those that do not.
    Prepared,
    /// Members listen encrypted.
    On,
}

impl PeerTlsStage {
    /// One word, as it is noted on a StatefulSet.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Prepared => "prepared",
            Self::On => "on",
        }
    }

    /// Reads that word.
    pub fn parse(word: &str) -> Option<Self> {
        let all = [Self::Off, Self::Prepared, Self::On];
        all.into_iter().find(|stage| stage.as_str() == word)
    }
}

/// Pods a StatefulSet's controller counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounts {
    /// That exist.
    pub current: i32,
    /// Of these, ready.
    pub ready: i32,
}

/// How a StatefulSet replaces pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateStrategy {
    /// When somebody deletes them: ours.
    #[default]
    OnDelete,
    /// By itself, blind to quorum: etcd-druid's.
    RollingUpdate,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedPod {
    /// Identity of the object.
    pub uid: String,
    /// Revision of the template it was made from.
    pub revision: Option<String>,
    /// Whether it is ready.
    pub is_ready: bool,
    /// Whether all its containers are ready.
    pub has_ready_containers: bool,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// Since when it exists.
    pub created_at: Option<Timestamp>,
    /// Its address.
    pub address: Option<String>,
    /// Image of etcd in it.
    pub etcd_image: Option<String>,
    /// What its init container concluded about the data directory.
    pub finding: Option<InitFinding>,
    /// The same in words, when etcd may not start.
    pub init_message: Option<String>,
    /// The newest revision it found in the data directory.
    pub data_revision: Option<i64>,
    /// How often etcd has ended, while it does nothing else; 0 when it runs.
    pub crash_count: u32,
    /// How it is spoken to: pods of one cluster differ while TLS is switched.
    pub listeners: PodListeners,
}

/// The listeners of a pod: those it was made with, whatever the spec says since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodListeners {
    /// etcd, to clients; plain when absent.
    pub client_tls: Option<TlsConfig>,
    /// The sidecar; plain when absent.
    pub backup_tls: Option<TlsConfig>,
    /// Where etcd listens to clients, if the pod says.
    pub client_port: Option<u16>,
    /// Where the sidecar listens, if the pod says.
    pub backup_port: Option<u16>,
}

/// What an init container concluded, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InitFinding {
    /// The data is good, or the member founds the cluster: etcd may start.
    CanStart,
    /// There is no data, and the member waits to be added as a learner.
    WaitingToJoin,
    /// There is no usable data, and no cluster that runs to take it from.
    NeedsRestore,
    /// There is no cluster yet, and a former one of its name has left a backup.
    BackupExists,
    /// There is no data, no cluster to take it from, and no backup.
    NothingToRestore,
    /// The data is damaged; the verdict proves it.
    Corrupt,
    /// The data is of a member that was removed, or of another cluster.
    Foreign,
    /// Something else keeps it; the words are in the verdict.
    Refused,
}

impl InitFinding {
    /// Whether the volume is proven to be of no more use to this cluster.
    pub fn is_volume_unusable(self) -> bool {
        matches!(self, Self::Corrupt | Self::Foreign)
    }

    /// Whether the member has lost its data.
    pub fn is_data_loss(self) -> bool {
        matches!(
            self,
            Self::WaitingToJoin | Self::NeedsRestore | Self::Corrupt | Self::Foreign
        )
    }
}

/// A claim of a volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedPvc {
    /// Identity of the object.
    pub uid: String,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// Whether it has a volume.
    pub is_bound: bool,
    /// Whether its volume is gone for good.
    pub is_lost: bool,
    /// Bytes it asks for.
    pub requested_bytes: Option<u64>,
    /// Bytes it has.
    pub capacity_bytes: Option<u64>,
    /// What its controller complains about.
    pub resize_error: Option<String>,
}

/// A member's Lease.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedMemberLease {
    /// Who the member says it is; `None` while it never said, or says something unreadable.
    pub holder: Option<MemberLeaseHolder>,
    /// Its last sign of life.
    pub renewed_at: Option<Timestamp>,
    /// Whether its peers talk TLS to it, as far as it says.
    pub peer_tls: Option<bool>,
}

/// A Lease that tells how far snapshots are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnapshotLease {
    /// When it was made.
    pub created_at: Option<Timestamp>,
    /// When a snapshot was last taken.
    pub renewed_at: Option<Timestamp>,
    /// The revision that snapshot holds.
    pub revision: Option<i64>,
}

/// What etcd says about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ObservedMembership {
    /// It was not asked: nothing moves.
    #[default]
    NotQueried,
    /// Nobody answered with a quorum behind it.
    NoQuorum {
        /// Why, in words.
        reason: String,
        /// Members that answer by themselves nevertheless, and the revision each has.
        reachable: BTreeMap<Ordinal, i64>,
    },
    /// A quorum agrees on this.
    Known(QuorumMembers),
}

/// The members a quorum agrees on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuorumMembers {
    /// Identity of the cluster.
    pub cluster_id: ClusterId,
    /// All of them.
    pub list: Vec<ObservedEtcdMember>,
}

/// One member.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedEtcdMember {
    /// Its identity.
    pub id: MemberId,
    /// Its name; empty until it has started once.
    pub name: String,
    /// Which of our pods it is; `None` for members of a cluster that was joined.
    pub ordinal: Option<Ordinal>,
    /// Where its peers find it.
    pub peer_urls: Vec<String>,
    /// Whether it has no vote yet.
    pub is_learner: bool,
    /// What it said of itself; `None` when it does not answer.
    pub status: Option<EndpointStatus>,
}

impl ObservedEtcdMember {
    /// Whether it answers and follows a leader.
    pub fn is_healthy(&self) -> bool {
        self.status
            .as_ref()
            .is_some_and(|answer| answer.leader.is_some())
    }

    /// Whether it leads.
    pub fn is_leader(&self) -> bool {
        let led_by = self.status.as_ref().and_then(|answer| answer.leader);
        led_by == Some(self.id)
    }
}

/// What a member says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndpointStatus {
    /// Whom it follows.
    pub leader: Option<MemberId>,
    /// The cluster it believes to be in.
    pub cluster_id: ClusterId,
    /// Its version.
    pub version: String,
    /// The newest revision it has.
    pub revision: i64,
    /// Bytes of its database file.
    pub db_bytes: i64,
    /// Bytes of it in use.
    pub db_bytes_in_use: i64,
}

/// A snapshot this process asked a sidecar for.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum SnapshotRequest {
    /// None, as far as this process knows.
    #[default]
    None,
    /// It is on its way.
    Running,
    /// It was taken; its Lease may not tell yet.
    Taken {
        /// When.
        at: Timestamp,
    },
    /// It failed; another is due at the given time.
    Failed {
        /// Why, in words.
        reason: String,
        /// When the next one may be asked for.
        retry_at: Timestamp,
    },
}

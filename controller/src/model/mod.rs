//! The nouns that the stages share: desired and observed state, the plan with its steps, annotation keys.
//!
//! ```text
//! validate ─► DesiredState ─┐
//! observe ──► Observation ──┼─► World ─► decide ─► ReconcilePlan ─► act, status
//! status ───► LastKnown ────┘
//! ```
//!
//! Plain data and pure queries of it. Invariant: no stage is imported here, so that the stages meet only in these types.

pub(crate) mod annotations;
mod desired;
mod identity;
mod job;
mod lease;
mod observed;
mod plan;
mod progress;
mod recovery;
mod upkeep;
mod world;

pub(crate) use desired::{
    DesiredBackup, DesiredRecovery, DesiredState, DesiredUpkeep, DriftPolicy, MAX_MEMBERS, Peers,
    Requests, count_members,
};
pub(crate) use identity::{EtcdKey, Ordinal};
pub(crate) use job::{FailureClass, JobFailure, JobState, ObservedJob};
pub(crate) use lease::MemberLeaseHolder;
pub(crate) use observed::{
    EndpointStatus, InitFinding, Observation, ObservedEtcdMember, ObservedMemberLease,
    ObservedMembership, ObservedPod, ObservedPvc, ObservedStatefulSet, PeerTlsStage, PodListeners,
    QuorumMembers, ReplicaCounts, SnapshotLease, SnapshotRequest, UpdateStrategy,
};
pub(crate) use plan::{
    Blocker, BootstrapPhase, DisruptiveChange, EffectiveSpec, HeldFields, MemberRemovalReason,
    PodDeletionReason, PvcDeletionReason, ReconcilePlan, ReconcileStep, Runtime, SpecRefusal,
    UpgradeRule,
};
pub(crate) use progress::{LogRead, RestoreProgress};
pub(crate) use recovery::{
    ObservedLock, ObservedRecovery, RecoveryBlocker, RecoveryJobKind, RecoveryStep,
};
pub(crate) use upkeep::{
    DeltaBacklog, FULL_SNAPSHOT_FAILED, FULL_SNAPSHOT_TAKEN, FallbackSnapshot, NOT_CHECKED,
    ObservedPin, ObservedUpkeep, PIN_RENEWAL, PinOwner, ReportedOutcome, ReportedUpkeep,
    UpkeepAction, UpkeepPolicy, format_job_marker,
};
pub(crate) use world::{LastKnown, ReconcilePolicy, Thresholds, World, quorum};

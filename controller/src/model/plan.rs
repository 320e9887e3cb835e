//! The plan of one reconcile as plain values. Planning has no side effects; `act` carries the plan out.
//!
//! A plan holds objects that are always safe to apply and at most one step that does more.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_ids::MemberId;

use crate::intervals;
use crate::model::{Ordinal, PeerTlsStage, RecoveryBlocker, RecoveryStep};

/// The result of one decision.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReconcilePlan {
    /// State to apply to the managed objects; `None` leaves the objects unchanged.
    pub(crate) effective_spec: Option<EffectiveSpec>,
    /// The single action besides applying objects, or what blocks the next one.
    pub(crate) step: Option<ReconcileStep>,
    /// Spec fields that are not applied, with the reason.
    pub(crate) refusals: Vec<SpecRefusal>,
    /// Time until the next reconcile when no event arrives earlier.
    pub(crate) requeue_after: Duration,
}

impl ReconcilePlan {
    /// The same plan with its step replaced by a wait: executing the step started work that must finish first.
    #[must_use]
    pub(crate) fn into_waiting(self, blocker: Blocker) -> Self {
        Self {
            step: Some(ReconcileStep::Wait { blocker }),
            requeue_after: intervals::AFTER_STEP,
            ..self
        }
    }

    /// Whether the observed state equals the desired state: no step, no wait, no refusal.
    pub(crate) fn is_settled(&self) -> bool {
        self.step.is_none() && self.refusals.is_empty()
    }
}

/// The state to apply now: an intermediate state on the way from the observed state to the spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EffectiveSpec {
    /// `spec.replicas` of the StatefulSet.
    pub(crate) replicas: u32,
    /// Number of members of the cluster. A hibernated cluster wakes up with this number.
    pub(crate) cluster_size: u32,
    pub(crate) phase: BootstrapPhase,
    pub(crate) peer_tls_stage: PeerTlsStage,
    pub(crate) runtime: Runtime,
    pub(crate) held_fields: HeldFields,
}

/// Which `initial-cluster-state` members start with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BootstrapPhase {
    /// No member was ever registered: all members create the cluster together (`new`).
    Bootstrapping,
    /// The cluster exists: a new pod joins it (`existing`).
    Bootstrapped,
}

/// Whether this controller runs etcd pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    On,
    /// Another system runs etcd: only the configuration and a StatefulSet without pods are created.
    Off,
}

/// Values rendered as observed instead of as in the spec, because the change is not allowed yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldFields {
    /// Holds every object. Objects of etcd-druid depend on each other, so a partial change breaks the pods.
    pub(crate) all_objects: bool,
    pub(crate) etcd_image: Option<String>,
    /// Storage request of the PVC template, in bytes.
    pub(crate) storage_bytes: Option<u64>,
}

/// An action besides applying objects. A reconcile executes at most one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ReconcileStep {
    /// Sets the update strategy of a StatefulSet made by etcd-druid to `OnDelete`.
    DisableRollingUpdate,
    /// Requests a full snapshot from the leader's sidecar and returns without waiting for it.
    Snapshot { before: DisruptiveChange },
    /// Changes the number of pods. Applying the effective spec does it.
    Scale { from: u32, to: u32 },
    /// Deletes a pod; the StatefulSet recreates it from the current template.
    DeletePod {
        ordinal: Ordinal,
        uid: String,
        reason: PodDeletionReason,
    },
    /// Deletes a PVC that is proven useless, and the pod that mounts it.
    DeletePvc {
        ordinal: Ordinal,
        uid: String,
        /// UID of the pod that mounts the PVC.
        pod_uid: Option<String>,
        reason: PvcDeletionReason,
    },
    /// Adds a member as a learner.
    AddLearner { ordinal: Ordinal },
    /// Promotes a learner to a voting member.
    Promote { member: MemberId, ordinal: Ordinal },
    /// Removes a member from the etcd cluster.
    RemoveMember {
        member: MemberId,
        ordinal: Ordinal,
        reason: MemberRemovalReason,
    },
    /// Transfers leadership.
    MoveLeader { from: MemberId, to: MemberId },
    /// Updates the peer URLs of a member in the member list.
    UpdatePeerUrls { member: MemberId, ordinal: Ordinal },
    /// Raises the storage request of PVCs.
    ExpandPvcs { ordinals: Vec<Ordinal>, bytes: u64 },
    /// Deletes the StatefulSet with orphan propagation, so that it is recreated with a changed immutable field.
    RecreateStatefulSet { uid: String },
    /// One step of restoring lost data.
    Recover(RecoveryStep),
    /// No action; the blocker must disappear first.
    Wait { blocker: Blocker },
}

impl ReconcileStep {
    /// Label value for metrics and Events, from a closed list.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::DisableRollingUpdate => "StopRolling",
            Self::Snapshot { .. } => "Snapshot",
            Self::Scale { .. } => "Resize",
            Self::DeletePod { .. } => "DeletePod",
            Self::DeletePvc { .. } => "DiscardClaim",
            Self::AddLearner { .. } => "AddLearner",
            Self::Promote { .. } => "Promote",
            Self::RemoveMember { .. } => "RemoveMember",
            Self::MoveLeader { .. } => "MoveLeader",
            Self::UpdatePeerUrls { .. } => "UpdatePeerUrls",
            Self::ExpandPvcs { .. } => "ExpandClaims",
            Self::RecreateStatefulSet { .. } => "RecreateSet",
            Self::Recover(_) => "Recover",
            Self::Wait { .. } => "Wait",
        }
    }

    /// Every label value.
    pub(crate) const LABELS: [&'static str; 14] = [
        "StopRolling",
        "Snapshot",
        "Resize",
        "DeletePod",
        "DiscardClaim",
        "AddLearner",
        "Promote",
        "RemoveMember",
        "MoveLeader",
        "UpdatePeerUrls",
        "ExpandClaims",
        "RecreateSet",
        "Recover",
        "Wait",
    ];

    /// What the step waits for; `None` for an action.
    pub(crate) fn blocker(&self) -> Option<&Blocker> {
        match self {
            Self::Wait { blocker: on } => Some(on),
            Self::Recover(RecoveryStep::RenewLock(on)) => Some(on),
            _ => None,
        }
    }

    /// Whether the step acts rather than waits.
    pub(crate) fn is_action(&self) -> bool {
        self.blocker().is_none()
    }
}

/// A change that a full snapshot precedes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DisruptiveChange {
    /// All pods are stopped.
    Hibernation,
    /// The etcd image changes.
    Upgrade,
    /// Pods are replaced, the etcd image stays.
    Rollout,
}

/// Why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodDeletionReason {
    /// Not from the current template, and not serving: replaced first.
    OutdatedAndUnhealthy,
    /// Not from the current template.
    Outdated,
    /// The volume is lost. The StatefulSet controller creates a PVC only together with a pod.
    VolumeLost,
    /// The member was removed while the pod ran. Only a new pod runs the init check again.
    MemberRemoved,
    /// etcd crashes repeatedly. Only a new pod runs the init check again.
    CrashLooping,
}

/// Why a PVC is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PvcDeletionReason {
    /// The init check found the data directory corrupt.
    Corrupt,
    /// The data belongs to a removed member or to another cluster.
    Foreign,
    /// The PV of the PVC is lost.
    VolumeLost,
    /// Left over from a scale-in; a new pod needs the name.
    LeftByScaleIn,
}

/// Why a member is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberRemovalReason {
    /// The spec requests fewer members.
    ScaleIn,
    /// The data is lost; the member rejoins as a learner.
    DataLost,
}

/// What a reconcile waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Blocker {
    /// The StatefulSet controller has not observed the latest generation.
    StatefulSetUnobserved,
    /// A pod is absent or terminating.
    PodMissing { ordinal: Ordinal },
    /// A member on the current template is unhealthy: the template may be bad.
    UpdatedMemberUnhealthy { ordinal: Ordinal },
    /// A member is unhealthy; disrupting another one could break quorum.
    MemberUnhealthy { ordinal: Ordinal },
    /// A member without a pod of this Etcd is unhealthy.
    ForeignMemberUnhealthy { member: MemberId },
    /// A learner is catching up.
    LearnerLagging { ordinal: Ordinal },
    /// A learner without a pod of this Etcd exists. etcd allows one learner by default.
    ForeignLearner { member: MemberId },
    /// No quorum of members answers.
    NoQuorum,
    /// Removing the member would break quorum: `healthy` of `voters` remaining voters are healthy.
    QuorumAtRisk {
        ordinal: Ordinal,
        healthy: usize,
        voters: usize,
    },
    /// The requested snapshot is running.
    SnapshotRunning { before: DisruptiveChange },
    /// The requested snapshot failed, which blocks the change.
    SnapshotFailed {
        before: DisruptiveChange,
        reason: String,
        retry_at: Timestamp,
    },
    /// A PVC is terminating.
    PvcTerminating { ordinal: Ordinal },
    /// The StatefulSet is terminating.
    StatefulSetTerminating,
    /// The requested etcd version is not a valid upgrade of the one etcd-druid runs.
    AdoptionRefused,
    /// The cluster starts for the first time.
    Bootstrapping,
    /// Data is lost and the recovery is blocked.
    RecoveryBlocked(RecoveryBlocker),
}

/// A spec change that is not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpecRefusal {
    /// `spec.replicas` is out of range.
    InvalidReplicas { replicas: i32 },
    /// The requested volume size is smaller than the current one. Kubernetes cannot shrink volumes.
    VolumeShrink {
        current_bytes: u64,
        requested_bytes: u64,
    },
    /// The API server rejected the expansion of a PVC.
    VolumeExpansion { reason: String },
    /// The upgrade from the running version is not supported.
    Upgrade {
        from: String,
        to: String,
        rule: UpgradeRule,
    },
    /// Another system runs the members.
    ExternalMembers,
    /// The spec change is pending: the reconcile annotation is missing and automatic reconcile is off.
    ReconcileNotRequested { generation: i64 },
    /// An annotation suspends reconciliation.
    Suspended,
    /// A user scaled the StatefulSet to zero, and an annotation disables component protection.
    ManuallyStopped,
}

/// The version rule that a refused upgrade breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpgradeRule {
    /// etcd supports upgrades by one minor version only.
    OneMinor,
    /// 3.6 requires 3.5.26 or later first.
    MinPatchFirst,
    /// No downgrade to an older minor version.
    NoDowngrade,
    /// No change of the major version.
    SameMajor,
}

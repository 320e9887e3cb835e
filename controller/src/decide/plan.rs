//! What is to be done: values, no deeds.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_ids::MemberId;

use crate::cadence;
use crate::observe::{Ordinal, PeerTlsStage};

/// What one pass does.
#[derive(Clone, Debug, PartialEq)]
pub struct ReconcilePlan {
    /// What the objects should look like now; `None` when they are not to be touched.
    pub effective_spec: Option<EffectiveSpec>,
    /// The one thing that is more than applying objects.
    pub step: Option<ReconcileStep>,
    /// What the user asked for and does not get, with the reason.
    pub refusals: Vec<SpecRefusal>,
    /// When to look again although nothing happened.
    pub requeue_after: Duration,
}

impl ReconcilePlan {
    /// The same plan, when carrying it out began something that has to end first.
    #[must_use]
    pub fn into_waiting(self, on: Blocker) -> Self {
        Self {
            step: Some(ReconcileStep::Wait { blocker: on }),
            requeue_after: cadence::AFTER_STEP,
            ..self
        }
    }

    /// Whether the world is as it should be: nothing to do, nothing waited for, nothing refused.
    pub fn is_settled(&self) -> bool {
        self.step.is_none() && self.refusals.is_empty()
    }
}

/// What the objects look like at this moment, between what is and what the spec asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveSpec {
    /// How many pods the StatefulSet asks for.
    pub replicas: u32,
    /// How many members the cluster has, or will have when it is woken.
    pub cluster_size: u32,
    /// Whether members found a cluster or find one.
    pub phase: BootstrapPhase,
    /// How far encryption between members is.
    pub peer_tls_stage: PeerTlsStage,
    /// Whether there is anything but the configuration.
    pub runtime: Runtime,
    /// What is rendered as it is instead of as the spec says.
    pub held_fields: HeldFields,
}

/// Whether members found a cluster or find one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootstrapPhase {
    /// Nobody has ever been a member: all of them found it together.
    Bootstrapping,
    /// There is a cluster; whoever comes joins it.
    Bootstrapped,
}

/// Whether there is anything but the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// Everything is there.
    On,
    /// Somebody else runs etcd; only configuration and a StatefulSet without pods are made.
    Off,
}

/// What is rendered as it is instead of as the spec says, because the way there is not open yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldFields {
    /// All objects: those of etcd-druid fit together, and half of them would not.
    pub all_objects: bool,
    /// The image of etcd.
    pub etcd_image: Option<String>,
    /// Bytes of the claim template.
    pub storage_bytes: Option<u64>,
}

/// Something more than applying objects. Of all steps in a pass there is one at most.
#[derive(Clone, Debug, PartialEq)]
pub enum ReconcileStep {
    /// Keeps a StatefulSet made by etcd-druid from replacing pods by itself.
    DisableRollingUpdate,
    /// Asks the leader's sidecar for a full snapshot, without waiting for it here.
    Snapshot {
        /// What it is taken before.
        before: DisruptiveChange,
    },
    /// Changes the number of pods. Applying the shape does it.
    Scale {
        /// From this many.
        from: u32,
        /// To this many.
        to: u32,
    },
    /// Deletes a pod, so that it comes back as the template has it.
    DeletePod {
        /// Which.
        ordinal: Ordinal,
        /// This very one.
        uid: String,
        /// Why.
        reason: PodDeletionReason,
    },
    /// Deletes a claim that is proven useless, and the pod that uses it.
    DeletePvc {
        /// Whose.
        ordinal: Ordinal,
        /// This very one.
        uid: String,
        /// The pod that holds it, if there is one.
        pod_uid: Option<String>,
        /// Why it is useless.
        reason: PvcDeletionReason,
    },
    /// Adds a member without a vote.
    AddLearner {
        /// Whose pod waits for it.
        ordinal: Ordinal,
    },
    /// Gives a learner its vote.
    Promote {
        /// Its identity.
        member: MemberId,
        /// Which pod it is.
        ordinal: Ordinal,
    },
    /// Takes a member out of the cluster.
    RemoveMember {
        /// Its identity.
        member: MemberId,
        /// Which pod it was.
        ordinal: Ordinal,
        /// Why.
        reason: MemberRemovalReason,
    },
    /// Makes another member lead.
    MoveLeader {
        /// Who leads.
        from: MemberId,
        /// Who is to.
        to: MemberId,
    },
    /// Tells the cluster where a member is found.
    UpdatePeerUrls {
        /// Its identity.
        member: MemberId,
        /// Which pod it is.
        ordinal: Ordinal,
    },
    /// Asks for larger volumes.
    ExpandPvcs {
        /// Whose.
        ordinals: Vec<Ordinal>,
        /// How large.
        bytes: u64,
    },
    /// Deletes the StatefulSet and leaves its pods, so that it is made again with what cannot be changed.
    RecreateStatefulSet {
        /// This very one.
        uid: String,
    },
    /// Brings lost data back. What exactly is decided and done by the recovery.
    Recover(super::recovery::RecoveryStep),
    /// Nothing yet.
    Wait {
        /// For what.
        blocker: Blocker,
    },
}

impl ReconcileStep {
    /// One word of a closed list, for metrics and events.
    pub fn label(&self) -> &'static str {
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

    /// All words.
    pub const LABELS: [&'static str; 14] = [
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

    /// What is waited for.
    pub fn blocker(&self) -> Option<&Blocker> {
        match self {
            Self::Wait { blocker: on } => Some(on),
            Self::Recover(super::recovery::RecoveryStep::RenewLock(on)) => Some(on),
            _ => None,
        }
    }

    /// Whether something is done, rather than waited for.
    pub fn is_action(&self) -> bool {
        self.blocker().is_none()
    }
}

/// What a snapshot is taken before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisruptiveChange {
    /// All pods go.
    Hibernation,
    /// Another etcd comes.
    Upgrade,
    /// Pods are replaced by others of the same etcd.
    Rollout,
}

/// Why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodDeletionReason {
    /// It takes no part and is not what the template says: first to go.
    OutdatedAndUnhealthy,
    /// It is not what the template says.
    Outdated,
    /// Its volume is gone, and only a new pod gets a new one.
    VolumeLost,
    /// Its member was removed while it ran, and only a new pod checks its data again.
    MemberRemoved,
    /// etcd ends again and again, and only a new pod checks its data again.
    CrashLooping,
}

/// Why a claim is useless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PvcDeletionReason {
    /// The check of the data directory proved that the data is damaged.
    Corrupt,
    /// The data is of a member that was removed, or of another cluster.
    Foreign,
    /// The volume behind it is gone.
    VolumeLost,
    /// Left by a member that was scaled in; its place is needed.
    LeftByScaleIn,
}

/// Why a member is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberRemovalReason {
    /// Fewer are wanted.
    ScaleIn,
    /// Its data is lost; it comes back as a learner.
    DataLost,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// The controller of every StatefulSet has not seen the newest form.
    StatefulSetUnobserved,
    /// A pod is gone or going and has to come back.
    PodMissing {
        /// Which.
        ordinal: Ordinal,
    },
    /// A pod with the newest template is not well: the template may be bad.
    UpdatedMemberUnhealthy {
        /// Which.
        ordinal: Ordinal,
    },
    /// A member is not well, and touching another one would be one too many.
    MemberUnhealthy {
        /// Which.
        ordinal: Ordinal,
    },
    /// A member that belongs to none of our pods is not well.
    ForeignMemberUnhealthy {
        /// Its identity.
        member: MemberId,
    },
    /// A learner catches up.
    LearnerLagging {
        /// Which.
        ordinal: Ordinal,
    },
    /// Somebody else's learner takes the only place.
    ForeignLearner {
        /// Its identity.
        member: MemberId,
    },
    /// The cluster does not answer with a quorum.
    NoQuorum,
    /// The step would cost the quorum.
    QuorumAtRisk {
        /// Which member it is about.
        ordinal: Ordinal,
        /// Voters that would be well.
        healthy: usize,
        /// Voters there would be.
        voters: usize,
    },
    /// A snapshot is on its way.
    SnapshotRunning {
        /// What it is taken before.
        before: DisruptiveChange,
    },
    /// The snapshot failed, so the change does not happen.
    SnapshotFailed {
        /// What it is taken before.
        before: DisruptiveChange,
        /// Why, in words.
        reason: String,
        /// When it is tried again.
        retry_at: Timestamp,
    },
    /// A claim is being deleted.
    PvcTerminating {
        /// Whose.
        ordinal: Ordinal,
    },
    /// The StatefulSet is being deleted.
    StatefulSetTerminating,
    /// The etcd that is asked for may not follow the one etcd-druid runs, so all of it stays.
    AdoptionRefused,
    /// The cluster comes up for the first time.
    Bootstrapping,
    /// Data is lost, and its recovery waits.
    RecoveryBlocked(super::recovery::RecoveryBlocker),
}

/// Something the user asked for and does not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecRefusal {
    /// The number of members makes no sense.
    InvalidReplicas {
        /// What was asked for.
        replicas: i32,
    },
    /// A volume cannot shrink.
    VolumeShrink {
        /// Bytes there are.
        current_bytes: u64,
        /// Bytes asked for.
        requested_bytes: u64,
    },
    /// The volumes cannot be expanded.
    VolumeExpansion {
        /// What the API server said.
        reason: String,
    },
    /// This etcd cannot follow that one.
    Upgrade {
        /// What runs.
        from: String,
        /// What was asked for.
        to: String,
        /// Which rule says so.
        rule: UpgradeRule,
    },
    /// The members are run by somebody else.
    ExternalMembers,
    /// The spec changed, and nobody asked to reconcile it.
    ReconcileNotRequested {
        /// The generation that waits.
        generation: i64,
    },
    /// Reconciliation is suspended.
    Suspended,
    /// Somebody has stopped all pods by hand, and asked for such changes to be left alone.
    ManuallyStopped,
}

/// Rules of etcd about versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeRule {
    /// One minor version at a time.
    OneMinor,
    /// 3.6 only from 3.5.26 on.
    MinPatchFirst,
    /// Never back to an older minor version.
    NoDowngrade,
    /// Never to another major version.
    SameMajor,
}

//! The input of a decision, and the queries that stages share.

use std::time::Duration;

use crate::model::{
    Blocker, DesiredState, Observation, ObservedEtcdMember, ObservedMembership, ObservedPod,
    ObservedStatefulSet, Ordinal, QuorumMembers, ReportedUpkeep, UpkeepPolicy,
};
use jiff::Timestamp;

/// Desired state, observed state and time of one decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World<'a> {
    pub(crate) desired: &'a DesiredState,
    pub(crate) observed: &'a Observation,
    pub(crate) policy: &'a ReconcilePolicy,
    pub(crate) last_known: &'a LastKnown,
    pub(crate) now: Timestamp,
}

/// Results of earlier reconciles, read from the status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LastKnown {
    /// The generation that was last applied.
    pub(crate) observed_generation: Option<i64>,
    /// The oldest etcd version that a member last reported.
    pub(crate) etcd_version: Option<mainstay_ids::EtcdVersion>,
    /// Time since which data is known to be lost.
    pub(crate) data_lost_since: Option<Timestamp>,
    /// Last published results of backup maintenance.
    pub(crate) upkeep: ReportedUpkeep,
}

/// Settings of the controller that apply to every Etcd.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReconcilePolicy {
    /// Whether a changed spec is reconciled without the reconcile annotation.
    pub(crate) auto_reconcile: bool,
    /// Maximum age of a full snapshot that counts as taken before a change.
    pub(crate) max_snapshot_age: Duration,
    /// Age of a pod from which its missing PVC counts as lost.
    pub(crate) volume_timeout: Duration,
    /// Time a quorum loss must last before it counts as confirmed.
    pub(crate) quorum_loss_timeout: Duration,
    pub(crate) upkeep: UpkeepPolicy,
}

impl Default for ReconcilePolicy {
    fn default() -> Self {
        Self {
            auto_reconcile: false,
            max_snapshot_age: Duration::from_mins(10),
            volume_timeout: Duration::from_mins(1),
            quorum_loss_timeout: Duration::from_secs(30),
            upkeep: UpkeepPolicy::default(),
        }
    }
}

/// Ages of a member's Lease that change its reported state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thresholds {
    /// Time since the last renewal after which a member is Unknown.
    pub(crate) unknown: Duration,
    /// Time in state Unknown after which a member is NotReady.
    pub(crate) not_ready: Duration,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            unknown: Duration::from_mins(1),
            not_ready: Duration::from_mins(5),
        }
    }
}

/// The quorum size for a number of voters.
pub(crate) fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

impl<'a> World<'a> {
    /// Whether the spec may be applied: automatic reconcile, a reconcile request, a new Etcd, or a generation applied before.
    pub(crate) fn is_spec_accepted(&self) -> bool {
        let observed = self.last_known.observed_generation;
        self.policy.auto_reconcile
            || self.desired.requests.reconcile
            || observed.is_none_or(|generation| generation == self.desired.generation)
    }

    /// The StatefulSet, unless it is terminating.
    pub(crate) fn stateful_set(&self) -> Option<&'a ObservedStatefulSet> {
        self.observed
            .stateful_set
            .as_ref()
            .filter(|set| !set.is_deleting)
    }

    /// `spec.replicas` of the existing StatefulSet; 0 without one.
    pub(crate) fn size(&self) -> u32 {
        self.stateful_set().map_or(0, |set| set.replicas)
    }

    /// The ordinals that the existing StatefulSet covers.
    pub(crate) fn ordinals(&self) -> impl DoubleEndedIterator<Item = Ordinal> + use<> {
        (0..self.size()).map(Ordinal)
    }

    pub(crate) fn pod(&self, ordinal: Ordinal) -> Option<&'a ObservedPod> {
        self.observed.pods.get(&ordinal)
    }

    /// The member list; `None` unless a quorum confirmed it.
    pub(crate) fn members(&self) -> Option<&'a QuorumMembers> {
        match &self.observed.membership {
            ObservedMembership::Known(members) => Some(members),
            ObservedMembership::NotQueried | ObservedMembership::NoQuorum { .. } => None,
        }
    }

    pub(crate) fn member(&self, ordinal: Ordinal) -> Option<&'a ObservedEtcdMember> {
        let mut list = self.members()?.list.iter();
        list.find(|member| member.ordinal == Some(ordinal))
    }

    #[cfg(test)]
    pub(crate) fn leader(&self) -> Option<&'a ObservedEtcdMember> {
        self.members()?
            .list
            .iter()
            .find(|member| member.is_leader())
    }

    pub(crate) fn voters(&self) -> impl Iterator<Item = &'a ObservedEtcdMember> + use<'a> {
        let list = self.members().map_or(&[][..], |members| &members.list);
        list.iter().filter(|member| !member.is_learner)
    }

    /// The learner. The controller adds one at a time.
    pub(crate) fn learner(&self) -> Option<&'a ObservedEtcdMember> {
        self.members()?.list.iter().find(|member| member.is_learner)
    }

    /// Whether the cluster was ever created: any single record of a member proves it.
    pub(crate) fn is_bootstrapped(&self) -> bool {
        let is_recorded = self
            .observed
            .stateful_set
            .as_ref()
            .is_some_and(|set| set.recorded_size.is_some());
        let has_holder = self
            .observed
            .leases
            .values()
            .any(|lease| lease.holder.is_some());
        is_recorded
            || has_holder
            || self.observed.recovery.has_created_cluster()
            || matches!(self.observed.membership, ObservedMembership::Known(_))
    }

    /// Whether a pod may contribute to quorum: it is ready, or its etcd answers.
    pub(crate) fn is_responsive(&self, ordinal: Ordinal) -> bool {
        // When in doubt, count the member: a step that treats a serving member as dead can break quorum.
        let is_ready = self.pod(ordinal).is_some_and(|pod| pod.is_ready);
        let serving = match &self.observed.membership {
            ObservedMembership::Known(_) => {
                self.member(ordinal).is_some_and(|m| m.status.is_some())
            }
            ObservedMembership::NoQuorum {
                reachable: members, ..
            } => members.contains_key(&ordinal),
            ObservedMembership::NotQueried => false,
        };
        is_ready || serving
    }

    /// Whether the pod is ready and not terminating, and its member is a voter that has a leader.
    pub(crate) fn is_member_healthy(&self, ordinal: Ordinal) -> bool {
        let is_ready = self
            .pod(ordinal)
            .is_some_and(|pod| pod.is_ready && !pod.is_deleting);
        let votes = self
            .member(ordinal)
            .is_some_and(|member| !member.is_learner && member.is_healthy());
        is_ready && votes
    }

    /// The first pod that is absent or terminating.
    pub(crate) fn first_missing_pod(&self) -> Option<Ordinal> {
        self.ordinals()
            .find(|ordinal| self.pod(*ordinal).is_none_or(|pod| pod.is_deleting))
    }

    /// The first unhealthy member except `excluded`, including voters that have no pod of this Etcd.
    pub(crate) fn first_unhealthy(&self, excluded: Option<Ordinal>) -> Option<Blocker> {
        let is_unhealthy =
            |ordinal: &Ordinal| Some(*ordinal) != excluded && !self.is_member_healthy(*ordinal);
        if let Some(ordinal) = self.ordinals().find(is_unhealthy) {
            return Some(Blocker::MemberUnhealthy { ordinal });
        }
        // Voters of a joined cluster count towards quorum although they have no pod here.
        let foreign_voter = self.voters().find(|voter| {
            let is_ours = voter.ordinal.is_some_and(|ordinal| ordinal.0 < self.size());
            !is_ours
                && voter
                    .ordinal
                    .is_none_or(|ordinal| Some(ordinal) != excluded)
                && !voter.is_healthy()
        })?;
        Some(Blocker::ForeignMemberUnhealthy {
            member: foreign_voter.id,
        })
    }

    /// Number of healthy voters and of all voters, without `member`.
    pub(crate) fn count_voters_without(&self, member: &ObservedEtcdMember) -> (usize, usize) {
        let others = self.voters().filter(|voter| voter.id != member.id);
        others.fold((0, 0), |(healthy, all), voter| {
            (healthy + usize::from(voter.is_healthy()), all + 1)
        })
    }

    /// Whether the healthy voters form a quorum.
    pub(crate) fn has_quorum(&self) -> bool {
        let (healthy, all) = self.voters().fold((0, 0), |(healthy, all), voter| {
            (healthy + usize::from(voter.is_healthy()), all + 1)
        });
        all > 0 && healthy >= quorum(all)
    }

    /// A healthy voter to transfer leadership to: members of this Etcd first, then the lowest ordinal.
    pub(crate) fn pick_transferee(
        &self,
        current: &ObservedEtcdMember,
    ) -> Option<&'a ObservedEtcdMember> {
        let candidates = self
            .voters()
            .filter(|voter| voter.id != current.id && voter.is_healthy());
        candidates.min_by_key(|voter| (voter.ordinal.is_none(), voter.ordinal, voter.id))
    }
}

//! One situation, and the questions every concern asks about it.

use jiff::Timestamp;

use super::ReconcilePolicy;
use super::plan::Blocker;
use crate::observe::{QuorumMembers, ObservedMembership, Observation, Ordinal, ObservedEtcdMember, ObservedPod, ObservedStatefulSet};
use crate::validate::DesiredState;

/// What is wanted, what is seen, and when.
#[derive(Clone, Copy, Debug)]
pub struct World<'a> {
    /// What the spec asks for.
    pub desired: &'a DesiredState,
    /// What there is.
    pub observed: &'a Observation,
    /// The operator's numbers.
    pub policy: &'a ReconcilePolicy,
    /// What was known before this pass.
    pub last_known: &'a LastKnown,
    /// Now.
    pub now: Timestamp,
}

/// What earlier passes found out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LastKnown {
    /// The generation that was last acted on.
    pub observed_generation: Option<i64>,
    /// The oldest version of etcd a member was last seen with.
    pub etcd_version: Option<super::upgrade::EtcdVersion>,
    /// Since when data is known to be lost.
    pub data_lost_since: Option<Timestamp>,
    /// What was told about the upkeep of the backup.
    pub upkeep: super::upkeep::ReportedUpkeep,
}

/// The smallest number of voters that decide.
pub fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

impl<'a> World<'a> {
    /// The StatefulSet, unless it is going.
    pub fn stateful_set(&self) -> Option<&'a ObservedStatefulSet> {
        self.observed.stateful_set.as_ref().filter(|set| !set.is_deleting)
    }

    /// How many pods there are to be now.
    pub fn size(&self) -> u32 {
        self.stateful_set().map_or(0, |set| set.replicas)
    }

    /// The ordinals of pods there are to be now.
    pub fn ordinals(&self) -> impl DoubleEndedIterator<Item = Ordinal> + use<> {
        (0..self.size()).map(Ordinal)
    }

    /// A pod.
    pub fn pod(&self, ordinal: Ordinal) -> Option<&'a ObservedPod> {
        self.observed.pods.get(&ordinal)
    }

    /// The members, if a quorum agrees on them.
    pub fn members(&self) -> Option<&'a QuorumMembers> {
        match &self.observed.membership {
            ObservedMembership::Known(members) => Some(members),
            ObservedMembership::NotQueried | ObservedMembership::NoQuorum { .. } => None,
        }
    }

    /// The member of a pod.
    pub fn member(&self, ordinal: Ordinal) -> Option<&'a ObservedEtcdMember> {
        let mut list = self.members()?.list.iter();
        list.find(|member| member.ordinal == Some(ordinal))
    }

    /// Who leads.
    pub fn leader(&self) -> Option<&'a ObservedEtcdMember> {
        self.members()?
            .list
            .iter()
            .find(|member| member.is_leader())
    }

    /// Those who vote.
    pub fn voters(&self) -> impl Iterator<Item = &'a ObservedEtcdMember> + use<'a> {
        let list = self.members().map_or(&[][..], |members| &members.list);
        list.iter().filter(|member| !member.is_learner)
    }

    /// The one who has no vote yet.
    pub fn learner(&self) -> Option<&'a ObservedEtcdMember> {
        self.members()?.list.iter().find(|member| member.is_learner)
    }

    /// Whether anybody has ever been a member of this cluster.
    pub fn is_bootstrapped(&self) -> bool {
        let noted = self
            .observed
            .stateful_set
            .as_ref()
            .is_some_and(|set| set.recorded_size.is_some());
        let held = self.observed.leases.values().any(|lease| lease.holder.is_some());
        noted
            || held
            || super::recovery::has_created_cluster(self)
            || matches!(self.observed.membership, ObservedMembership::Known(_))
    }

    /// Whether a pod may be part of the quorum: it is ready, or etcd in it answers. When in doubt, it is.
    pub fn is_responsive(&self, ordinal: Ordinal) -> bool {
        let is_ready = self.pod(ordinal).is_some_and(|pod| pod.is_ready);
        let serving = match &self.observed.membership {
            ObservedMembership::Known(_) => self.member(ordinal).is_some_and(|m| m.status.is_some()),
            ObservedMembership::NoQuorum { reachable: alive, .. } => alive.contains_key(&ordinal),
            ObservedMembership::NotQueried => false,
        };
        is_ready || serving
    }

    /// Whether nothing is missing: the pod is ready and its member votes and follows a leader.
    pub fn is_member_healthy(&self, ordinal: Ordinal) -> bool {
        let is_ready = self
            .pod(ordinal)
            .is_some_and(|pod| pod.is_ready && !pod.is_deleting);
        let votes = self
            .member(ordinal)
            .is_some_and(|member| !member.is_learner && member.is_healthy());
        is_ready && votes
    }

    /// The first pod that is gone or going.
    pub fn first_missing_pod(&self) -> Option<Ordinal> {
        self.ordinals()
            .find(|ordinal| self.pod(*ordinal).is_none_or(|pod| pod.is_deleting))
    }

    /// What keeps the cluster from being whole, `but` aside: a pod, or a voter that is none of ours.
    pub fn first_unhealthy(&self, but: Option<Ordinal>) -> Option<Blocker> {
        let is_unwell = |ordinal: &Ordinal| Some(*ordinal) != but && !self.is_member_healthy(*ordinal);
        if let Some(ordinal) = self.ordinals().find(is_unwell) {
            return Some(Blocker::MemberUnhealthy { ordinal });
        }
        let stranger = self.voters().find(|voter| {
            let is_ours = voter.ordinal.is_some_and(|ordinal| ordinal.0 < self.size());
            !is_ours
                && voter.ordinal.is_none_or(|ordinal| Some(ordinal) != but)
                && !voter.is_healthy()
        })?;
        Some(Blocker::ForeignMemberUnhealthy {
            member: stranger.id,
        })
    }

    /// Voters that are healthy, and voters there are, without this member.
    pub fn count_voters_without(&self, member: &ObservedEtcdMember) -> (usize, usize) {
        let others = self.voters().filter(|voter| voter.id != member.id);
        others.fold((0, 0), |(well, all), voter| {
            (well + usize::from(voter.is_healthy()), all + 1)
        })
    }

    /// Whether the voters that are healthy can decide something now.
    pub fn has_quorum(&self) -> bool {
        let (well, all) = self.voters().fold((0, 0), |(well, all), voter| {
            (well + usize::from(voter.is_healthy()), all + 1)
        });
        all > 0 && well >= quorum(all)
    }

    /// A healthy voter to lead in place of another.
    pub fn pick_transferee(&self, of: &ObservedEtcdMember) -> Option<&'a ObservedEtcdMember> {
        let candidates = self
            .voters()
            .filter(|voter| voter.id != of.id && voter.is_healthy());
        candidates.min_by_key(|voter| (voter.ordinal.is_none(), voter.ordinal, voter.id))
    }
}

//! A fixture of a healthy cluster, and modifiers that break it.

use jiff::{SignedDuration, Timestamp};
use mainstay_crds::etcd::VolumeGrowth;
use mainstay_ids::{ClusterId, MemberId};

use crate::decide::decide;
use crate::model::{
    Blocker, DesiredBackup, DesiredRecovery, DesiredState, EndpointStatus, InitFinding, LastKnown,
    MemberLeaseHolder, Observation, ObservedEtcdMember, ObservedMemberLease, ObservedMembership,
    ObservedPod, ObservedPvc, ObservedStatefulSet, Ordinal, PeerTlsStage, Peers, PodListeners,
    QuorumMembers, ReconcilePlan, ReconcilePolicy, ReconcileStep, ReplicaCounts, Requests,
    SnapshotLease, UpdateStrategy, World,
};
use crate::validate::DEFAULT_STORAGE_BYTES;

pub(crate) const OLD_REVISION: &str = "old";
pub(crate) const NEW_REVISION: &str = "new";
pub(crate) const IMAGE: &str = "etcd:v3.5.26";

pub(crate) fn noon() -> Timestamp {
    "2026-11-16T12:00:00Z".parse().unwrap()
}

pub(crate) fn ago(seconds: i64) -> Timestamp {
    noon() - SignedDuration::from_secs(seconds)
}

/// The input of a decision under test. It starts healthy.
#[derive(Clone, Debug)]
pub(crate) struct ClusterFixture {
    pub(crate) desired: DesiredState,
    pub(crate) observed: Observation,
    pub(crate) policy: ReconcilePolicy,
    pub(crate) last_known: LastKnown,
}

pub(crate) fn desired(replicas: u32) -> DesiredState {
    DesiredState {
        name: "main".to_owned(),
        namespace: "shoot".to_owned(),
        generation: 1,
        replicas,
        invalid_replicas: None,
        member_prefix: None,
        etcd_image: IMAGE.to_owned(),
        storage_bytes: DEFAULT_STORAGE_BYTES,
        volume_growth: VolumeGrowth::Expand,
        backup: None,
        recovery: DesiredRecovery::default(),
        upkeep: crate::model::DesiredUpkeep::default(),
        peers: Peers {
            port: 2380,
            ..Peers::default()
        },
        joins_existing_cluster: false,
        has_external_members: false,
        requests: Requests::default(),
        deletion_timestamp: None,
    }
}

pub(crate) fn member_id(ordinal: u32) -> MemberId {
    MemberId(u64::from(ordinal) + 100)
}

pub(crate) fn pod(ordinal: u32, revision: &str) -> ObservedPod {
    ObservedPod {
        uid: format!("pod-{ordinal}-{revision}"),
        revision: Some(revision.to_owned()),
        is_ready: true,
        has_ready_containers: true,
        is_deleting: false,
        created_at: Some(ago(3_600)),
        address: Some(format!("10.0.0.{ordinal}")),
        etcd_image: Some(IMAGE.to_owned()),
        finding: Some(InitFinding::CanStart),
        init_message: None,
        data_revision: None,
        crash_count: 0,
        listeners: PodListeners::default(),
    }
}

pub(crate) fn pvc(ordinal: u32) -> ObservedPvc {
    ObservedPvc {
        uid: format!("claim-{ordinal}"),
        is_bound: true,
        requested_bytes: Some(DEFAULT_STORAGE_BYTES),
        capacity_bytes: Some(DEFAULT_STORAGE_BYTES),
        ..ObservedPvc::default()
    }
}

pub(crate) fn lease(ordinal: u32, is_leader: bool) -> ObservedMemberLease {
    ObservedMemberLease {
        holder: Some(MemberLeaseHolder {
            member_id: member_id(ordinal),
            cluster_id: Some(ClusterId(7)),
            is_leader,
        }),
        renewed_at: Some(ago(5)),
        peer_tls: Some(false),
    }
}

pub(crate) fn answer(leader: u32) -> EndpointStatus {
    EndpointStatus {
        leader: Some(member_id(leader)),
        cluster_id: ClusterId(7),
        version: "3.5.26".to_owned(),
        revision: 1_000,
        db_bytes: 20_480,
        db_bytes_in_use: 16_384,
    }
}

pub(crate) fn member(desired_state: &DesiredState, ordinal: u32) -> ObservedEtcdMember {
    ObservedEtcdMember {
        id: member_id(ordinal),
        name: desired_state.member_name(Ordinal(ordinal)),
        ordinal: Some(Ordinal(ordinal)),
        peer_urls: desired_state.peer_urls(Ordinal(ordinal), PeerTlsStage::Off),
        is_learner: false,
        status: Some(answer(0)),
    }
}

pub(crate) fn stateful_set(replicas: u32) -> ObservedStatefulSet {
    ObservedStatefulSet {
        uid: "set".to_owned(),
        resource_version: "1".to_owned(),
        is_deleting: false,
        is_observed: true,
        replicas,
        update_strategy: UpdateStrategy::OnDelete,
        is_ours: true,
        update_revision: Some(OLD_REVISION.to_owned()),
        etcd_image: Some(IMAGE.to_owned()),
        storage_bytes: Some(DEFAULT_STORAGE_BYTES),
        peer_tls_stage: PeerTlsStage::Off,
        recorded_size: Some(replicas),
        counts: ReplicaCounts::default(),
    }
}

impl ClusterFixture {
    /// `replicas` healthy members; member 0 leads.
    pub(crate) fn healthy(replicas: u32) -> Self {
        let desired_state = desired(replicas);
        let each = || 0..replicas;
        let observed = Observation {
            stateful_set: Some(stateful_set(replicas)),
            pods: each().map(|n| (Ordinal(n), pod(n, OLD_REVISION))).collect(),
            pvcs: each().map(|n| (Ordinal(n), pvc(n))).collect(),
            leases: each().map(|n| (Ordinal(n), lease(n, n == 0))).collect(),
            membership: ObservedMembership::Known(QuorumMembers {
                cluster_id: ClusterId(7),
                list: each().map(|n| member(&desired_state, n)).collect(),
            }),
            ..Observation::default()
        };
        let last_known = LastKnown {
            observed_generation: Some(1),
            etcd_version: None,
            data_lost_since: None,
            upkeep: crate::model::ReportedUpkeep::default(),
        };
        Self {
            desired: desired_state,
            observed,
            policy: ReconcilePolicy::default(),
            last_known,
        }
    }

    pub(crate) fn world(&self) -> World<'_> {
        World {
            desired: &self.desired,
            observed: &self.observed,
            policy: &self.policy,
            last_known: &self.last_known,
            now: noon(),
        }
    }

    pub(crate) fn plan(&self) -> ReconcilePlan {
        decide(&self.world())
    }

    pub(crate) fn step(&self) -> Option<ReconcileStep> {
        self.plan().step
    }

    /// What the plan waits for; `None` when it acts.
    pub(crate) fn blocker(&self) -> Option<Blocker> {
        match self.step() {
            Some(ReconcileStep::Wait { blocker: on }) => Some(on),
            _ => None,
        }
    }

    pub(crate) fn with_replicas(mut self, replicas: u32) -> Self {
        self.desired.replicas = replicas;
        self
    }

    pub(crate) fn with_backup(mut self, age_seconds: i64) -> Self {
        self.desired.backup = Some(DesiredBackup {
            full_schedule: None,
            delta_period_seconds: Some(20),
        });
        self.observed.full_snapshot = Some(SnapshotLease {
            created_at: Some(ago(86_400)),
            renewed_at: Some(ago(age_seconds)),
            revision: Some(100),
        });
        self
    }

    /// The template changes, so that every pod is outdated.
    pub(crate) fn with_new_template(mut self) -> Self {
        self.stateful_set_mut().update_revision = Some(NEW_REVISION.to_owned());
        self
    }

    pub(crate) fn stateful_set_mut(&mut self) -> &mut ObservedStatefulSet {
        self.observed.stateful_set.as_mut().unwrap()
    }

    pub(crate) fn pod_mut(&mut self, ordinal: u32) -> &mut ObservedPod {
        self.observed.pods.get_mut(&Ordinal(ordinal)).unwrap()
    }

    pub(crate) fn members_mut(&mut self) -> &mut Vec<ObservedEtcdMember> {
        match &mut self.observed.membership {
            ObservedMembership::Known(members) => &mut members.list,
            other => panic!("no members: {other:?}"),
        }
    }

    pub(crate) fn member_mut(&mut self, ordinal: u32) -> &mut ObservedEtcdMember {
        let found = self
            .members_mut()
            .iter_mut()
            .find(|m| m.ordinal == Some(Ordinal(ordinal)));
        found.unwrap()
    }

    /// The pod is not ready and etcd in it does not answer.
    pub(crate) fn with_member_down(mut self, ordinal: u32) -> Self {
        let pod = self.pod_mut(ordinal);
        (pod.is_ready, pod.has_ready_containers) = (false, false);
        self.member_mut(ordinal).status = None;
        self
    }

    pub(crate) fn with_finding(mut self, ordinal: u32, finding: InitFinding) -> Self {
        self.pod_mut(ordinal).finding = Some(finding);
        self
    }

    /// The pod is replaced from the new template.
    pub(crate) fn with_updated_pod(mut self, ordinal: u32) -> Self {
        self.observed
            .pods
            .insert(Ordinal(ordinal), pod(ordinal, NEW_REVISION));
        self
    }

    pub(crate) fn with_leader(mut self, ordinal: u32) -> Self {
        for member in self.members_mut() {
            if let Some(answer) = &mut member.status {
                answer.leader = Some(member_id(ordinal));
            }
        }
        self
    }

    /// No quorum of members answers.
    pub(crate) fn without_quorum(mut self) -> Self {
        self.observed.membership = ObservedMembership::NoQuorum {
            reason: "no leader".to_owned(),
            reachable: std::collections::BTreeMap::new(),
        };
        self
    }

    pub(crate) fn without_member(mut self, ordinal: u32) -> Self {
        self.members_mut()
            .retain(|member| member.ordinal != Some(Ordinal(ordinal)));
        self
    }

    /// A pod of a scaled-out StatefulSet that is not a member yet.
    pub(crate) fn with_waiting_pod(mut self, ordinal: u32) -> Self {
        let set = self.stateful_set_mut();
        set.replicas = set.replicas.max(ordinal + 1);
        set.recorded_size = Some(set.replicas);
        let waiting = ObservedPod {
            is_ready: false,
            has_ready_containers: false,
            finding: Some(InitFinding::WaitingToJoin),
            ..pod(ordinal, OLD_REVISION)
        };
        self.observed.pods.insert(Ordinal(ordinal), waiting);
        self.observed.pvcs.insert(Ordinal(ordinal), pvc(ordinal));
        self
    }
}

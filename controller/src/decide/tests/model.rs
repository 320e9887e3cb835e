//! A model of a cluster that reacts to plans: after any spec changes and faults it converges to the spec, and no step of the
//! controller breaks quorum on the way.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use mainstay_ids::ClusterId;
use proptest::prelude::*;

use super::fixture::*;
use crate::decide::decide;
use crate::model::{
    DesiredBackup, DesiredState, InitFinding, LastKnown, Observation, ObservedEtcdMember,
    ObservedMembership, ObservedPod, Ordinal, PeerTlsStage, QuorumMembers, ReconcilePlan,
    ReconcilePolicy, ReconcileStep, SnapshotLease, World, quorum,
};

/// An external event: a spec change or a fault.
#[derive(Clone, Debug)]
enum ModelEvent {
    Replicas(u32),
    Image(bool),
    Tls(bool),
    /// A pod is deleted and recreated.
    CrashPod(u32),
    /// A volume is lost together with its pod.
    LoseVolume(u32),
    /// The data on a volume becomes corrupt.
    DamageVolume(u32),
    /// A user deletes the StatefulSet and keeps its pods.
    DeleteStatefulSet,
    Elapse(u8),
}

/// Data on a volume: the member that wrote it, and whether it is intact.
#[derive(Clone, Copy, Debug, PartialEq)]
struct VolumeData {
    member: u64,
    is_good: bool,
}

#[derive(Clone, Debug)]
struct ModelPod {
    uid: u32,
    revision: String,
    is_up: bool,
    finding: Option<InitFinding>,
}

#[derive(Clone, Debug)]
struct ModelMember {
    id: u64,
    ordinal: u32,
    is_learner: bool,
    has_started: bool,
    stage: PeerTlsStage,
}

struct ClusterModel {
    desired: DesiredState,
    now: Timestamp,
    stateful_set: Option<(u32, String, PeerTlsStage, Option<u32>, String)>,
    pods: BTreeMap<u32, ModelPod>,
    data: BTreeMap<u32, Option<VolumeData>>,
    members: Vec<ModelMember>,
    leader: Option<u64>,
    snapshot: Option<Timestamp>,
    /// The last member ID in the Lease of each ordinal.
    registered_members: BTreeMap<u32, u64>,
    serial: u32,
}

impl ClusterModel {
    fn new(replicas: u32, is_backed_up: bool) -> Self {
        let mut desired_state = desired(replicas);
        desired_state.backup = is_backed_up.then_some(DesiredBackup {
            full_schedule: None,
            delta_period_seconds: Some(20),
        });
        Self {
            desired: desired_state,
            now: noon(),
            stateful_set: None,
            pods: BTreeMap::new(),
            data: BTreeMap::new(),
            members: Vec::new(),
            leader: None,
            snapshot: None,
            registered_members: BTreeMap::new(),
            serial: 0,
        }
    }

    fn next_serial(&mut self) -> u32 {
        self.serial += 1;
        self.serial
    }

    fn is_healthy(&self, member: &ModelMember) -> bool {
        let up = self.pods.get(&member.ordinal).is_some_and(|pod| pod.is_up);
        let data = self.data.get(&member.ordinal).copied().flatten();
        up && data.is_some_and(|data| data.member == member.id && data.is_good)
    }

    /// Number of healthy voters and of all voters.
    fn count_voters(&self) -> (usize, usize) {
        let voters = || self.members.iter().filter(|member| !member.is_learner);
        (
            voters().filter(|member| self.is_healthy(member)).count(),
            voters().count(),
        )
    }

    fn has_quorum(&self) -> bool {
        let (healthy, all) = self.count_voters();
        all > 0 && healthy >= quorum(all)
    }

    /// The observation of a reconcile.
    fn observe(&self) -> Observation {
        let ready = |ordinal: u32| {
            let healthy = self
                .members
                .iter()
                .any(|m| m.ordinal == ordinal && self.is_healthy(m));
            healthy && self.has_quorum()
        };
        let pods = self.pods.iter().map(|(ordinal, model)| {
            let observed = ObservedPod {
                uid: model.uid.to_string(),
                is_ready: ready(*ordinal),
                has_ready_containers: ready(*ordinal),
                finding: model.finding,
                etcd_image: model.revision.split('/').next().map(str::to_owned),
                created_at: Some(self.now - SignedDuration::from_mins(2)),
                ..pod(*ordinal, &model.revision)
            };
            (Ordinal(*ordinal), observed)
        });
        let leases = self.registered_members.iter().map(|(ordinal, member)| {
            let mut lease = lease(*ordinal, false);
            lease.holder.as_mut().unwrap().member_id = mainstay_ids::MemberId(*member);
            let pod = self.pods.get(ordinal);
            lease.peer_tls = pod.map(|pod| pod.revision.ends_with("/On"));
            (Ordinal(*ordinal), lease)
        });
        Observation {
            stateful_set: self.stateful_set.as_ref().map(
                |(replicas, revision, stage, recorded, image)| {
                    let mut set = stateful_set(*replicas);
                    set.update_revision = Some(revision.clone());
                    (set.peer_tls_stage, set.recorded_size) = (*stage, *recorded);
                    set.etcd_image = Some(image.clone());
                    set
                },
            ),
            pods: pods.collect(),
            pvcs: self.data.keys().map(|n| (Ordinal(*n), pvc(*n))).collect(),
            leases: leases.collect(),
            full_snapshot: self.desired.backup.as_ref().map(|_| SnapshotLease {
                created_at: Some(noon()),
                renewed_at: self.snapshot,
                revision: None,
            }),
            membership: self.membership(),
            ..Observation::default()
        }
    }

    fn membership(&self) -> ObservedMembership {
        if !self.has_quorum() {
            let alive = self.pods.iter().filter(|(_, pod)| pod.is_up);
            return ObservedMembership::NoQuorum {
                reason: "no leader".to_owned(),
                reachable: alive.map(|(ordinal, _)| (Ordinal(*ordinal), 0)).collect(),
            };
        }
        let list = self.members.iter().map(|model| {
            let mut reply = answer(0);
            reply.leader = self.leader.map(mainstay_ids::MemberId);
            ObservedEtcdMember {
                id: mainstay_ids::MemberId(model.id),
                name: if model.has_started {
                    self.desired.member_name(Ordinal(model.ordinal))
                } else {
                    String::new()
                },
                ordinal: Some(Ordinal(model.ordinal)),
                peer_urls: self.desired.peer_urls(Ordinal(model.ordinal), model.stage),
                is_learner: model.is_learner,
                status: self.is_healthy(model).then_some(reply),
            }
        });
        ObservedMembership::Known(QuorumMembers {
            cluster_id: ClusterId(7),
            list: list.collect(),
        })
    }

    fn plan(&self) -> (ReconcilePlan, Observation) {
        let observed = self.observe();
        let policy = ReconcilePolicy {
            auto_reconcile: true,
            ..ReconcilePolicy::default()
        };
        let known = LastKnown::default();
        let world = World {
            desired: &self.desired,
            observed: &observed,
            policy: &policy,
            last_known: &known,
            now: self.now,
        };
        (decide(&world), observed)
    }

    /// One reconcile: executes the plan at once, and checks that it keeps quorum.
    fn reconcile(&mut self) -> Result<ReconcilePlan, TestCaseError> {
        let had_quorum = self.has_quorum();
        let voters_before = self.count_voters().1;
        let (plan, _) = self.plan();
        if let Some(shape) = &plan.effective_spec {
            let image = shape
                .held_fields
                .etcd_image
                .clone()
                .unwrap_or_else(|| self.desired.etcd_image.clone());
            let revision = format!("{image}/{:?}", shape.peer_tls_stage);
            let recorded = (shape.phase == crate::model::BootstrapPhase::Bootstrapped)
                .then_some(shape.cluster_size);
            self.stateful_set = Some((
                shape.replicas,
                revision,
                shape.peer_tls_stage,
                recorded,
                image,
            ));
        }
        if let Some(step) = &plan.step {
            self.apply_step(step);
        }
        let pod_limit = self.stateful_set.as_ref().map_or(0, |set| set.0);
        if self.desired.replicas > 0 {
            let pod_limit = pod_limit.max(self.desired.replicas);
            self.registered_members
                .retain(|ordinal, _| *ordinal < pod_limit);
        }
        let is_hibernated = self.stateful_set.as_ref().is_some_and(|set| set.0 == 0);
        if had_quorum && voters_before > 2 && !is_hibernated {
            prop_assert!(self.has_quorum(), "{:?} broke quorum", plan.step);
        }
        Ok(plan)
    }

    fn apply_step(&mut self, step: &ReconcileStep) {
        match step {
            ReconcileStep::Snapshot { .. } => self.snapshot = Some(self.now),
            ReconcileStep::DeletePod { ordinal, .. } => {
                self.pods.remove(&ordinal.0);
            }
            ReconcileStep::DeletePvc { ordinal, .. } => {
                self.data.remove(&ordinal.0);
                self.pods.remove(&ordinal.0);
            }
            ReconcileStep::AddLearner { ordinal } => {
                let id = u64::from(self.next_serial()) + 1_000;
                let stage = self
                    .stateful_set
                    .as_ref()
                    .map(|set| set.2)
                    .unwrap_or_default();
                self.members.push(ModelMember {
                    id,
                    ordinal: ordinal.0,
                    is_learner: true,
                    has_started: false,
                    stage,
                });
            }
            ReconcileStep::Promote { member, .. } => {
                let promoted = self.members.iter_mut().find(|one| one.id == member.0);
                promoted.expect("a learner").is_learner = false;
            }
            ReconcileStep::RemoveMember { member, .. } => {
                self.members.retain(|one| one.id != member.0);
            }
            ReconcileStep::MoveLeader { to, .. } => self.leader = Some(to.0),
            ReconcileStep::UpdatePeerUrls { member, .. } => {
                let stage = self
                    .stateful_set
                    .as_ref()
                    .map(|set| set.2)
                    .unwrap_or_default();
                let moved = self.members.iter_mut().find(|one| one.id == member.0);
                moved.expect("a member").stage = if stage == PeerTlsStage::On {
                    PeerTlsStage::On
                } else {
                    PeerTlsStage::Off
                };
            }
            _ => {}
        }
    }

    /// Simulates the StatefulSet controller, the kubelet and etcd.
    fn advance(&mut self) {
        self.now += SignedDuration::from_secs(10);
        let Some((replicas, revision, stage, ..)) = self.stateful_set.clone() else {
            return;
        };
        self.pods.retain(|ordinal, _| *ordinal < replicas);
        for ordinal in 0..replicas {
            if !self.pods.contains_key(&ordinal) {
                let uid = self.next_serial();
                self.data.entry(ordinal).or_insert(None);
                let pod = ModelPod {
                    uid,
                    revision: revision.clone(),
                    is_up: false,
                    finding: None,
                };
                self.pods.insert(ordinal, pod);
            }
        }
        if self.members.is_empty() && replicas > 0 && self.data.values().all(Option::is_none) {
            self.bootstrap(replicas, stage);
        }
        let ordinals: Vec<u32> = self.pods.keys().copied().collect();
        for ordinal in ordinals {
            self.start_pod(ordinal);
        }
        let leads = |model: &Self| {
            model
                .members
                .iter()
                .any(|m| Some(m.id) == model.leader && !m.is_learner && model.is_healthy(m))
        };
        if !leads(self) {
            let next_leader = self
                .members
                .iter()
                .find(|m| !m.is_learner && self.is_healthy(m));
            self.leader = next_leader.map(|m| m.id);
        }
    }

    fn bootstrap(&mut self, replicas: u32, stage: PeerTlsStage) {
        for ordinal in 0..replicas {
            let id = u64::from(self.next_serial()) + 1_000;
            self.members.push(ModelMember {
                id,
                ordinal,
                is_learner: false,
                has_started: true,
                stage,
            });
            self.data.insert(
                ordinal,
                Some(VolumeData {
                    member: id,
                    is_good: true,
                }),
            );
        }
    }

    /// Simulates the init check and the start of etcd. The check runs until etcd may start, and not again in the same pod.
    fn start_pod(&mut self, ordinal: u32) {
        let member = self
            .members
            .iter()
            .position(|member| member.ordinal == ordinal);
        let data = self.data.get(&ordinal).copied().flatten();
        let (finding, is_up) = match (data, member) {
            (Some(VolumeData { is_good: false, .. }), _) => (InitFinding::Corrupt, false),
            (Some(data), Some(at)) if self.members[at].id == data.member => {
                (InitFinding::CanStart, true)
            }
            (Some(_), _) => (InitFinding::Foreign, false),
            (None, Some(at)) if !self.members[at].has_started => {
                self.members[at].has_started = true;
                let id = self.members[at].id;
                self.data.insert(
                    ordinal,
                    Some(VolumeData {
                        member: id,
                        is_good: true,
                    }),
                );
                (InitFinding::CanStart, true)
            }
            (None, _) => (InitFinding::WaitingToJoin, false),
        };
        if is_up && let Some(at) = member {
            self.registered_members.insert(ordinal, self.members[at].id);
        }
        let pod = self.pods.get_mut(&ordinal).expect("a pod");
        pod.is_up = is_up;
        if pod.finding != Some(InitFinding::CanStart) {
            pod.finding = Some(finding);
        }
    }

    /// Applies an external event. Faults that lose the data of a quorum are skipped; the recovery model covers them.
    fn apply_event(&mut self, event: &ModelEvent) {
        let (healthy, all) = self.count_voters();
        let is_all_healthy =
            all >= 3 && healthy == all && self.members.iter().all(|m| !m.is_learner);
        match event {
            ModelEvent::Replicas(replicas) => self.desired.replicas = *replicas,
            ModelEvent::Image(is_new) => {
                self.desired.etcd_image = if *is_new { "etcd:v3.5.30" } else { IMAGE }.to_owned();
            }
            ModelEvent::Tls(tls) => self.desired.peers.tls = *tls,
            ModelEvent::CrashPod(ordinal) => {
                self.pods.remove(ordinal);
            }
            ModelEvent::LoseVolume(ordinal) if is_all_healthy => {
                self.pods.remove(ordinal);
                self.data.remove(ordinal);
            }
            ModelEvent::DamageVolume(ordinal) if is_all_healthy => {
                self.pods.remove(ordinal);
                if let Some(Some(data)) = self.data.get_mut(ordinal) {
                    data.is_good = false;
                }
            }
            ModelEvent::DeleteStatefulSet => self.stateful_set = None,
            ModelEvent::LoseVolume(_) | ModelEvent::DamageVolume(_) | ModelEvent::Elapse(_) => {}
        }
    }

    fn is_converged(&self, plan: &ReconcilePlan) -> bool {
        let Some((replicas, revision, stage, ..)) = &self.stateful_set else {
            return false;
        };
        let target = if self.desired.peers.tls {
            PeerTlsStage::On
        } else {
            PeerTlsStage::Off
        };
        let names: BTreeSet<u32> = self.members.iter().map(|member| member.ordinal).collect();
        let is_hibernated = *replicas == 0;
        plan.is_settled()
            && *replicas == self.desired.replicas
            && (is_hibernated || *stage == target)
            && (is_hibernated || names == (0..*replicas).collect())
            && self
                .members
                .iter()
                .all(|member| is_hibernated || (!member.is_learner && self.is_healthy(member)))
            && self.pods.values().all(|pod| pod.revision == *revision)
    }
}

fn model_events() -> impl Strategy<Value = Vec<ModelEvent>> {
    let event = prop_oneof![
        3 => prop_oneof![Just(0_u32), Just(1), Just(3), Just(5), 1..6_u32].prop_map(ModelEvent::Replicas),
        1 => any::<bool>().prop_map(ModelEvent::Image),
        1 => any::<bool>().prop_map(ModelEvent::Tls),
        2 => (0..5_u32).prop_map(ModelEvent::CrashPod),
        1 => (0..5_u32).prop_map(ModelEvent::LoseVolume),
        1 => (0..5_u32).prop_map(ModelEvent::DamageVolume),
        1 => Just(ModelEvent::DeleteStatefulSet),
        4 => (1..20_u8).prop_map(ModelEvent::Elapse),
    ];
    prop::collection::vec(event, 1..12)
}

/// Limit of reconciles, above what any sequence of events needs.
const MAX_RECONCILES: usize = 400;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn cluster_converges_after_any_changes_and_faults(
        first in 1_u32..6,
        is_backed_up in any::<bool>(),
        events in model_events(),
    ) {
        let mut model = ClusterModel::new(first, is_backed_up);
        for event in &events {
            model.apply_event(event);
            let rounds = if let ModelEvent::Elapse(rounds) = event { *rounds } else { 1 };
            for _ in 0..rounds {
                model.reconcile()?;
                model.advance();
            }
        }
        let mut last = None;
        for _ in 0..MAX_RECONCILES {
            let plan = model.reconcile()?;
            if model.is_converged(&plan) {
                return Ok(());
            }
            last = Some(plan);
            model.advance();
        }
        prop_assert!(false, "did not converge: {:?}, members {:?}, pods {:?}", last.map(|plan| plan.step), model.members, model.pods);
    }
}

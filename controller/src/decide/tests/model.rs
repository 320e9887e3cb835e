//! A small world that reacts: whatever is asked for and whatever breaks, it comes to rest as it was asked for, and on the way no
//! step of ours costs it its quorum.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use mainstay_ids::ClusterId;
use proptest::prelude::*;

use super::fixture::*;
use crate::decide::{Known, Plan, Policy, Step, World, decide, quorum};
use crate::observe::{
    Finding, Members, Membership, Observation, Ordinal, PeerStage, SeenMember, SeenPod,
    SnapshotLease,
};
use crate::validate::{Wanted, WantedBackup};

/// What happens to the world from outside.
#[derive(Clone, Debug)]
enum Act {
    Replicas(u32),
    Image(bool),
    Tls(bool),
    /// A pod dies and is made again.
    Crash(u32),
    /// A volume is gone, with the pod.
    LoseVolume(u32),
    /// A volume is damaged.
    Damage(u32),
    /// Somebody deletes the StatefulSet and leaves its pods.
    LoseSet,
    Time(u8),
}

/// Data on a volume: of which member, and whether it is good.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Data {
    member: u64,
    is_good: bool,
}

#[derive(Clone, Debug)]
struct ModelPod {
    uid: u32,
    revision: String,
    is_up: bool,
    finding: Option<Finding>,
}

#[derive(Clone, Debug)]
struct ModelMember {
    id: u64,
    ordinal: u32,
    is_learner: bool,
    has_started: bool,
    stage: PeerStage,
}

struct Model {
    wanted: Wanted,
    now: Timestamp,
    set: Option<(u32, String, PeerStage, Option<u32>, String)>,
    pods: BTreeMap<u32, ModelPod>,
    data: BTreeMap<u32, Option<Data>>,
    members: Vec<ModelMember>,
    leader: Option<u64>,
    snapshot: Option<Timestamp>,
    /// The member each place last was, as its Lease tells.
    heard: BTreeMap<u32, u64>,
    serial: u32,
}

impl Model {
    fn new(replicas: u32, is_backed_up: bool) -> Self {
        let mut wanted = wanted(replicas);
        wanted.backup = is_backed_up.then_some(WantedBackup {
            schedule: None,
            delta_seconds: Some(20),
        });
        Self {
            wanted,
            now: noon(),
            set: None,
            pods: BTreeMap::new(),
            data: BTreeMap::new(),
            members: Vec::new(),
            leader: None,
            snapshot: None,
            heard: BTreeMap::new(),
            serial: 0,
        }
    }

    fn next(&mut self) -> u32 {
        self.serial += 1;
        self.serial
    }

    fn is_healthy(&self, member: &ModelMember) -> bool {
        let up = self.pods.get(&member.ordinal).is_some_and(|pod| pod.is_up);
        let data = self.data.get(&member.ordinal).copied().flatten();
        up && data.is_some_and(|data| data.member == member.id && data.is_good)
    }

    /// Healthy voters, and voters.
    fn votes(&self) -> (usize, usize) {
        let voters = || self.members.iter().filter(|member| !member.is_learner);
        (
            voters().filter(|member| self.is_healthy(member)).count(),
            voters().count(),
        )
    }

    fn has_quorum(&self) -> bool {
        let (well, all) = self.votes();
        all > 0 && well >= quorum(all)
    }

    /// What a pass would see.
    fn seen(&self) -> Observation {
        let ready = |ordinal: u32| {
            let healthy = self
                .members
                .iter()
                .any(|m| m.ordinal == ordinal && self.is_healthy(m));
            healthy && self.has_quorum()
        };
        let pods = self.pods.iter().map(|(ordinal, model)| {
            let seen = SeenPod {
                uid: model.uid.to_string(),
                is_ready: ready(*ordinal),
                has_ready_containers: ready(*ordinal),
                finding: model.finding,
                etcd_image: model.revision.split('/').next().map(str::to_owned),
                created: Some(self.now - SignedDuration::from_mins(2)),
                ..pod(*ordinal, &model.revision)
            };
            (Ordinal(*ordinal), seen)
        });
        let held = self.heard.iter().map(|(ordinal, member)| {
            let mut lease = lease(*ordinal, false);
            lease.held.as_mut().unwrap().member = mainstay_ids::MemberId(*member);
            let pod = self.pods.get(ordinal);
            lease.peer_tls = pod.map(|pod| pod.revision.ends_with("/On"));
            (Ordinal(*ordinal), lease)
        });
        Observation {
            set: self
                .set
                .as_ref()
                .map(|(replicas, revision, stage, noted, image)| {
                    let mut set = set(*replicas);
                    set.update_revision = Some(revision.clone());
                    (set.peer_stage, set.noted_size) = (*stage, *noted);
                    set.etcd_image = Some(image.clone());
                    set
                }),
            pods: pods.collect(),
            claims: self.data.keys().map(|n| (Ordinal(*n), claim(*n))).collect(),
            leases: held.collect(),
            full_snapshot: self.wanted.backup.as_ref().map(|_| SnapshotLease {
                created: Some(noon()),
                renewed: self.snapshot,
                revision: None,
            }),
            membership: self.membership(),
            ..Observation::default()
        }
    }

    fn membership(&self) -> Membership {
        if !self.has_quorum() {
            let alive = self.pods.iter().filter(|(_, pod)| pod.is_up);
            return Membership::Silent {
                why: "no leader".to_owned(),
                alive: alive.map(|(ordinal, _)| (Ordinal(*ordinal), 0)).collect(),
            };
        }
        let list = self.members.iter().map(|model| {
            let mut reply = answer(0);
            reply.leader = self.leader.map(mainstay_ids::MemberId);
            SeenMember {
                id: mainstay_ids::MemberId(model.id),
                name: if model.has_started {
                    self.wanted.member(Ordinal(model.ordinal))
                } else {
                    String::new()
                },
                ordinal: Some(Ordinal(model.ordinal)),
                peer_urls: self.wanted.peer_urls(Ordinal(model.ordinal), model.stage),
                is_learner: model.is_learner,
                answer: self.is_healthy(model).then_some(reply),
            }
        });
        Membership::Known(Members {
            cluster: ClusterId(7),
            list: list.collect(),
        })
    }

    fn plan(&self) -> (Plan, Observation) {
        let seen = self.seen();
        let policy = Policy {
            auto_reconcile: true,
            ..Policy::default()
        };
        let known = Known::default();
        let world = World {
            wanted: &self.wanted,
            seen: &seen,
            policy: &policy,
            known: &known,
            now: self.now,
        };
        (decide(&world), seen)
    }

    /// One pass of the controller: the plan is carried out at once.
    fn pass(&mut self) -> Result<Plan, TestCaseError> {
        let had_quorum = self.has_quorum();
        let voters_before = self.votes().1;
        let (plan, _) = self.plan();
        if let Some(shape) = &plan.shape {
            let image = shape
                .holds
                .etcd_image
                .clone()
                .unwrap_or_else(|| self.wanted.etcd_image.clone());
            let revision = format!("{image}/{:?}", shape.peer_stage);
            let noted = (shape.phase == crate::decide::Phase::Formed).then_some(shape.size);
            self.set = Some((shape.replicas, revision, shape.peer_stage, noted, image));
        }
        if let Some(step) = &plan.step {
            self.take(step);
        }
        let most = self.set.as_ref().map_or(0, |set| set.0);
        if self.wanted.replicas > 0 {
            let most = most.max(self.wanted.replicas);
            self.heard.retain(|ordinal, _| *ordinal < most);
        }
        let sleeps = self.set.as_ref().is_some_and(|set| set.0 == 0);
        if had_quorum && voters_before > 2 && !sleeps {
            prop_assert!(self.has_quorum(), "{:?} cost the quorum", plan.step);
        }
        Ok(plan)
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Snapshot { .. } => self.snapshot = Some(self.now),
            Step::DeletePod { ordinal, .. } => {
                self.pods.remove(&ordinal.0);
            }
            Step::DiscardClaim { ordinal, .. } => {
                self.data.remove(&ordinal.0);
                self.pods.remove(&ordinal.0);
            }
            Step::AddLearner { ordinal } => {
                let id = u64::from(self.next()) + 1_000;
                let stage = self.set.as_ref().map(|set| set.2).unwrap_or_default();
                self.members.push(ModelMember {
                    id,
                    ordinal: ordinal.0,
                    is_learner: true,
                    has_started: false,
                    stage,
                });
            }
            Step::Promote { member, .. } => {
                let promoted = self.members.iter_mut().find(|one| one.id == member.0);
                promoted.expect("a learner").is_learner = false;
            }
            Step::RemoveMember { member, .. } => self.members.retain(|one| one.id != member.0),
            Step::MoveLeader { to, .. } => self.leader = Some(to.0),
            Step::UpdatePeerUrls { member, .. } => {
                let stage = self.set.as_ref().map(|set| set.2).unwrap_or_default();
                let moved = self.members.iter_mut().find(|one| one.id == member.0);
                moved.expect("a member").stage = if stage == PeerStage::On {
                    PeerStage::On
                } else {
                    PeerStage::Off
                };
            }
            _ => {}
        }
    }

    /// The controller of every StatefulSet, the kubelet and etcd do their part.
    fn react(&mut self) {
        self.now += SignedDuration::from_secs(10);
        let Some((replicas, revision, stage, ..)) = self.set.clone() else {
            return;
        };
        self.pods.retain(|ordinal, _| *ordinal < replicas);
        for ordinal in 0..replicas {
            if !self.pods.contains_key(&ordinal) {
                let uid = self.next();
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
            self.found(replicas, stage);
        }
        let ordinals: Vec<u32> = self.pods.keys().copied().collect();
        for ordinal in ordinals {
            self.start(ordinal);
        }
        let leads = |model: &Self| {
            model
                .members
                .iter()
                .any(|m| Some(m.id) == model.leader && !m.is_learner && model.is_healthy(m))
        };
        if !leads(self) {
            let heir = self
                .members
                .iter()
                .find(|m| !m.is_learner && self.is_healthy(m));
            self.leader = heir.map(|m| m.id);
        }
    }

    fn found(&mut self, replicas: u32, stage: PeerStage) {
        for ordinal in 0..replicas {
            let id = u64::from(self.next()) + 1_000;
            self.members.push(ModelMember {
                id,
                ordinal,
                is_learner: false,
                has_started: true,
                stage,
            });
            self.data.insert(
                ordinal,
                Some(Data {
                    member: id,
                    is_good: true,
                }),
            );
        }
    }

    /// What init decides and etcd then does. Init runs until it lets etcd start, and not again in the same pod.
    fn start(&mut self, ordinal: u32) {
        let member = self
            .members
            .iter()
            .position(|member| member.ordinal == ordinal);
        let data = self.data.get(&ordinal).copied().flatten();
        let (finding, is_up) = match (data, member) {
            (Some(Data { is_good: false, .. }), _) => (Finding::Corrupt, false),
            (Some(data), Some(at)) if self.members[at].id == data.member => (Finding::Good, true),
            (Some(_), _) => (Finding::Foreign, false),
            (None, Some(at)) if !self.members[at].has_started => {
                self.members[at].has_started = true;
                let id = self.members[at].id;
                self.data.insert(
                    ordinal,
                    Some(Data {
                        member: id,
                        is_good: true,
                    }),
                );
                (Finding::Good, true)
            }
            (None, _) => (Finding::Waits, false),
        };
        if is_up && let Some(at) = member {
            self.heard.insert(ordinal, self.members[at].id);
        }
        let pod = self.pods.get_mut(&ordinal).expect("a pod");
        pod.is_up = is_up;
        if pod.finding != Some(Finding::Good) {
            pod.finding = Some(finding);
        }
    }

    /// Something from outside. What would take a quorum's data is not this test's matter.
    fn happens(&mut self, act: &Act) {
        let (well, all) = self.votes();
        let is_whole = all >= 3 && well == all && self.members.iter().all(|m| !m.is_learner);
        match act {
            Act::Replicas(replicas) => self.wanted.replicas = *replicas,
            Act::Image(is_new) => {
                self.wanted.etcd_image = if *is_new { "etcd:v3.5.30" } else { IMAGE }.to_owned();
            }
            Act::Tls(tls) => self.wanted.peers.tls = *tls,
            Act::Crash(ordinal) => {
                self.pods.remove(ordinal);
            }
            Act::LoseVolume(ordinal) if is_whole => {
                self.pods.remove(ordinal);
                self.data.remove(ordinal);
            }
            Act::Damage(ordinal) if is_whole => {
                self.pods.remove(ordinal);
                if let Some(Some(data)) = self.data.get_mut(ordinal) {
                    data.is_good = false;
                }
            }
            Act::LoseSet => self.set = None,
            Act::LoseVolume(_) | Act::Damage(_) | Act::Time(_) => {}
        }
    }

    fn is_as_wanted(&self, plan: &Plan) -> bool {
        let Some((replicas, revision, stage, ..)) = &self.set else {
            return false;
        };
        let goal = if self.wanted.peers.tls {
            PeerStage::On
        } else {
            PeerStage::Off
        };
        let names: BTreeSet<u32> = self.members.iter().map(|member| member.ordinal).collect();
        let sleeps = *replicas == 0;
        plan.is_settled()
            && *replicas == self.wanted.replicas
            && (sleeps || *stage == goal)
            && (sleeps || names == (0..*replicas).collect())
            && self
                .members
                .iter()
                .all(|member| sleeps || (!member.is_learner && self.is_healthy(member)))
            && self.pods.values().all(|pod| pod.revision == *revision)
    }
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => prop_oneof![Just(0_u32), Just(1), Just(3), Just(5), 1..6_u32].prop_map(Act::Replicas),
        1 => any::<bool>().prop_map(Act::Image),
        1 => any::<bool>().prop_map(Act::Tls),
        2 => (0..5_u32).prop_map(Act::Crash),
        1 => (0..5_u32).prop_map(Act::LoseVolume),
        1 => (0..5_u32).prop_map(Act::Damage),
        1 => Just(Act::LoseSet),
        4 => (1..20_u8).prop_map(Act::Time),
    ];
    prop::collection::vec(act, 1..12)
}

/// More passes than any of these ways takes.
const PATIENCE: usize = 400;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_asked_and_whatever_breaks_it_comes_to_rest_as_asked(
        first in 1_u32..6,
        is_backed_up in any::<bool>(),
        acts in acts(),
    ) {
        let mut model = Model::new(first, is_backed_up);
        for act in &acts {
            model.happens(act);
            let rounds = if let Act::Time(rounds) = act { *rounds } else { 1 };
            for _ in 0..rounds {
                model.pass()?;
                model.react();
            }
        }
        let mut last = None;
        for _ in 0..PATIENCE {
            let plan = model.pass()?;
            if model.is_as_wanted(&plan) {
                return Ok(());
            }
            last = Some(plan);
            model.react();
        }
        prop_assert!(false, "never at rest: {:?}, members {:?}, pods {:?}", last.map(|plan| plan.step), model.members, model.pods);
    }
}

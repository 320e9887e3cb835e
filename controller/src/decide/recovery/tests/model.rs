//! A small world that reacts: whatever is lost, and whenever the controller is killed, data that can be had comes back, from the
//! best copy, and no volume is written while a pod may use it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use mainstay_coordination::Epoch;
use mainstay_coordination::incident::{Incident, Source, Stage};
use mainstay_crds::etcd::RecoveryMode;
use mainstay_ids::{ClusterId, MemberId};
use mainstay_verdict::Done;
use proptest::prelude::*;

use crate::decide::recovery::{Hold, Recovery, Task};
use crate::decide::tests::fixture::*;
use crate::decide::{Blocker, Known, Plan, Policy, Step, World, decide, quorum};
use crate::observe::{
    Answer, FailureClass, Finding, JobFailure, JobState, Members, Membership, Observation, Ordinal,
    SeenJob, SeenLease, SeenLock, SeenMember, SeenPod, SeenRecovery,
};
use crate::validate::{Wanted, WantedBackup};

/// What a volume holds: data of one cluster, up to a revision, good or not.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Data {
    cluster: u64,
    revision: i64,
    is_good: bool,
}

struct Model {
    wanted: Wanted,
    now: Timestamp,
    replicas: u32,
    /// Pods, and whether init has looked.
    pods: BTreeMap<u32, bool>,
    volumes: BTreeMap<u32, Option<Data>>,
    aside: Vec<Data>,
    /// Members of the cluster that counts.
    cluster: u64,
    members: Vec<u32>,
    learners: Vec<u32>,
    /// Whether etcd answers without a quorum: most versions do not after a restart.
    answers_alone: bool,
    backup: Option<i64>,
    epoch: u64,
    held: Option<Timestamp>,
    incident: Option<Incident>,
    jobs: BTreeMap<u32, (SeenJob, Task)>,
    /// Under which epoch the last Job on a volume was launched.
    sent: BTreeMap<u32, u64>,
    /// Epochs that volumes remember, of documents that are lost.
    marks: BTreeMap<u32, u64>,
    /// Epochs the controller went above.
    outranked: Vec<u64>,
    loss_since: Option<Timestamp>,
    /// What fails next.
    trouble: Vec<bool>,
}

impl Model {
    fn new(size: u32, revision: i64, backup: Option<i64>) -> Self {
        let mut wanted = wanted(size);
        wanted.recovery.mode = RecoveryMode::Automatic;
        wanted.backup = backup.map(|_| WantedBackup {
            schedule: None,
            delta_seconds: Some(20),
        });
        let data = Data {
            cluster: 1,
            revision,
            is_good: true,
        };
        Self {
            wanted,
            now: noon(),
            replicas: size,
            pods: (0..size).map(|n| (n, true)).collect(),
            volumes: (0..size).map(|n| (n, Some(data))).collect(),
            aside: Vec::new(),
            cluster: 1,
            members: (0..size).collect(),
            learners: Vec::new(),
            answers_alone: true,
            backup,
            epoch: 0,
            held: None,
            incident: None,
            jobs: BTreeMap::new(),
            sent: BTreeMap::new(),
            marks: BTreeMap::new(),
            outranked: Vec::new(),
            loss_since: None,
            trouble: Vec::new(),
        }
    }

    fn is_up(&self, ordinal: u32) -> bool {
        let data = self.volumes.get(&ordinal).copied().flatten();
        let is_its = |data: Data| data.is_good && data.cluster == self.cluster;
        self.pods.get(&ordinal) == Some(&true)
            && data.is_some_and(is_its)
            && (self.members.contains(&ordinal) || self.learners.contains(&ordinal))
    }

    fn has_quorum(&self) -> bool {
        let up = self.members.iter().filter(|n| self.is_up(**n)).count();
        up >= quorum(self.members.len())
    }

    fn revision(&self, ordinal: u32) -> Option<i64> {
        self.volumes.get(&ordinal)?.map(|data| data.revision)
    }

    fn finding(&self, ordinal: u32) -> Finding {
        match self.volumes.get(&ordinal).copied().flatten() {
            Some(data) if !data.is_good => Finding::Corrupt,
            Some(data) if data.cluster == self.cluster => Finding::Good,
            Some(_) => Finding::Foreign,
            None if self.learners.contains(&ordinal) => Finding::Good,
            None if self.members.iter().any(|n| self.is_up(*n)) => Finding::Waits,
            None => Finding::NeedsRestore,
        }
    }

    fn membership(&self) -> Membership {
        let alive = self.members.iter().copied().filter(|n| self.is_up(*n));
        if !self.has_quorum() {
            return Membership::Silent {
                why: "no leader".to_owned(),
                alive: alive
                    .filter(|_| self.answers_alone)
                    .map(|ordinal| (Ordinal(ordinal), self.revision(ordinal).unwrap_or_default()))
                    .collect(),
            };
        }
        let leader = alive.clone().next().unwrap_or_default();
        let all = self.members.iter().chain(&self.learners);
        let list = all.map(|ordinal| SeenMember {
            id: MemberId(u64::from(*ordinal) + 100 * self.cluster),
            name: self.wanted.member(Ordinal(*ordinal)),
            ordinal: Some(Ordinal(*ordinal)),
            peer_urls: self
                .wanted
                .peer_urls(Ordinal(*ordinal), crate::observe::PeerStage::Off),
            is_learner: self.learners.contains(ordinal),
            answer: self.is_up(*ordinal).then(|| Answer {
                leader: Some(MemberId(u64::from(leader) + 100 * self.cluster)),
                cluster: ClusterId(self.cluster),
                revision: self.revision(*ordinal).unwrap_or_default(),
                ..answer(0)
            }),
        });
        Membership::Known(Members {
            cluster: ClusterId(self.cluster),
            list: list.collect(),
        })
    }

    fn seen(&self) -> Observation {
        let pods = self.pods.iter().map(|(ordinal, is_initialised)| {
            let is_ready = self.is_up(*ordinal) && self.has_quorum();
            let seen = SeenPod {
                is_ready,
                has_ready_containers: is_ready,
                finding: is_initialised.then(|| self.finding(*ordinal)),
                reaches: self.revision(*ordinal),
                ..pod(*ordinal, OLD)
            };
            (Ordinal(*ordinal), seen)
        });
        let leases = (0..self.wanted.replicas).map(|ordinal| {
            let renewed = if self.is_up(ordinal) {
                self.now
            } else {
                ago(10_000)
            };
            let mut lease = SeenLease {
                renewed: Some(renewed),
                ..lease(ordinal, false)
            };
            let cluster = if self.is_up(ordinal) { self.cluster } else { 1 };
            lease.held.as_mut().expect("a holder").cluster = Some(ClusterId(cluster));
            (Ordinal(ordinal), lease)
        });
        let mut set = set(self.replicas);
        set.noted_size = Some(self.wanted.replicas);
        Observation {
            set: Some(set),
            pods: pods.collect(),
            claims: self
                .volumes
                .keys()
                .map(|n| (Ordinal(*n), claim(*n)))
                .collect(),
            leases: leases.collect(),
            membership: self.membership(),
            recovery: SeenRecovery {
                lock: match self.held {
                    Some(renewed) => SeenLock::Ours {
                        epoch: Epoch(self.epoch),
                        renewed,
                    },
                    None => SeenLock::Free {
                        epoch: Epoch(self.epoch),
                    },
                },
                incident: self.incident.clone(),
                jobs: self
                    .jobs
                    .iter()
                    .map(|(n, (job, _))| (Ordinal(*n), job.clone()))
                    .collect(),
                ..SeenRecovery::default()
            },
            ..Observation::default()
        }
    }

    fn plan(&self) -> Plan {
        let (seen, policy) = (
            self.seen(),
            Policy {
                auto_reconcile: true,
                ..Policy::default()
            },
        );
        let known = Known {
            loss_since: self.loss_since,
            ..Known::default()
        };
        decide(&World {
            wanted: &self.wanted,
            seen: &seen,
            policy: &policy,
            known: &known,
            now: self.now,
        })
    }

    /// One pass; a controller that is killed does nothing in it.
    fn pass(&mut self, is_killed: bool) -> Result<Plan, TestCaseError> {
        let plan = self.plan();
        let tells_loss = matches!(
            plan.step.as_ref().and_then(Step::blocker),
            Some(Blocker::RecoveryNeeded(_))
        ) || matches!(plan.step, Some(Step::Recover(_)));
        self.loss_since = tells_loss.then(|| self.loss_since.unwrap_or(self.now));
        if !is_killed && let Some(step) = &plan.step {
            self.take(step)?;
        }
        Ok(plan)
    }

    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Recover(step) => self.recover(step)?,
            Step::AddLearner { ordinal } => self.learners.push(ordinal.0),
            Step::Promote { ordinal, .. } => {
                self.learners.retain(|n| *n != ordinal.0);
                self.members.push(ordinal.0);
            }
            Step::RemoveMember { ordinal, .. } => self.members.retain(|n| *n != ordinal.0),
            Step::DiscardClaim { ordinal, .. } => {
                let up = self.members.iter().filter(|n| self.is_up(**n)).count();
                let is_whole = up >= quorum(self.wanted.replicas as usize);
                prop_assert!(is_whole, "a volume is deleted before the cluster is whole");
                self.volumes.insert(ordinal.0, None);
                self.pods.remove(&ordinal.0);
            }
            _ => {}
        }
        Ok(())
    }

    fn recover(&mut self, step: &Recovery) -> Result<(), TestCaseError> {
        match step {
            Recovery::Open(incident) => {
                self.epoch += u64::from(self.held.is_none());
                self.held = Some(self.now);
                self.incident = Some((**incident).clone());
            }
            Recovery::Reclaim => {
                self.epoch += 1;
                self.held = Some(self.now);
            }
            Recovery::Outrank { above } => {
                prop_assert!(self.held.is_some(), "only who holds the lock raises it");
                prop_assert!(above.0 >= self.epoch, "once is enough");
                self.outranked.push(above.0);
                self.epoch = above.0 + 1;
                self.held = Some(self.now);
            }
            Recovery::Renew(_) => self.held = Some(self.now),
            Recovery::Release => self.held = None,
            Recovery::Scale { to, .. } => self.replicas = *to,
            Recovery::Launch {
                ordinal,
                task,
                incident,
            } => {
                prop_assert!(self.pods.is_empty(), "a pod may use the volume");
                let job = SeenJob {
                    uid: format!("{ordinal}-{}", incident.attempt),
                    incident: Some(incident.token.clone()),
                    attempt: incident.attempt,
                    ..SeenJob::default()
                };
                self.jobs.insert(ordinal.0, (job, *task));
                self.sent.insert(ordinal.0, self.epoch);
            }
            Recovery::RemoveJob { ordinal, .. } => {
                self.jobs.remove(&ordinal.0);
            }
            Recovery::Record { from, to } => {
                prop_assert_eq!(self.incident.as_ref(), Some(&**from));
                self.incident = Some((**to).clone());
            }
            Recovery::Close { to, .. } => {
                self.jobs.clear();
                self.incident = Some((**to).clone());
                self.held = None;
            }
        }
        Ok(())
    }

    /// Kubernetes, the Jobs and etcd do their part.
    fn react(&mut self) -> Result<(), TestCaseError> {
        self.now += SignedDuration::from_secs(10);
        self.pods.retain(|ordinal, _| *ordinal < self.replicas);
        for ordinal in 0..self.replicas {
            self.pods
                .entry(ordinal)
                .and_modify(|is_initialised| *is_initialised = true)
                .or_insert(false);
            if self.learners.contains(&ordinal) && self.volumes[&ordinal].is_none() {
                let base = self.members.iter().find(|n| self.is_up(**n)).copied();
                let data = base.and_then(|base| self.volumes[&base]);
                self.volumes.insert(ordinal, data);
            }
        }
        let running: Vec<u32> = self
            .jobs
            .iter()
            .filter(|(_, (job, _))| job.state == JobState::Running)
            .map(|(ordinal, _)| *ordinal)
            .collect();
        for ordinal in running {
            self.finish(ordinal)?;
        }
        Ok(())
    }

    fn finish(&mut self, ordinal: u32) -> Result<(), TestCaseError> {
        prop_assert!(self.pods.is_empty(), "a pod may use the volume");
        let (at, task) = (self.now, self.jobs[&ordinal].1);
        let (sent, mark) = (self.sent[&ordinal], self.marks.get(&ordinal).copied());
        let overtaken_by = mark.filter(|mark| *mark > sent);
        let fails = overtaken_by.is_none() && self.trouble.pop().unwrap_or(false);
        if overtaken_by.is_none() {
            self.marks.insert(ordinal, sent);
        }
        let state = match (fails, task) {
            _ if overtaken_by.is_some() => JobState::Failed {
                at,
                failure: JobFailure {
                    class: FailureClass::Process,
                    verdict: Some("in-use".to_owned()),
                    overtaken_by: overtaken_by.map(Epoch),
                    words: "somebody else writes this volume now".to_owned(),
                },
            },
            (true, _) => JobState::Failed {
                at,
                failure: JobFailure {
                    class: FailureClass::Process,
                    verdict: Some("store-unavailable".to_owned()),
                    overtaken_by: None,
                    words: "no answer".to_owned(),
                },
            },
            (false, Task::SetAside) => {
                let old = self.volumes.insert(ordinal, None).flatten();
                self.aside.extend(old);
                JobState::Succeeded {
                    at,
                    done: Done::default(),
                }
            }
            (false, Task::Restore) => self.restored(ordinal, at),
        };
        self.jobs.get_mut(&ordinal).expect("a Job").0.state = state;
        Ok(())
    }

    /// What the restorer does: the best copy, as a new cluster, with what was there put aside.
    fn restored(&mut self, ordinal: u32, at: Timestamp) -> JobState {
        let incident = self.incident.as_ref().expect("an incident");
        let own = self.volumes[&ordinal].filter(|data| data.is_good);
        let own = own.filter(|data| {
            incident.source == Source::BestCopy
                && self.backup.is_none_or(|backup| data.revision >= backup)
        });
        let revision = own.map(|data| data.revision).or(self.backup);
        let Some(revision) = revision else {
            return JobState::Failed {
                at,
                failure: JobFailure {
                    class: FailureClass::Process,
                    verdict: Some("no-backup".to_owned()),
                    overtaken_by: None,
                    words: "there is no backup".to_owned(),
                },
            };
        };
        self.aside.extend(self.volumes[&ordinal]);
        self.cluster += 1;
        let data = Data {
            cluster: self.cluster,
            revision: revision + 1_000_000,
            is_good: true,
        };
        self.volumes.insert(ordinal, Some(data));
        (self.members, self.learners) = (vec![ordinal], Vec::new());
        JobState::Succeeded {
            at,
            done: Done {
                revision: Some(revision),
                start_revision: Some(data.revision),
                cluster_id: Some(ClusterId(self.cluster).to_string()),
                ..Done::default()
            },
        }
    }

    fn is_whole(&self) -> bool {
        let mut members = self.members.clone();
        members.sort_unstable();
        members == (0..self.wanted.replicas).collect::<Vec<_>>()
            && members.iter().all(|n| self.is_up(*n))
            && self.incident.as_ref().is_none_or(|one| !one.is_open())
            && self.held.is_none()
    }
}

#[derive(Clone, Copy, Debug)]
enum Loss {
    Gone,
    Damaged,
}

fn losses() -> impl Strategy<Value = BTreeMap<u32, Loss>> {
    let loss = prop_oneof![Just(Loss::Gone), Just(Loss::Damaged)];
    prop::collection::btree_map(0_u32..5, loss, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_lost_the_best_copy_comes_back_and_nothing_is_thrown_away(
        size in prop_oneof![Just(1_u32), Just(3), Just(5)],
        revision in 10_i64..100,
        backup in prop::option::weighted(0.8, 1_i64..110),
        losses in losses(),
        kills in prop::collection::vec(any::<bool>(), 0..60),
        trouble in prop::collection::vec(any::<bool>(), 0..4),
        marks in prop::collection::btree_map(0_u32..5, 0_u64..9, 0..4),
        answers_alone in any::<bool>(),
    ) {
        let mut model = Model::new(size, revision, backup);
        model.answers_alone = answers_alone;
        (model.trouble, model.marks) = (trouble, marks.clone());
        let mut damaged = 0;
        for (ordinal, loss) in losses.iter().filter(|(ordinal, _)| **ordinal < size) {
            let slot = model.volumes.get_mut(ordinal).expect("a volume");
            match (loss, slot.as_mut()) {
                (Loss::Damaged, Some(data)) => { data.is_good = false; damaged += 1; }
                _ => *slot = None,
            }
        }
        let survivors = model.volumes.values().filter(|v| v.is_some_and(|data| data.is_good)).count();
        let had_quorum = survivors >= quorum(size as usize);
        let can_be_had = survivors > 0 || backup.is_some();
        let mut last = None;
        for round in 0..400_usize {
            let plan = model.pass(kills.get(round).copied().unwrap_or(false))?;
            model.react()?;
            if model.is_whole() { break; }
            last = Some(plan);
        }
        let mut outranked = model.outranked.clone();
        outranked.dedup();
        prop_assert_eq!(&outranked, &model.outranked, "no epoch is gone above twice");
        prop_assert!(outranked.is_sorted() && outranked.iter().all(|above| marks.values().any(|mark| mark == above)));
        if !can_be_had {
            let on = last.as_ref().and_then(|plan| plan.step.as_ref()).and_then(Step::blocker).cloned();
            prop_assert_eq!(on, Some(Blocker::RecoveryNeeded(Hold::NothingToRestore)));
            return Ok(());
        }
        prop_assert!(model.is_whole(), "never whole: {:?} {:?}", last, model.incident);
        prop_assert_eq!(model.cluster > 1, !had_quorum, "a quorum needs no recovery, its loss does");
        if !had_quorum {
            let best = if survivors > 0 { revision.max(backup.unwrap_or(0)) } else { backup.unwrap_or(0) };
            let restored = model.volumes[&0].expect("data").revision;
            prop_assert_eq!(restored, best + 1_000_000);
            let kept = model.aside.iter().filter(|data| !data.is_good).count();
            prop_assert_eq!(kept, damaged, "damaged data is kept for whoever wants to look");
            prop_assert_eq!(model.incident.as_ref().map(|one| one.stage), Some(Stage::Closed));
        }
    }
}

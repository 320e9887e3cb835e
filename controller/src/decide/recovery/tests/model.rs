//! A model of a cluster that loses data: whatever is lost, and whenever the controller is killed, the best available copy is
//! restored, and no volume is written while a pod may mount it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use mainstay_coordination::Epoch;
use mainstay_coordination::incident::{Incident, RecoverySource, RecoveryStage};
use mainstay_crds::etcd::RecoveryMode;
use mainstay_ids::{ClusterId, MemberId};
use mainstay_verdict::CommandDetails;
use proptest::prelude::*;

use crate::decide::decide;
use crate::decide::tests::fixture::*;
use crate::model::{
    Blocker, DesiredBackup, DesiredState, EndpointStatus, FailureClass, InitFinding, JobFailure,
    JobState, LastKnown, Observation, ObservedEtcdMember, ObservedJob, ObservedLock,
    ObservedMemberLease, ObservedMembership, ObservedPod, ObservedRecovery, Ordinal, QuorumMembers,
    ReconcilePlan, ReconcilePolicy, ReconcileStep, RecoveryBlocker, RecoveryJobKind, RecoveryStep,
    World, quorum,
};

/// Data on a volume: its cluster, its revision, and whether it is intact.
#[derive(Clone, Copy, Debug, PartialEq)]
struct VolumeContent {
    cluster: u64,
    revision: i64,
    is_good: bool,
}

struct RecoveryModel {
    desired: DesiredState,
    now: Timestamp,
    replicas: u32,
    /// Pods, and whether the init check has run.
    pods: BTreeMap<u32, bool>,
    volumes: BTreeMap<u32, Option<VolumeContent>>,
    previous_data: Vec<VolumeContent>,
    /// The current cluster; data of other clusters is foreign.
    cluster: u64,
    members: Vec<u32>,
    learners: Vec<u32>,
    /// Whether etcd answers without quorum; most versions do not after a restart.
    answers_without_quorum: bool,
    backup: Option<i64>,
    epoch: u64,
    lock_renewed: Option<Timestamp>,
    incident: Option<Incident>,
    jobs: BTreeMap<u32, (ObservedJob, RecoveryJobKind)>,
    /// Lock epoch of the last Job on each volume.
    job_epochs: BTreeMap<u32, u64>,
    /// Epochs recorded on volumes, from lost coordination documents.
    volume_epochs: BTreeMap<u32, u64>,
    /// Epochs above which the controller raised the lock.
    raised_above: Vec<u64>,
    data_lost_since: Option<Timestamp>,
    /// Whether the next Jobs fail.
    job_failures: Vec<bool>,
}

impl RecoveryModel {
    fn new(size: u32, revision: i64, backup: Option<i64>) -> Self {
        let mut desired_state = desired(size);
        desired_state.recovery.mode = RecoveryMode::Automatic;
        desired_state.backup = backup.map(|_| DesiredBackup {
            full_schedule: None,
            delta_period_seconds: Some(20),
        });
        let data = VolumeContent {
            cluster: 1,
            revision,
            is_good: true,
        };
        Self {
            desired: desired_state,
            now: noon(),
            replicas: size,
            pods: (0..size).map(|n| (n, true)).collect(),
            volumes: (0..size).map(|n| (n, Some(data))).collect(),
            previous_data: Vec::new(),
            cluster: 1,
            members: (0..size).collect(),
            learners: Vec::new(),
            answers_without_quorum: true,
            backup,
            epoch: 0,
            lock_renewed: None,
            incident: None,
            jobs: BTreeMap::new(),
            job_epochs: BTreeMap::new(),
            volume_epochs: BTreeMap::new(),
            raised_above: Vec::new(),
            data_lost_since: None,
            job_failures: Vec::new(),
        }
    }

    fn is_up(&self, ordinal: u32) -> bool {
        let data = self.volumes.get(&ordinal).copied().flatten();
        let is_current = |data: VolumeContent| data.is_good && data.cluster == self.cluster;
        self.pods.get(&ordinal) == Some(&true)
            && data.is_some_and(is_current)
            && (self.members.contains(&ordinal) || self.learners.contains(&ordinal))
    }

    fn has_quorum(&self) -> bool {
        let up = self.members.iter().filter(|n| self.is_up(**n)).count();
        up >= quorum(self.members.len())
    }

    fn revision(&self, ordinal: u32) -> Option<i64> {
        self.volumes.get(&ordinal)?.map(|data| data.revision)
    }

    fn finding(&self, ordinal: u32) -> InitFinding {
        match self.volumes.get(&ordinal).copied().flatten() {
            Some(data) if !data.is_good => InitFinding::Corrupt,
            Some(data) if data.cluster == self.cluster => InitFinding::CanStart,
            Some(_) => InitFinding::Foreign,
            None if self.learners.contains(&ordinal) => InitFinding::CanStart,
            None if self.members.iter().any(|n| self.is_up(*n)) => InitFinding::WaitingToJoin,
            None => InitFinding::NeedsRestore,
        }
    }

    fn membership(&self) -> ObservedMembership {
        let serving = self.members.iter().copied().filter(|n| self.is_up(*n));
        if !self.has_quorum() {
            return ObservedMembership::NoQuorum {
                reason: "no leader".to_owned(),
                reachable: serving
                    .filter(|_| self.answers_without_quorum)
                    .map(|ordinal| (Ordinal(ordinal), self.revision(ordinal).unwrap_or_default()))
                    .collect(),
            };
        }
        let leader = serving.clone().next().unwrap_or_default();
        let all = self.members.iter().chain(&self.learners);
        let list = all.map(|ordinal| ObservedEtcdMember {
            id: MemberId(u64::from(*ordinal) + 100 * self.cluster),
            name: self.desired.member_name(Ordinal(*ordinal)),
            ordinal: Some(Ordinal(*ordinal)),
            peer_urls: self
                .desired
                .peer_urls(Ordinal(*ordinal), crate::model::PeerTlsStage::Off),
            is_learner: self.learners.contains(ordinal),
            status: self.is_up(*ordinal).then(|| EndpointStatus {
                leader: Some(MemberId(u64::from(leader) + 100 * self.cluster)),
                cluster_id: ClusterId(self.cluster),
                revision: self.revision(*ordinal).unwrap_or_default(),
                ..answer(0)
            }),
        });
        ObservedMembership::Known(QuorumMembers {
            cluster_id: ClusterId(self.cluster),
            list: list.collect(),
        })
    }

    fn observe(&self) -> Observation {
        let pods = self.pods.iter().map(|(ordinal, is_initialised)| {
            let is_ready = self.is_up(*ordinal) && self.has_quorum();
            let observed = ObservedPod {
                is_ready,
                has_ready_containers: is_ready,
                finding: is_initialised.then(|| self.finding(*ordinal)),
                data_revision: self.revision(*ordinal),
                ..pod(*ordinal, OLD_REVISION)
            };
            (Ordinal(*ordinal), observed)
        });
        let leases = (0..self.desired.replicas).map(|ordinal| {
            let renewed_at = if self.is_up(ordinal) {
                self.now
            } else {
                ago(10_000)
            };
            let mut lease = ObservedMemberLease {
                renewed_at: Some(renewed_at),
                ..lease(ordinal, false)
            };
            let cluster = if self.is_up(ordinal) { self.cluster } else { 1 };
            lease.holder.as_mut().expect("a holder").cluster_id = Some(ClusterId(cluster));
            (Ordinal(ordinal), lease)
        });
        let mut set = stateful_set(self.replicas);
        set.recorded_size = Some(self.desired.replicas);
        Observation {
            stateful_set: Some(set),
            pods: pods.collect(),
            pvcs: self
                .volumes
                .keys()
                .map(|n| (Ordinal(*n), pvc(*n)))
                .collect(),
            leases: leases.collect(),
            membership: self.membership(),
            recovery: ObservedRecovery {
                lock: match self.lock_renewed {
                    Some(renewed_at) => ObservedLock::HeldByUs {
                        epoch: Epoch(self.epoch),
                        renewed_at,
                    },
                    None => ObservedLock::Free {
                        epoch: Epoch(self.epoch),
                    },
                },
                incident: self.incident.clone(),
                jobs: self
                    .jobs
                    .iter()
                    .map(|(n, (job, _))| (Ordinal(*n), job.clone()))
                    .collect(),
                ..ObservedRecovery::default()
            },
            ..Observation::default()
        }
    }

    fn plan(&self) -> ReconcilePlan {
        let (observed, policy) = (
            self.observe(),
            ReconcilePolicy {
                auto_reconcile: true,
                ..ReconcilePolicy::default()
            },
        );
        let known = LastKnown {
            data_lost_since: self.data_lost_since,
            ..LastKnown::default()
        };
        decide(&World {
            desired: &self.desired,
            observed: &observed,
            policy: &policy,
            last_known: &known,
            now: self.now,
        })
    }

    /// One reconcile; a killed controller plans but does not act.
    fn reconcile(&mut self, is_killed: bool) -> Result<ReconcilePlan, TestCaseError> {
        let plan = self.plan();
        let is_loss_reported = matches!(
            plan.step.as_ref().and_then(ReconcileStep::blocker),
            Some(Blocker::RecoveryBlocked(_))
        ) || matches!(plan.step, Some(ReconcileStep::Recover(_)));
        self.data_lost_since = is_loss_reported.then(|| self.data_lost_since.unwrap_or(self.now));
        if !is_killed && let Some(step) = &plan.step {
            self.apply_step(step)?;
        }
        Ok(plan)
    }

    fn apply_step(&mut self, step: &ReconcileStep) -> Result<(), TestCaseError> {
        match step {
            ReconcileStep::Recover(step) => self.apply_recovery_step(step)?,
            ReconcileStep::AddLearner { ordinal } => self.learners.push(ordinal.0),
            ReconcileStep::Promote { ordinal, .. } => {
                self.learners.retain(|n| *n != ordinal.0);
                self.members.push(ordinal.0);
            }
            ReconcileStep::RemoveMember { ordinal, .. } => self.members.retain(|n| *n != ordinal.0),
            ReconcileStep::DeletePvc { ordinal, .. } => {
                let up = self.members.iter().filter(|n| self.is_up(**n)).count();
                let has_healthy_quorum = up >= quorum(self.desired.replicas as usize);
                prop_assert!(
                    has_healthy_quorum,
                    "a PVC is deleted before a quorum is healthy"
                );
                self.volumes.insert(ordinal.0, None);
                self.pods.remove(&ordinal.0);
            }
            _ => {}
        }
        Ok(())
    }

    fn apply_recovery_step(&mut self, step: &RecoveryStep) -> Result<(), TestCaseError> {
        match step {
            RecoveryStep::OpenIncident(incident) => {
                self.epoch += u64::from(self.lock_renewed.is_none());
                self.lock_renewed = Some(self.now);
                self.incident = Some((**incident).clone());
            }
            RecoveryStep::ReacquireLock => {
                self.epoch += 1;
                self.lock_renewed = Some(self.now);
            }
            RecoveryStep::RaiseEpoch { above } => {
                prop_assert!(
                    self.lock_renewed.is_some(),
                    "only the lock holder raises the epoch"
                );
                prop_assert!(above.0 >= self.epoch, "the epoch is already higher");
                self.raised_above.push(above.0);
                self.epoch = above.0 + 1;
                self.lock_renewed = Some(self.now);
            }
            RecoveryStep::RenewLock(_) => self.lock_renewed = Some(self.now),
            RecoveryStep::ReleaseLock => self.lock_renewed = None,
            RecoveryStep::Scale { to, .. } => self.replicas = *to,
            RecoveryStep::CreateJob {
                ordinal,
                kind,
                incident,
            } => {
                prop_assert!(self.pods.is_empty(), "a pod may mount the volume");
                let job = ObservedJob {
                    uid: format!("{ordinal}-{}", incident.attempt),
                    incident_token: Some(incident.token.clone()),
                    attempt: incident.attempt,
                    ..ObservedJob::default()
                };
                self.jobs.insert(ordinal.0, (job, *kind));
                self.job_epochs.insert(ordinal.0, self.epoch);
            }
            RecoveryStep::DeleteJob { ordinal, .. } => {
                self.jobs.remove(&ordinal.0);
            }
            RecoveryStep::RecordIncident { from, to } => {
                prop_assert_eq!(self.incident.as_ref(), Some(&**from));
                self.incident = Some((**to).clone());
            }
            RecoveryStep::CloseIncident { to, .. } => {
                self.jobs.clear();
                self.incident = Some((**to).clone());
                self.lock_renewed = None;
            }
        }
        Ok(())
    }

    /// Simulates Kubernetes, the Jobs and etcd.
    fn advance(&mut self) -> Result<(), TestCaseError> {
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
            self.finish_job(ordinal)?;
        }
        Ok(())
    }

    fn finish_job(&mut self, ordinal: u32) -> Result<(), TestCaseError> {
        prop_assert!(self.pods.is_empty(), "a pod may mount the volume");
        let (at, task) = (self.now, self.jobs[&ordinal].1);
        let (job_epoch, volume_epoch) = (
            self.job_epochs[&ordinal],
            self.volume_epochs.get(&ordinal).copied(),
        );
        let superseding_epoch = volume_epoch.filter(|volume_epoch| *volume_epoch > job_epoch);
        let fails = superseding_epoch.is_none() && self.job_failures.pop().unwrap_or(false);
        if superseding_epoch.is_none() {
            self.volume_epochs.insert(ordinal, job_epoch);
        }
        let state = match (fails, task) {
            _ if superseding_epoch.is_some() => JobState::Failed {
                at,
                failure: JobFailure {
                    class: FailureClass::Process,
                    verdict: Some(mainstay_verdict::Verdict::InUse),
                    superseded_by: superseding_epoch.map(Epoch),
                    message: "another writer owns this volume".to_owned(),
                },
            },
            (true, _) => JobState::Failed {
                at,
                failure: JobFailure {
                    class: FailureClass::Process,
                    verdict: Some(mainstay_verdict::Verdict::StoreUnavailable),
                    superseded_by: None,
                    message: "store unreachable".to_owned(),
                },
            },
            (false, RecoveryJobKind::RenameToPrevious) => {
                let old = self.volumes.insert(ordinal, None).flatten();
                self.previous_data.extend(old);
                JobState::Succeeded {
                    at,
                    done: CommandDetails::default(),
                }
            }
            (false, RecoveryJobKind::Restore) => self.run_restore(ordinal, at),
        };
        self.jobs.get_mut(&ordinal).expect("a Job").0.state = state;
        Ok(())
    }

    /// Simulates the restorer: restores the best copy as a new cluster and keeps the previous data.
    fn run_restore(&mut self, ordinal: u32, at: Timestamp) -> JobState {
        let incident = self.incident.as_ref().expect("an incident");
        let own = self.volumes[&ordinal].filter(|data| data.is_good);
        let own = own.filter(|data| {
            incident.source == RecoverySource::BestCopy
                && self.backup.is_none_or(|backup| data.revision >= backup)
        });
        let revision = own.map(|data| data.revision).or(self.backup);
        let Some(revision) = revision else {
            return JobState::Failed {
                at,
                failure: JobFailure {
                    class: FailureClass::Process,
                    verdict: Some(mainstay_verdict::Verdict::NoBackup),
                    superseded_by: None,
                    message: "no backup found".to_owned(),
                },
            };
        };
        self.previous_data.extend(self.volumes[&ordinal]);
        self.cluster += 1;
        let data = VolumeContent {
            cluster: self.cluster,
            revision: revision + 1_000_000,
            is_good: true,
        };
        self.volumes.insert(ordinal, Some(data));
        (self.members, self.learners) = (vec![ordinal], Vec::new());
        JobState::Succeeded {
            at,
            done: CommandDetails {
                revision: Some(revision),
                start_revision: Some(data.revision),
                cluster_id: Some(ClusterId(self.cluster).to_string()),
                ..CommandDetails::default()
            },
        }
    }

    fn is_recovered(&self) -> bool {
        let mut members = self.members.clone();
        members.sort_unstable();
        members == (0..self.desired.replicas).collect::<Vec<_>>()
            && members.iter().all(|n| self.is_up(*n))
            && self.incident.as_ref().is_none_or(|one| !one.is_open())
            && self.lock_renewed.is_none()
    }
}

#[derive(Clone, Copy, Debug)]
enum VolumeFault {
    Missing,
    Damaged,
}

fn volume_faults() -> impl Strategy<Value = BTreeMap<u32, VolumeFault>> {
    let loss = prop_oneof![Just(VolumeFault::Missing), Just(VolumeFault::Damaged)];
    prop::collection::btree_map(0_u32..5, loss, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn any_loss_is_recovered_from_the_best_copy_without_discarding_data(
        size in prop_oneof![Just(1_u32), Just(3), Just(5)],
        revision in 10_i64..100,
        backup in prop::option::weighted(0.8, 1_i64..110),
        faults in volume_faults(),
        kills in prop::collection::vec(any::<bool>(), 0..60),
        job_failures in prop::collection::vec(any::<bool>(), 0..4),
        volume_epochs in prop::collection::btree_map(0_u32..5, 0_u64..9, 0..4),
        answers_alone in any::<bool>(),
    ) {
        let mut model = RecoveryModel::new(size, revision, backup);
        model.answers_without_quorum = answers_alone;
        (model.job_failures, model.volume_epochs) = (job_failures, volume_epochs.clone());
        let mut damaged = 0;
        for (ordinal, loss) in faults.iter().filter(|(ordinal, _)| **ordinal < size) {
            let slot = model.volumes.get_mut(ordinal).expect("a volume");
            match (loss, slot.as_mut()) {
                (VolumeFault::Damaged, Some(data)) => { data.is_good = false; damaged += 1; }
                _ => *slot = None,
            }
        }
        let intact_volumes = model.volumes.values().filter(|v| v.is_some_and(|data| data.is_good)).count();
        let had_quorum = intact_volumes >= quorum(size as usize);
        let is_recoverable = intact_volumes > 0 || backup.is_some();
        let mut last = None;
        for round in 0..400_usize {
            let plan = model.reconcile(kills.get(round).copied().unwrap_or(false))?;
            model.advance()?;
            if model.is_recovered() { break; }
            last = Some(plan);
        }
        let mut raised = model.raised_above.clone();
        raised.dedup();
        prop_assert_eq!(&raised, &model.raised_above, "no epoch is raised twice");
        prop_assert!(raised.is_sorted() && raised.iter().all(|above| volume_epochs.values().any(|volume_epoch| volume_epoch == above)));
        if !is_recoverable {
            let on = last.as_ref().and_then(|plan| plan.step.as_ref()).and_then(ReconcileStep::blocker).cloned();
            prop_assert_eq!(on, Some(Blocker::RecoveryBlocked(RecoveryBlocker::NothingToRestore)));
            return Ok(());
        }
        prop_assert!(model.is_recovered(), "did not recover: {:?} {:?}", last, model.incident);
        prop_assert_eq!(model.cluster > 1, !had_quorum, "a recovery runs exactly when quorum is lost");
        if !had_quorum {
            let best = if intact_volumes > 0 { revision.max(backup.unwrap_or(0)) } else { backup.unwrap_or(0) };
            let restored = model.volumes[&0].expect("data").revision;
            prop_assert_eq!(restored, best + 1_000_000);
            let kept = model.previous_data.iter().filter(|data| !data.is_good).count();
            prop_assert_eq!(kept, damaged, "damaged data is kept");
            prop_assert_eq!(model.incident.as_ref().map(|one| one.stage), Some(RecoveryStage::Closed));
        }
    }
}

//! A cluster that has lost something, and a recovery on its way.

use std::collections::BTreeMap;

use mainstay_coordination::Epoch;
use mainstay_coordination::incident::{RecoveryCause, Incident, RecoverySource, RecoveryStage, RecoveryTarget};
use mainstay_verdict::CommandDetails;

use crate::decide::recovery::{RecoveryBlocker, RecoveryStep};
use crate::decide::tests::fixture::*;
use crate::decide::{Blocker, ReconcileStep};
use crate::observe::{
    FailureClass, InitFinding, JobFailure, JobState, ObservedMembership, Ordinal, ObservedJob, ObservedLock,
};
use crate::validate::DesiredBackup;

/// `size` members with a backup, of whom these have lost their data; the others answer, without a quorum.
pub(super) fn with_lost_data(size: u32, ordinals: &[(u32, InitFinding)]) -> ClusterFixture {
    let mut scene = ClusterFixture::healthy(size);
    scene.desired.backup = Some(DesiredBackup {
        full_schedule: None,
        delta_period_seconds: Some(20),
    });
    for (ordinal, finding) in ordinals {
        scene = scene.with_member_down(*ordinal).with_finding(*ordinal, *finding);
    }
    let alive = (0..size).filter(|n| ordinals.iter().all(|(lost, _)| lost != n));
    let alive: BTreeMap<Ordinal, i64> = alive.map(|n| (Ordinal(n), 1_000)).collect();
    for ordinal in alive.keys() {
        scene.pod_mut(ordinal.0).is_ready = false;
    }
    scene.observed.membership = ObservedMembership::NoQuorum {
        reason: "no leader".to_owned(),
        reachable: alive,
    };
    scene.last_known.data_lost_since = Some(ago(60));
    scene
}

/// A recovery of `size` members, made from member `base`, at its beginning. The pods are stopped.
pub(super) fn recovery_in_progress(size: u32, base: u32) -> ClusterFixture {
    let mut scene = with_lost_data(size, &[]);
    scene.observed.pods.clear();
    scene.stateful_set_mut().replicas = 0;
    scene.observed.membership = ObservedMembership::NotQueried;
    scene.observed.recovery.lock = ObservedLock::HeldByUs {
        epoch: Epoch(1),
        renewed_at: ago(1),
    };
    scene.observed.recovery.incident = Some(incident(size, base));
    scene
}

pub(in crate::decide) fn incident(size: u32, base: u32) -> Incident {
    Incident {
        id: "5f3a".to_owned(),
        cause: if size == 1 {
            RecoveryCause::MemberLost
        } else {
            RecoveryCause::QuorumLost
        },
        stage: RecoveryStage::Restoring,
        base,
        size,
        source: RecoverySource::Backup,
        target: RecoveryTarget::Newest,
        token: "restored-5f3a".to_owned(),
        attempt: 1,
        started: ago(30),
        changed: ago(30),
        revision: None,
        cluster: None,
        message: String::new(),
        other: BTreeMap::new(),
    }
}

pub(super) fn job(state: JobState) -> ObservedJob {
    ObservedJob {
        uid: "job".to_owned(),
        incident_token: Some("restored-5f3a".to_owned()),
        attempt: 1,
        is_deleting: false,
        created_at: Some(ago(20)),
        state,
    }
}

pub(super) fn succeeded_job() -> JobState {
    JobState::Succeeded {
        at: ago(1),
        done: CommandDetails {
            revision: Some(900),
            start_revision: Some(1_000),
            cluster_id: Some(mainstay_ids::ClusterId(7).to_string()),
            base: Some("Full-00000000-00000900-1".to_owned()),
            ..CommandDetails::default()
        },
    }
}

pub(super) fn failed_job(verdict: &str, seconds_ago: i64) -> JobState {
    JobState::Failed {
        at: ago(seconds_ago),
        failure: JobFailure {
            class: FailureClass::Process,
            verdict: Some(verdict.to_owned()),
            superseded_by: None,
            message: "no answer from the store".to_owned(),
        },
    }
}

/// A Job whose volume remembers this epoch.
pub(super) fn superseded_job(by: u64, seconds_ago: i64) -> JobState {
    JobState::Failed {
        at: ago(seconds_ago),
        failure: JobFailure {
            class: FailureClass::Process,
            verdict: Some("in-use".to_owned()),
            superseded_by: Some(Epoch(by)),
            message: "somebody else writes this volume now".to_owned(),
        },
    }
}

impl ClusterFixture {
    pub(super) fn with_job(mut self, ordinal: u32, state: JobState) -> Self {
        self.observed.recovery.jobs.insert(Ordinal(ordinal), job(state));
        self
    }

    /// The lock is ours, under this epoch.
    pub(super) fn with_lock_epoch(mut self, epoch: u64) -> Self {
        self.observed.recovery.lock = ObservedLock::HeldByUs {
            epoch: Epoch(epoch),
            renewed_at: ago(1),
        };
        self
    }

    pub(super) fn incident_mut(&mut self) -> &mut Incident {
        self.observed.recovery.incident.as_mut().unwrap()
    }

    pub(super) fn recovery_step(&self) -> RecoveryStep {
        match self.step() {
            Some(ReconcileStep::Recover(step)) => step,
            other => panic!("no step of a recovery: {other:?}"),
        }
    }

    pub(super) fn opened_incident(&self) -> Incident {
        match self.recovery_step() {
            RecoveryStep::OpenIncident(incident) => *incident,
            other => panic!("nothing begins: {other:?}"),
        }
    }

    pub(super) fn recorded_incident(&self) -> Incident {
        match self.recovery_step() {
            RecoveryStep::RecordIncident { to, .. } | RecoveryStep::CloseIncident { to, .. } => *to,
            other => panic!("nothing is written down: {other:?}"),
        }
    }

    pub(super) fn recovery_blocker(&self) -> RecoveryBlocker {
        match self.step() {
            Some(ReconcileStep::Wait {
                blocker: Blocker::RecoveryBlocked(hold),
            }) => hold,
            other => panic!("no recovery waits: {other:?}"),
        }
    }
}

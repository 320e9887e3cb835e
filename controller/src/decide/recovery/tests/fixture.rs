//! Fixtures of a cluster that lost data, and of a recovery in progress.

use std::collections::BTreeMap;

use mainstay_coordination::Epoch;
use mainstay_coordination::incident::{
    Incident, RecoveryCause, RecoverySource, RecoveryStage, RecoveryTarget,
};
use mainstay_verdict::{CommandDetails, Verdict};

use crate::decide::tests::fixture::*;
use crate::model::{
    Blocker, DesiredBackup, FailureClass, InitFinding, JobFailure, JobState, ObservedJob,
    ObservedLock, ObservedMembership, Ordinal, ReconcileStep, RecoveryBlocker, RecoveryStep,
};

/// `size` members with a backup. The listed members report these findings; the others answer without quorum.
pub(super) fn with_lost_data(size: u32, ordinals: &[(u32, InitFinding)]) -> ClusterFixture {
    let mut fixture = ClusterFixture::healthy(size);
    fixture.desired.backup = Some(DesiredBackup {
        full_schedule: None,
        delta_period_seconds: Some(20),
    });
    for (ordinal, finding) in ordinals {
        fixture = fixture
            .with_member_down(*ordinal)
            .with_finding(*ordinal, *finding);
    }
    let responsive = (0..size).filter(|n| ordinals.iter().all(|(lost, _)| lost != n));
    let responsive: BTreeMap<Ordinal, i64> = responsive.map(|n| (Ordinal(n), 1_000)).collect();
    for ordinal in responsive.keys() {
        fixture.pod_mut(ordinal.0).is_ready = false;
    }
    fixture.observed.membership = ObservedMembership::NoQuorum {
        reason: "no leader".to_owned(),
        reachable: responsive,
    };
    fixture.last_known.data_lost_since = Some(ago(60));
    fixture
}

/// A recovery of `size` members from member `base`, in its first stage, with all pods stopped.
pub(super) fn recovery_in_progress(size: u32, base: u32) -> ClusterFixture {
    let mut fixture = with_lost_data(size, &[]);
    fixture.observed.pods.clear();
    fixture.stateful_set_mut().replicas = 0;
    fixture.observed.membership = ObservedMembership::NotQueried;
    fixture.observed.recovery.lock = ObservedLock::HeldByUs {
        epoch: Epoch(1),
        renewed_at: ago(1),
    };
    fixture.observed.recovery.incident = Some(incident(size, base));
    fixture
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

pub(super) fn failed_job(verdict: Verdict, seconds_ago: i64) -> JobState {
    JobState::Failed {
        at: ago(seconds_ago),
        failure: JobFailure {
            class: FailureClass::Process,
            verdict: Some(verdict),
            superseded_by: None,
            message: "store unreachable".to_owned(),
        },
    }
}

/// A Job that failed because its volume recorded a higher epoch.
pub(super) fn superseded_job(by: u64, seconds_ago: i64) -> JobState {
    JobState::Failed {
        at: ago(seconds_ago),
        failure: JobFailure {
            class: FailureClass::Process,
            verdict: Some(Verdict::InUse),
            superseded_by: Some(Epoch(by)),
            message: "another writer owns this volume".to_owned(),
        },
    }
}

impl ClusterFixture {
    pub(super) fn with_job(mut self, ordinal: u32, state: JobState) -> Self {
        self.observed
            .recovery
            .jobs
            .insert(Ordinal(ordinal), job(state));
        self
    }

    /// The controller holds the lock with this epoch.
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
            other => panic!("not a recovery step: {other:?}"),
        }
    }

    pub(super) fn opened_incident(&self) -> Incident {
        match self.recovery_step() {
            RecoveryStep::OpenIncident(incident) => *incident,
            other => panic!("no recovery starts: {other:?}"),
        }
    }

    pub(super) fn recorded_incident(&self) -> Incident {
        match self.recovery_step() {
            RecoveryStep::RecordIncident { to, .. } | RecoveryStep::CloseIncident { to, .. } => *to,
            other => panic!("no incident is recorded: {other:?}"),
        }
    }

    pub(super) fn recovery_blocker(&self) -> RecoveryBlocker {
        match self.step() {
            Some(ReconcileStep::Wait {
                blocker: Blocker::RecoveryBlocked(blocker),
            }) => blocker,
            other => panic!("recovery is not blocked: {other:?}"),
        }
    }
}

//! A cluster that has lost something, and a recovery on its way.

use std::collections::BTreeMap;

use mainstay_coordination::Epoch;
use mainstay_coordination::incident::{Cause, Incident, Source, Stage, Target};
use mainstay_verdict::Done;

use crate::decide::recovery::{Hold, Recovery};
use crate::decide::tests::fixture::*;
use crate::decide::{Blocker, Step};
use crate::observe::{
    FailureClass, Finding, JobFailure, JobState, Membership, Ordinal, SeenJob, SeenLock,
};
use crate::validate::WantedBackup;

/// `size` members with a backup, of whom these have lost their data; the others answer, without a quorum.
pub(super) fn lost(size: u32, ordinals: &[(u32, Finding)]) -> Scene {
    let mut scene = Scene::whole(size);
    scene.wanted.backup = Some(WantedBackup {
        schedule: None,
        delta_seconds: Some(20),
    });
    for (ordinal, finding) in ordinals {
        scene = scene.down(*ordinal).finding(*ordinal, *finding);
    }
    let alive = (0..size).filter(|n| ordinals.iter().all(|(lost, _)| lost != n));
    let alive: BTreeMap<Ordinal, i64> = alive.map(|n| (Ordinal(n), 1_000)).collect();
    for ordinal in alive.keys() {
        scene.pod_mut(ordinal.0).is_ready = false;
    }
    scene.seen.membership = Membership::Silent {
        why: "no leader".to_owned(),
        alive,
    };
    scene.known.loss_since = Some(ago(60));
    scene
}

/// A recovery of `size` members, made from member `base`, at its beginning. The pods are stopped.
pub(super) fn under_way(size: u32, base: u32) -> Scene {
    let mut scene = lost(size, &[]);
    scene.seen.pods.clear();
    scene.set_mut().replicas = 0;
    scene.seen.membership = Membership::Unasked;
    scene.seen.recovery.lock = SeenLock::Ours {
        epoch: Epoch(1),
        renewed: ago(1),
    };
    scene.seen.recovery.incident = Some(incident(size, base));
    scene
}

pub(in crate::decide) fn incident(size: u32, base: u32) -> Incident {
    Incident {
        id: "5f3a".to_owned(),
        cause: if size == 1 {
            Cause::MemberLost
        } else {
            Cause::QuorumLost
        },
        stage: Stage::Restoring,
        base,
        size,
        source: Source::Backup,
        target: Target::Newest,
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

pub(super) fn job(state: JobState) -> SeenJob {
    SeenJob {
        uid: "job".to_owned(),
        incident: Some("restored-5f3a".to_owned()),
        attempt: 1,
        is_deleting: false,
        created: Some(ago(20)),
        state,
    }
}

pub(super) fn succeeded() -> JobState {
    JobState::Succeeded {
        at: ago(1),
        done: Done {
            revision: Some(900),
            start_revision: Some(1_000),
            cluster_id: Some(mainstay_ids::ClusterId(7).to_string()),
            base: Some("Full-00000000-00000900-1".to_owned()),
            ..Done::default()
        },
    }
}

pub(super) fn failed(verdict: &str, seconds_ago: i64) -> JobState {
    JobState::Failed {
        at: ago(seconds_ago),
        failure: JobFailure {
            class: FailureClass::Process,
            verdict: Some(verdict.to_owned()),
            overtaken_by: None,
            words: "no answer from the store".to_owned(),
        },
    }
}

/// A Job whose volume remembers this epoch.
pub(super) fn overtaken(by: u64, seconds_ago: i64) -> JobState {
    JobState::Failed {
        at: ago(seconds_ago),
        failure: JobFailure {
            class: FailureClass::Process,
            verdict: Some("in-use".to_owned()),
            overtaken_by: Some(Epoch(by)),
            words: "somebody else writes this volume now".to_owned(),
        },
    }
}

impl Scene {
    pub(super) fn with_job(mut self, ordinal: u32, state: JobState) -> Self {
        self.seen.recovery.jobs.insert(Ordinal(ordinal), job(state));
        self
    }

    /// The lock is ours, under this epoch.
    pub(super) fn under_epoch(mut self, epoch: u64) -> Self {
        self.seen.recovery.lock = SeenLock::Ours {
            epoch: Epoch(epoch),
            renewed: ago(1),
        };
        self
    }

    pub(super) fn incident_mut(&mut self) -> &mut Incident {
        self.seen.recovery.incident.as_mut().unwrap()
    }

    pub(super) fn recovery(&self) -> Recovery {
        match self.step() {
            Some(Step::Recover(step)) => step,
            other => panic!("no step of a recovery: {other:?}"),
        }
    }

    pub(super) fn opened(&self) -> Incident {
        match self.recovery() {
            Recovery::Open(incident) => *incident,
            other => panic!("nothing begins: {other:?}"),
        }
    }

    pub(super) fn recorded(&self) -> Incident {
        match self.recovery() {
            Recovery::Record { to, .. } | Recovery::Close { to, .. } => *to,
            other => panic!("nothing is written down: {other:?}"),
        }
    }

    pub(super) fn hold(&self) -> Hold {
        match self.step() {
            Some(Step::Wait {
                on: Blocker::RecoveryNeeded(hold),
            }) => hold,
            other => panic!("no recovery waits: {other:?}"),
        }
    }
}

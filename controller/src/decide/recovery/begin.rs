//! Whether a recovery begins.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use mainstay_coordination::incident::{RecoveryCause, Incident, RecoverySource, RecoveryStage, RecoveryTarget};
use mainstay_crds::etcd::RecoveryMode;
use sha2::{Digest, Sha256};

use super::loss::{self, Loss};
use super::{RecoveryBlocker, RecoveryStep, wait, require_lock};
use crate::decide::{ReconcileStep, PvcDeletionReason, World};
use crate::observe::{Ordinal, ObservedLock};

/// How much of a hash names an incident: people type it.
const ID_BYTES: usize = 4;

/// The step that begins a recovery, or what is waited for first.
pub(super) fn plan_start(world: &World<'_>) -> Option<ReconcileStep> {
    let Some(loss) = loss::assess(world) else {
        let is_ours = matches!(world.observed.recovery.lock, ObservedLock::HeldByUs { .. });
        return is_ours.then_some(ReconcileStep::Recover(RecoveryStep::ReleaseLock));
    };
    if loss.base.is_none()
        && let Some(step) = delete_lost_pvc(world, &loss)
    {
        return Some(step); // whatever is decided then, there has to be a volume
    }
    let id = derive_incident_id(world, &loss);
    if let Some(hold) = find_start_blocker(world, &loss, &id) {
        return Some(wait(hold));
    }
    let Some(base) = loss.base else {
        let ordinal = loss.lost_members.first().copied().unwrap_or(Ordinal(0));
        return Some(wait(RecoveryBlocker::VolumeUnavailable { ordinal }));
    };
    if let Some(ReconcileStep::Wait { blocker: on }) = require_lock(world) {
        return Some(ReconcileStep::Wait { blocker: on });
    }
    let incident = build_incident(world, &loss, id, base);
    Some(ReconcileStep::Recover(RecoveryStep::OpenIncident(Box::new(incident))))
}

fn build_incident(world: &World<'_>, loss: &Loss, id: String, base: Ordinal) -> Incident {
    Incident {
        token: build_token(&id, world.now),
        id,
        cause: loss.cause,
        stage: RecoveryStage::Restoring,
        base: base.0,
        size: world.size(),
        source: loss.source,
        target: RecoveryTarget::Newest,
        attempt: 1,
        started: world.now,
        changed: world.now,
        revision: None,
        cluster: None,
        message: String::new(),
        other: BTreeMap::new(),
    }
}

/// Something no other recovery has, also if its name comes again.
pub fn build_token(id: &str, now: Timestamp) -> String {
    format!("restored-{id}-{:x}", now.as_millisecond())
}

/// The recovery of a lost quorum that a person asks for, whatever the mode says. A member the person names is the base
/// even if nobody knows what it holds: whether that is good is looked at before it is used. Without a proven loss there is
/// none.
pub fn build_requested_incident(
    world: &World<'_>,
    id: &str,
    base: Option<Ordinal>,
) -> Result<Incident, Option<RecoveryBlocker>> {
    let loss = loss::assess(world).ok_or(None)?;
    match (&loss.blocker, base) {
        (None | Some(RecoveryBlocker::DataStateUnknown { .. } | RecoveryBlocker::VolumeUnchecked { .. }), Some(base))
            if loss::is_volume_writable(world, base) =>
        {
            let loss = Loss {
                source: RecoverySource::BestCopy,
                ..loss
            };
            Ok(build_incident(world, &loss, id.to_owned(), base))
        }
        (_, Some(ordinal)) => Err(Some(RecoveryBlocker::VolumeUnavailable { ordinal })),
        (Some(hold), None) => Err(Some(hold.clone())),
        (None, None) => {
            let ordinal = loss.lost_members.first().copied().unwrap_or(Ordinal(0));
            let base = loss.base.ok_or(Some(RecoveryBlocker::VolumeUnavailable { ordinal }))?;
            Ok(build_incident(world, &loss, id.to_owned(), base))
        }
    }
}

/// What has to happen first.
fn find_start_blocker(world: &World<'_>, loss: &Loss, id: &str) -> Option<RecoveryBlocker> {
    if let Some(hold) = &loss.blocker {
        return Some(hold.clone());
    }
    let recovery = &world.desired.recovery;
    let is_quorum = loss.cause == RecoveryCause::QuorumLost;
    if recovery.mode == RecoveryMode::Manual {
        return Some(RecoveryBlocker::ManualMode);
    }
    if is_quorum && !is_loss_confirmed(world) {
        return Some(RecoveryBlocker::LossUnconfirmed);
    }
    let is_approved = recovery.approved_id.as_deref() == Some(id);
    let needs_approval = is_quorum && recovery.mode == RecoveryMode::Approve;
    (needs_approval && !is_approved).then(|| RecoveryBlocker::ApprovalRequired { id: id.to_owned() })
}

/// A cluster whose members restart is without a quorum for a moment, too.
fn is_loss_confirmed(world: &World<'_>) -> bool {
    let since = world.last_known.data_lost_since;
    since.is_some_and(|since| {
        world.now.duration_since(since).unsigned_abs() >= world.policy.quorum_loss_timeout
    })
}

/// There is no volume to write to. A claim whose volume is gone is given up, so that another is made; it holds nothing.
fn delete_lost_pvc(world: &World<'_>, loss: &Loss) -> Option<ReconcileStep> {
    let claims = &world.observed.pvcs;
    let gone = loss.lost_members.iter().find_map(|ordinal| {
        let claim = claims.get(ordinal)?;
        (claim.is_lost && !claim.is_deleting).then_some((*ordinal, claim))
    });
    gone.map(|(ordinal, claim)| ReconcileStep::DeletePvc {
        ordinal,
        uid: claim.uid.clone(),
        pod_uid: world.pod(ordinal).map(|pod| pod.uid.clone()),
        reason: PvcDeletionReason::VolumeLost,
    })
}

/// Names an incident: whose data is lost, on which volumes, after which incident. The same loss has the same name until
/// something is done about it, whoever takes the lock meanwhile, and another one afterwards as long as the document is there. An
/// approval by that name is taken off when all is well, so that it counts for no later loss.
fn derive_incident_id(world: &World<'_>, loss: &Loss) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{}/{}", world.desired.namespace, world.desired.name));
    let last = world.observed.recovery.incident.as_ref();
    hash.update(format!("/{}", last.map_or("", |last| last.id.as_str())));
    for ordinal in &loss.lost_members {
        let claim = world.observed.pvcs.get(ordinal);
        let uid = claim.map_or("", |claim| claim.uid.as_str());
        hash.update(format!(";{ordinal}={uid}"));
    }
    let digest = hash.finalize();
    let mut id = String::new();
    for byte in digest.iter().take(ID_BYTES) {
        write!(id, "{byte:02x}").expect("a String takes everything");
    }
    id
}

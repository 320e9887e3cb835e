//! Decides whether a recovery starts, and builds its incident.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use mainstay_coordination::incident::{
    Incident, RecoveryCause, RecoverySource, RecoveryStage, RecoveryTarget,
};
use mainstay_crds::etcd::RecoveryMode;
use sha2::{Digest, Sha256};

use super::loss::{self, Loss};
use super::{require_lock, wait};
use crate::model::{
    ObservedLock, Ordinal, PvcDeletionReason, ReconcileStep, RecoveryBlocker, RecoveryStep, World,
};

/// Length of an incident ID; short, because users type it to approve a recovery.
const ID_BYTES: usize = 4;

/// The step that starts a recovery, or what blocks it; `None` without a proven loss.
pub(super) fn plan_start(world: &World<'_>) -> Option<ReconcileStep> {
    let Some(loss) = loss::assess(world) else {
        // A crash after acquiring the lock, or a loss that has disappeared, leaves the lock held.
        let is_ours = matches!(world.observed.recovery.lock, ObservedLock::HeldByUs { .. });
        return is_ours.then_some(ReconcileStep::Recover(RecoveryStep::ReleaseLock));
    };
    if loss.base.is_none()
        && let Some(step) = delete_lost_pvc(world, &loss)
    {
        return Some(step); // needs no approval: every recovery needs a volume, and this PVC holds no data
    }
    let id = derive_incident_id(world, &loss);
    if let Some(blocker) = find_start_blocker(world, &loss, &id) {
        return Some(wait(blocker));
    }
    let Some(base) = loss.base else {
        let ordinal = loss.lost_members.first().copied().unwrap_or(Ordinal(0));
        return Some(wait(RecoveryBlocker::VolumeUnavailable { ordinal }));
    };
    // Opening the incident acquires the lock, so only another holder blocks.
    if let Some(ReconcileStep::Wait { blocker: on }) = require_lock(world) {
        return Some(ReconcileStep::Wait { blocker: on });
    }
    let incident = build_incident(world, &loss, id, base);
    Some(ReconcileStep::Recover(RecoveryStep::OpenIncident(
        Box::new(incident),
    )))
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

/// The cluster token of a recovery. The time keeps it unique when the same incident ID occurs again.
pub(crate) fn build_token(id: &str, now: Timestamp) -> String {
    format!("restored-{id}-{:x}", now.as_millisecond())
}

/// The incident for a recovery that a user requests, whatever the mode. The user may name the base member even if the state of
/// its data is unknown, because the restore Job verifies the data before it uses it.
///
/// # Errors
///
/// `None` without a proven loss, else the blocker.
pub(crate) fn build_requested_incident(
    world: &World<'_>,
    id: &str,
    base: Option<Ordinal>,
) -> Result<Incident, Option<RecoveryBlocker>> {
    let loss = loss::assess(world).ok_or(None)?;
    match (&loss.blocker, base) {
        (None | Some(RecoveryBlocker::DataStateUnknown { .. } | RecoveryBlocker::VolumeUnchecked { .. }), Some(base))
            // Unknown data blocks an automatic recovery only: the user has chosen this member.
            if loss::is_volume_writable(world, base) =>
        {
            let loss = Loss {
                source: RecoverySource::BestCopy,
                ..loss
            };
            Ok(build_incident(world, &loss, id.to_owned(), base))
        }
        (_, Some(ordinal)) => Err(Some(RecoveryBlocker::VolumeUnavailable { ordinal })),
        (Some(blocker), None) => Err(Some(blocker.clone())),
        (None, None) => {
            let ordinal = loss.lost_members.first().copied().unwrap_or(Ordinal(0));
            let base = loss.base.ok_or(Some(RecoveryBlocker::VolumeUnavailable { ordinal }))?;
            Ok(build_incident(world, &loss, id.to_owned(), base))
        }
    }
}

fn find_start_blocker(world: &World<'_>, loss: &Loss, id: &str) -> Option<RecoveryBlocker> {
    if let Some(blocker) = &loss.blocker {
        return Some(blocker.clone());
    }
    let recovery = &world.desired.recovery;
    // Only members of a quorum may return by themselves, so only a quorum loss needs confirmation and approval.
    let is_quorum = loss.cause == RecoveryCause::QuorumLost;
    if recovery.mode == RecoveryMode::Manual {
        return Some(RecoveryBlocker::ManualMode);
    }
    if is_quorum && !is_loss_confirmed(world) {
        return Some(RecoveryBlocker::LossUnconfirmed);
    }
    let is_approved = recovery.approved_id.as_deref() == Some(id);
    let needs_approval = is_quorum && recovery.mode == RecoveryMode::Approve;
    (needs_approval && !is_approved)
        .then(|| RecoveryBlocker::ApprovalRequired { id: id.to_owned() })
}

/// Whether the loss has lasted for `quorum_loss_timeout`. Restarting members lose quorum for a moment as well.
fn is_loss_confirmed(world: &World<'_>) -> bool {
    let since = world.last_known.data_lost_since;
    since.is_some_and(|since| {
        world.now.duration_since(since).unsigned_abs() >= world.policy.quorum_loss_timeout
    })
}

/// Deletes a PVC whose volume is lost, so that a new one is created when no volume can be written.
fn delete_lost_pvc(world: &World<'_>, loss: &Loss) -> Option<ReconcileStep> {
    let found = loss.lost_members.iter().find_map(|ordinal| {
        let pvc = world.observed.pvcs.get(ordinal)?;
        (pvc.is_lost && !pvc.is_deleting).then_some((*ordinal, pvc))
    });
    found.map(|(ordinal, pvc)| ReconcileStep::DeletePvc {
        ordinal,
        uid: pvc.uid.clone(),
        pod_uid: world.pod(ordinal).map(|pod| pod.uid.clone()),
        reason: PvcDeletionReason::VolumeLost,
    })
}

/// Derives the incident ID from the lost members, their PVC UIDs and the previous incident. The ID is stable until a recovery
/// starts, whoever holds the lock, and differs after a recovery as long as the coordination document exists. The approval
/// annotation is removed when the cluster is healthy, so that it never applies to a later loss.
fn derive_incident_id(world: &World<'_>, loss: &Loss) -> String {
    let mut hash = Sha256::new();
    hash.update(format!(
        "{}/{}",
        world.desired.namespace, world.desired.name
    ));
    let last = world.observed.recovery.incident.as_ref();
    hash.update(format!("/{}", last.map_or("", |last| last.id.as_str())));
    for ordinal in &loss.lost_members {
        let pvc = world.observed.pvcs.get(ordinal);
        let uid = pvc.map_or("", |pvc| pvc.uid.as_str());
        hash.update(format!(";{ordinal}={uid}"));
    }
    let digest = hash.finalize();
    let mut id = String::new();
    for byte in digest.iter().take(ID_BYTES) {
        write!(id, "{byte:02x}").expect("writing to a String cannot fail");
    }
    id
}

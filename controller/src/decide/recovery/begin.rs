//! Whether a recovery begins.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use mainstay_coordination::incident::{Cause, Incident, Source, Stage, Target};
use mainstay_crds::etcd::RecoveryMode;
use sha2::{Digest, Sha256};

use super::loss::{self, Loss};
use super::{Hold, Recovery, wait, without_lock};
use crate::decide::{Step, Useless, World};
use crate::observe::{Ordinal, SeenLock};

/// How much of a hash names an incident: people type it.
const ID_BYTES: usize = 4;

/// The step that begins a recovery, or what is waited for first.
pub(super) fn next(world: &World<'_>) -> Option<Step> {
    let Some(loss) = loss::assess(world) else {
        let is_ours = matches!(world.seen.recovery.lock, SeenLock::Ours { .. });
        return is_ours.then_some(Step::Recover(Recovery::Release));
    };
    if loss.base.is_none()
        && let Some(step) = give_up_claim(world, &loss)
    {
        return Some(step); // whatever is decided then, there has to be a volume
    }
    let id = identity(world, &loss);
    if let Some(hold) = not_yet(world, &loss, &id) {
        return Some(wait(hold));
    }
    let Some(base) = loss.base else {
        let ordinal = loss.lost.first().copied().unwrap_or(Ordinal(0));
        return Some(wait(Hold::Claim { ordinal }));
    };
    if let Some(Step::Wait { on }) = without_lock(world) {
        return Some(Step::Wait { on });
    }
    let incident = incident(world, &loss, id, base);
    Some(Step::Recover(Recovery::Open(Box::new(incident))))
}

fn incident(world: &World<'_>, loss: &Loss, id: String, base: Ordinal) -> Incident {
    Incident {
        token: token(&id, world.now),
        id,
        cause: loss.cause,
        stage: Stage::Restoring,
        base: base.0,
        size: world.size(),
        source: loss.source,
        target: Target::Newest,
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
pub fn token(id: &str, now: Timestamp) -> String {
    format!("restored-{id}-{:x}", now.as_millisecond())
}

/// The recovery of a lost quorum that a person asks for, whatever the mode says. A member the person names is the base
/// even if nobody knows what it holds: whether that is good is looked at before it is used. Without a proven loss there is
/// none.
pub fn on_request(
    world: &World<'_>,
    id: &str,
    base: Option<Ordinal>,
) -> Result<Incident, Option<Hold>> {
    let loss = loss::assess(world).ok_or(None)?;
    match (&loss.hold, base) {
        (None | Some(Hold::Verdict { .. } | Hold::Unlooked { .. }), Some(base))
            if loss::is_writable(world, base) =>
        {
            let loss = Loss {
                source: Source::BestCopy,
                ..loss
            };
            Ok(incident(world, &loss, id.to_owned(), base))
        }
        (_, Some(ordinal)) => Err(Some(Hold::Claim { ordinal })),
        (Some(hold), None) => Err(Some(hold.clone())),
        (None, None) => {
            let ordinal = loss.lost.first().copied().unwrap_or(Ordinal(0));
            let base = loss.base.ok_or(Some(Hold::Claim { ordinal }))?;
            Ok(incident(world, &loss, id.to_owned(), base))
        }
    }
}

/// What has to happen first.
fn not_yet(world: &World<'_>, loss: &Loss, id: &str) -> Option<Hold> {
    if let Some(hold) = &loss.hold {
        return Some(hold.clone());
    }
    let recovery = &world.wanted.recovery;
    let is_quorum = loss.cause == Cause::QuorumLost;
    if recovery.mode == RecoveryMode::Manual {
        return Some(Hold::Manual);
    }
    if is_quorum && !has_lasted(world) {
        return Some(Hold::Unconfirmed);
    }
    let is_approved = recovery.approved.as_deref() == Some(id);
    let needs_approval = is_quorum && recovery.mode == RecoveryMode::Approve;
    (needs_approval && !is_approved).then(|| Hold::Approval { id: id.to_owned() })
}

/// A cluster whose members restart is without a quorum for a moment, too.
fn has_lasted(world: &World<'_>) -> bool {
    let since = world.known.loss_since;
    since.is_some_and(|since| {
        world.now.duration_since(since).unsigned_abs() >= world.policy.loss_patience
    })
}

/// There is no volume to write to. A claim whose volume is gone is given up, so that another is made; it holds nothing.
fn give_up_claim(world: &World<'_>, loss: &Loss) -> Option<Step> {
    let claims = &world.seen.claims;
    let gone = loss.lost.iter().find_map(|ordinal| {
        let claim = claims.get(ordinal)?;
        (claim.is_lost && !claim.is_deleting).then_some((*ordinal, claim))
    });
    gone.map(|(ordinal, claim)| Step::DiscardClaim {
        ordinal,
        uid: claim.uid.clone(),
        pod_uid: world.pod(ordinal).map(|pod| pod.uid.clone()),
        because: Useless::VolumeGone,
    })
}

/// Names an incident: whose data is lost, on which volumes, after which incident. The same loss has the same name until
/// something is done about it, whoever takes the lock meanwhile, and another one afterwards as long as the document is there. An
/// approval by that name is taken off when all is well, so that it counts for no later loss.
fn identity(world: &World<'_>, loss: &Loss) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{}/{}", world.wanted.namespace, world.wanted.name));
    let last = world.seen.recovery.incident.as_ref();
    hash.update(format!("/{}", last.map_or("", |last| last.id.as_str())));
    for ordinal in &loss.lost {
        let claim = world.seen.claims.get(ordinal);
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

//! Executes the steps of a recovery.
//!
//! **Invariants**: every step first renews the lock and checks that the coordination ConfigMap still holds the incident the
//! step was decided on; a step decided on stale state does nothing. A lock of another holder is acquired only after it has
//! expired.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use kube::Resource;
use kube::api::ObjectMeta;
use mainstay_coordination::incident::{
    Incident, RecoveryCause, RecoverySource, RecoveryStage, RecoveryTarget,
};
use mainstay_coordination::member::{MemberState, RestorePhase};
use mainstay_coordination::{
    AcquireOutcome, ConfigMapBacking, CoordinationError, Coordinator, Epoch, HeldLock, LockFence,
    LockRequest, LockToken, Purpose,
};
use mainstay_crds::Etcd;
use mainstay_manifests::jobs::{self, RestoreJob, RevisionIncrement, SetAsideJob};
use mainstay_manifests::labels::{Component, for_object};
use mainstay_manifests::{Names, RenderInput as Rendered};
use mainstay_telemetry::ErrorChain;
use serde_json::json;
use tracing::{info, warn};

use super::{ActError, Work, objects};
use crate::context::Context;
use crate::intervals;
use crate::model::annotations::{ATTEMPT, INCIDENT, LOCK_HOLDER};
use crate::model::{EffectiveSpec, ObservedLock, Ordinal, RecoveryJobKind, RecoveryStep};
use crate::writer::{Dependents, Target};

/// Added to the revision after a restore: more than a cluster writes between two snapshots, so that no watcher meets a
/// revision twice, and far below the limit of 2^63.
const REVISION_BUMP: RevisionIncrement = RevisionIncrement(1_000_000_000);
/// Deadline of a restore Job; after it the restore is retried.
const RESTORE_DEADLINE: Duration = Duration::from_hours(12);
/// Deadline of the Job that renames a data directory, including the mount of its volume.
const RENAME_DEADLINE: Duration = Duration::from_mins(10);

/// Executes a plan whose step is a recovery step.
pub(super) async fn execute_plan(
    ctx: &Context,
    work: Work<'_>,
    shape: Option<&EffectiveSpec>,
    step: &RecoveryStep,
) -> Result<(), ActError> {
    if let RecoveryStep::Scale { to, .. } = step {
        let coordinator = get_coordinator(ctx, work.etcd);
        if !can_scale(work, &coordinator).await? {
            return Ok(());
        }
        return match shape {
            Some(shape) => match objects::apply_all(ctx, work, shape).await {
                // Members must stop before data is restored, even when the API server rejects another object of the spec.
                Err(error) if *to == 0 && error.is_permanent() => {
                    scale_stateful_set(ctx, work, *to).await?;
                    Err(error)
                }
                applied => applied.map(drop), // the applied StatefulSet has the new replicas
            },
            None => scale_stateful_set(ctx, work, *to).await,
        };
    }
    let applied = match shape {
        Some(shape) => objects::apply_all(ctx, work, shape).await,
        None => return execute_step(ctx, work, step).await,
    };
    // An object that the API server rejects must not block the recovery of lost data.
    if applied.as_ref().err().is_none_or(ActError::is_permanent) {
        execute_step(ctx, work, step).await?;
    }
    applied.map(drop)
}

async fn execute_step(ctx: &Context, work: Work<'_>, step: &RecoveryStep) -> Result<(), ActError> {
    ctx.writer.check_leadership()?;
    let coordinator = get_coordinator(ctx, work.etcd);
    match step {
        RecoveryStep::OpenIncident(incident) => open_incident(&coordinator, incident).await,
        RecoveryStep::ReacquireLock => acquire_lock(&coordinator, Purpose::Restore).await.map(drop),
        RecoveryStep::RaiseEpoch { above } => raise_epoch(&coordinator, work, *above).await,
        RecoveryStep::RenewLock(_) => resume_lock(&coordinator, work, "renew the recovery lock")
            .await
            .map(drop),
        RecoveryStep::ReleaseLock => {
            match resume_lock(&coordinator, work, "release the recovery lock").await? {
                Some(held) => release_lock(held).await,
                None => Ok(()),
            }
        }
        RecoveryStep::Scale { .. } => Ok(()), // executed by the caller
        RecoveryStep::CreateJob {
            ordinal,
            kind,
            incident,
        } => launch_job(ctx, work, &coordinator, (*ordinal, *kind), incident).await,
        RecoveryStep::DeleteJob { ordinal, uid } => {
            let Some(_held) =
                resume_lock(&coordinator, work, "renew the lock before deleting a Job").await?
            else {
                return Ok(());
            };
            let incident = work.objects.observation.recovery.incident.as_ref();
            if !is_incident_unchanged(&coordinator, incident).await? {
                return Ok(()); // a newer incident may need the Job
            }
            delete_job(ctx, work, *ordinal, uid).await
        }
        RecoveryStep::RecordIncident { from, to } => {
            let Some(held) = resume_lock(
                &coordinator,
                work,
                "renew the lock before recording recovery progress",
            )
            .await?
            else {
                return Ok(());
            };
            record_incident(&held.fence(), Some(from), to).await?;
            report_base_member(&held.fence(), work, to).await;
            Ok(())
        }
        RecoveryStep::CloseIncident { from, to } => {
            close_incident(ctx, work, &coordinator, (from, to)).await
        }
    }
}

/// The coordinator for the coordination ConfigMap of an Etcd. It creates the ConfigMap with the labels the cache selects by.
pub(crate) fn get_coordinator(ctx: &Context, etcd: &Etcd) -> Arc<Coordinator> {
    let names = Names::new(etcd);
    let key = crate::model::EtcdKey {
        namespace: names.namespace.to_owned(),
        name: names.etcd.to_owned(),
    };
    let uid = etcd.metadata.uid.as_deref().unwrap_or_default();
    ctx.local.get_or_create_coordinator((&key, uid), || {
        let name = names.coordination_config_map();
        let metadata = ObjectMeta {
            labels: Some(for_object(names.etcd, &name, Component::Coordination)),
            owner_references: etcd.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        };
        let backing = ConfigMapBacking::new(ctx.client.clone(), names.namespace, &name);
        Coordinator::new(Arc::new(backing.with_metadata(metadata)))
    })
}

fn coordination_error(step: &'static str) -> impl Fn(CoordinationError) -> ActError {
    move |source| ActError::Coordinate { step, source }
}

/// Acquires the lock, or resumes it if this controller holds it; `None` while another holder has it.
pub(crate) async fn acquire_lock(
    coordinator: &Arc<Coordinator>,
    purpose: Purpose,
) -> Result<Option<HeldLock>, ActError> {
    let lock_request = LockRequest {
        holder: LOCK_HOLDER.to_owned(),
        purpose,
        ttl: intervals::LOCK_TTL,
    };
    let step = "acquire the recovery lock";
    match coordinator
        .try_acquire(&lock_request)
        .await
        .map_err(coordination_error(step))?
    {
        AcquireOutcome::Acquired(held) => Ok(Some(held)),
        // An earlier leader of this controller acquired it.
        AcquireOutcome::Busy { lock, .. } if lock.holder == LOCK_HOLDER => {
            let claim = LockToken {
                holder: lock.holder,
                epoch: lock.epoch,
            };
            coordinator
                .resume_lock(&claim)
                .await
                .map(Some)
                .map_err(coordination_error(step))
        }
        AcquireOutcome::Busy { lock, .. } => {
            info!(holder = lock.holder, "recovery is waiting for the lock");
            Ok(None)
        }
    }
}

/// Resumes the lock that was observed as ours; `None` when it is not ours any more.
async fn resume_lock(
    coordinator: &Arc<Coordinator>,
    work: Work<'_>,
    step: &'static str,
) -> Result<Option<HeldLock>, ActError> {
    let ObservedLock::HeldByUs { epoch, .. } = work.objects.observation.recovery.lock else {
        return Ok(None);
    };
    let claim = LockToken {
        holder: LOCK_HOLDER.to_owned(),
        epoch,
    };
    match coordinator.resume_lock(&claim).await {
        Ok(held) => Ok(Some(held)),
        // The observed state is stale: the next reconcile decides again.
        Err(CoordinationError::LockLost { source, .. }) => {
            warn!(error = %source, "recovery lock lost");
            Ok(None)
        }
        Err(source) => Err(ActError::Coordinate { step, source }),
    }
}

/// Raises the epoch of the lock above the one a volume recorded. Otherwise that volume rejects every Job of this lock.
async fn raise_epoch(
    coordinator: &Arc<Coordinator>,
    work: Work<'_>,
    above: Epoch,
) -> Result<(), ActError> {
    let step = "raise the epoch of the recovery lock";
    let Some(held) = resume_lock(coordinator, work, step).await? else {
        return Ok(());
    };
    match held.raise_epoch(above).await {
        Ok(held) => {
            info!(%above, epoch = %held.token().epoch, "raised lock epoch above the epoch recorded on a volume");
            Ok(())
        }
        Err(CoordinationError::LockLost { source, .. }) => {
            warn!(error = %source, "recovery lock lost");
            Ok(())
        }
        Err(source) => Err(ActError::Coordinate { step, source }),
    }
}

async fn release_lock(held: HeldLock) -> Result<(), ActError> {
    match held.release().await {
        // A lost lock needs no release.
        Ok(()) | Err(CoordinationError::LockLost { .. }) => Ok(()),
        Err(source) => Err(ActError::Coordinate {
            step: "release the recovery lock",
            source,
        }),
    }
}

async fn open_incident(
    coordinator: &Arc<Coordinator>,
    incident: &Incident,
) -> Result<(), ActError> {
    let purpose = match incident.cause {
        RecoveryCause::QuorumLost => Purpose::RecoverQuorum,
        RecoveryCause::MemberLost | RecoveryCause::FormerBackup | RecoveryCause::Requested => {
            Purpose::Restore
        }
    };
    let Some(held) = acquire_lock(coordinator, purpose).await? else {
        return Ok(());
    };
    let step = "read the incident";
    let found = coordinator
        .read_incident()
        .await
        .map_err(coordination_error(step))?;
    if found.as_ref().is_some_and(Incident::is_open) {
        return Ok(()); // an earlier reconcile opened it
    }
    record_incident(&held.fence(), found.as_ref(), incident).await
}

/// Replaces the incident `from` with `to`. If the ConfigMap holds another incident, it is kept and the next reconcile decides.
async fn record_incident(
    fence: &LockFence,
    from: Option<&Incident>,
    to: &Incident,
) -> Result<(), ActError> {
    let step = "record the incident";
    let found = fence
        .write_incident(from, to)
        .await
        .map_err(coordination_error(step))?;
    if found.as_ref() != Some(to) {
        info!("incident changed meanwhile; keeping the newer one");
    }
    Ok(())
}

/// Reports the phase of the member that the cluster is restored from.
async fn report_base_member(fence: &LockFence, work: Work<'_>, incident: &Incident) {
    let phase = match incident.stage {
        RecoveryStage::Restoring => RestorePhase::Pending,
        RecoveryStage::Restored => RestorePhase::Restored,
        RecoveryStage::Closed => RestorePhase::Confirmed,
        RecoveryStage::Abandoned | RecoveryStage::Failed => RestorePhase::Failed,
    };
    let base = Ordinal(incident.base);
    report_member(fence, work, base, (phase, &incident.message)).await;
}

/// Reports the phase of a member. Only users read it, so a failure is logged and does not stop the recovery.
async fn report_member(
    fence: &LockFence,
    work: Work<'_>,
    ordinal: Ordinal,
    (phase, message): (RestorePhase, &str),
) {
    let state = MemberState::new(phase, Timestamp::now()).with_message(message);
    let name = work.desired.member_name(ordinal);
    if let Err(error) = fence.write_member_state(&name, &state).await {
        warn!(error = %ErrorChain(&error), member = name, "failed to record member phase");
    }
}

async fn remove_member_report(fence: &LockFence, work: Work<'_>, ordinal: Ordinal) {
    let name = work.desired.member_name(ordinal);
    if let Err(error) = fence.remove_member_state(&name).await {
        warn!(error = %ErrorChain(&error), member = name, "failed to remove recorded member phase");
    }
}

/// Whether the coordination ConfigMap still holds the incident a step was decided on.
async fn is_incident_unchanged(
    coordinator: &Coordinator,
    incident: Option<&Incident>,
) -> Result<bool, ActError> {
    let found = coordinator
        .read_incident()
        .await
        .map_err(coordination_error("read the incident"))?;
    Ok(found.as_ref() == incident)
}

async fn can_scale(work: Work<'_>, coordinator: &Arc<Coordinator>) -> Result<bool, ActError> {
    let recovery = &work.objects.observation.recovery;
    let held = resume_lock(coordinator, work, "renew the lock before scaling").await?;
    Ok(held.is_some() && is_incident_unchanged(coordinator, recovery.incident.as_ref()).await?)
}

/// Sets the replicas of the StatefulSet, and nothing else.
async fn scale_stateful_set(ctx: &Context, work: Work<'_>, to: u32) -> Result<(), ActError> {
    let observation = &work.objects.observation;
    // The uid and resourceVersion make the API server reject the patch if the StatefulSet was changed or recreated.
    let patch = json!({
        "metadata": {
            "uid": observation.stateful_set.as_ref().map(|set| &set.uid),
            "resourceVersion": observation.stateful_set.as_ref().map(|set| &set.resource_version),
        },
        "spec": { "replicas": to },
    });
    let name = Names::new(work.etcd).stateful_set();
    let set = Target::new::<StatefulSet>(&work.desired.namespace, &name);
    Ok(ctx.writer.merge(&set, &patch).await?)
}

async fn launch_job(
    ctx: &Context,
    work: Work<'_>,
    coordinator: &Arc<Coordinator>,
    (ordinal, task): (Ordinal, RecoveryJobKind),
    incident: &Incident,
) -> Result<(), ActError> {
    let Some(held) = resume_lock(coordinator, work, "renew the lock before starting a Job").await?
    else {
        return Ok(());
    };
    // A Job for a stale attempt would overwrite the volume of a newer one.
    if !is_incident_unchanged(coordinator, Some(incident)).await? {
        return Ok(());
    }
    let epoch = held.token().epoch.0;
    // The restorer refuses to write a volume on which a higher epoch is recorded.
    let fence = format!("{epoch}/{}/{}", incident.id, incident.attempt);
    let mut job = build_job(ctx, work, (ordinal, task), (incident, fence))?;
    let (phase, message) = match task {
        RecoveryJobKind::Restore => (RestorePhase::Restoring, "Restoring data"),
        RecoveryJobKind::RenameToPrevious => (
            RestorePhase::Pending,
            "Setting the data directory aside, so that the member joins as a new one",
        ),
    };
    report_member(&held.fence(), work, ordinal, (phase, message)).await;
    job.metadata.annotations.get_or_insert_default().extend([
        (INCIDENT.to_owned(), incident.token.clone()),
        (ATTEMPT.to_owned(), incident.attempt.to_string()),
    ]);
    Ok(ctx.writer.create(&Target::of(&job), &job).await?)
}

fn build_job(
    ctx: &Context,
    work: Work<'_>,
    (ordinal, task): (Ordinal, RecoveryJobKind),
    (incident, fence): (&Incident, String),
) -> Result<Job, ActError> {
    let shape = build_job_shape(work);
    let rendered = match task {
        RecoveryJobKind::Restore => {
            let restore = RestoreJob {
                ordinal: ordinal.0,
                // Restored as a cluster of one; the other members join it as learners.
                members: vec![ordinal.0],
                cluster_token: incident.token.clone(),
                target: to_job_target(&incident.target),
                prefer_volume: incident.source == RecoverySource::BestCopy,
                revision_bump: Some(REVISION_BUMP),
                fence,
                deadline: Some(RESTORE_DEADLINE),
            };
            jobs::render_restore_job(work.etcd, &ctx.settings, &shape, &restore)
        }
        RecoveryJobKind::RenameToPrevious => {
            let aside = SetAsideJob {
                ordinal: ordinal.0,
                fence,
                deadline: Some(RENAME_DEADLINE),
            };
            jobs::render_set_aside_job(work.etcd, &ctx.settings, &shape, &aside)
        }
    };
    rendered.map_err(|source| ActError::Render { source })
}

/// The renderer input for Jobs: the cluster as it is now.
pub(crate) fn build_job_shape(work: Work<'_>) -> Rendered {
    let stage = work.objects.observation.stateful_set.as_ref();
    Rendered {
        peer_tls: objects::resolve_peer_tls(
            work,
            stage.map(|set| set.peer_tls_stage).unwrap_or_default(),
        ),
        local_store_root: work.objects.local_store_root.clone(),
        ..Rendered::from_etcd(work.etcd)
    }
}

fn to_job_target(target: &RecoveryTarget) -> jobs::RestorePoint {
    match target {
        RecoveryTarget::Newest => jobs::RestorePoint::Newest,
        RecoveryTarget::Revision(revision) => jobs::RestorePoint::Revision(*revision),
        RecoveryTarget::Time(time) => jobs::RestorePoint::Time(time.to_string()),
        RecoveryTarget::Full { name, revision } => jobs::RestorePoint::Full {
            name: name.clone(),
            revision: *revision,
        },
    }
}

async fn delete_job(
    ctx: &Context,
    work: Work<'_>,
    ordinal: Ordinal,
    uid: &str,
) -> Result<(), ActError> {
    let name = Names::new(work.etcd).restore_job(ordinal.0);
    let job = Target::new::<Job>(&work.desired.namespace, &name);
    let deleted = ctx.writer.delete(&job, Some(uid), Dependents::Background);
    Ok(deleted.await?)
}

async fn close_incident(
    ctx: &Context,
    work: Work<'_>,
    coordinator: &Arc<Coordinator>,
    (from, to): (&Incident, &Incident),
) -> Result<(), ActError> {
    let Some(held) = resume_lock(
        coordinator,
        work,
        "renew the lock before closing the incident",
    )
    .await?
    else {
        return Ok(());
    };
    for (ordinal, job) in &work.objects.observation.recovery.jobs {
        delete_job(ctx, work, *ordinal, &job.uid).await?;
    }
    // After the Jobs: the Jobs of a closed incident are never deleted.
    record_incident(&held.fence(), Some(from), to).await?;
    report_base_member(&held.fence(), work, to).await;
    for other in (0..to.size).filter(|other| *other != to.base) {
        remove_member_report(&held.fence(), work, Ordinal(other)).await;
    }
    ctx.metrics.record_recovery(to);
    release_lock(held).await
}

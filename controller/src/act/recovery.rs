//! The steps of a recovery, each done once.
//!
//! **Holds**: every step begins by showing a sign of life as the holder of the lock, and by looking whether the document still
//! says what the step was decided on; a step decided on an older picture does nothing. Somebody else's lock is never
//! taken before it has expired.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Resource};
use mainstay_coordination::incident::{Cause, Incident, Source, Stage, Target};
use mainstay_coordination::member::{MemberState, Phase};
use mainstay_coordination::{
    Attempt, Claim, ConfigMapBacking, CoordinationError, Coordinator, Epoch, Fence, Purpose, Wish,
};
use mainstay_crds::Etcd;
use mainstay_manifests::jobs::{self, Bump, RestoreJob, SetAsideJob};
use mainstay_manifests::labels::{Component, of_object};
use mainstay_manifests::{Names, Shape as Rendered};
use mainstay_telemetry::Chain;
use serde_json::json;
use tracing::{info, warn};

use super::marks::{ATTEMPT, FIELD_MANAGER, HOLDER, INCIDENT};
use super::objects::resource;
use super::{ActError, Work, apply, objects};
use crate::cadence;
use crate::context::Context;
use crate::decide::Shape;
use crate::decide::recovery::{Recovery, Task};
use crate::observe::{Ordinal, SeenLock};

/// How much revisions are raised: more than a cluster writes between two snapshots, far less than there are.
const RAISED_BY: Bump = Bump(1_000_000_000);
/// How long a restore may take before it is begun anew.
const RESTORE_DEADLINE: Duration = Duration::from_hours(12);
/// How long renaming a directory may take, with mounting its volume.
const ASIDE_DEADLINE: Duration = Duration::from_mins(10);

/// Carries out a plan whose step is one of a recovery.
pub(super) async fn carry_out(
    ctx: &Context,
    work: Work<'_>,
    shape: Option<&Shape>,
    step: &Recovery,
) -> Result<(), ActError> {
    if let Recovery::Scale { to, .. } = step {
        let coordinator = coordinator(ctx, work.etcd);
        if !may_scale(work, &coordinator).await? {
            return Ok(());
        }
        return match shape {
            Some(shape) => match objects::apply(ctx, work, shape).await {
                Err(error) if *to == 0 && error.is_refusal() => {
                    scale(ctx, work, *to).await?;
                    Err(error)
                }
                applied => applied.map(drop), // which has the number of pods
            },
            None => scale(ctx, work, *to).await,
        };
    }
    let applied = match shape {
        Some(shape) => objects::apply(ctx, work, shape).await,
        None => return take(ctx, work, step).await,
    };
    // What the spec asks for besides is no reason to leave data lost.
    if applied.as_ref().err().is_none_or(ActError::is_refusal) {
        take(ctx, work, step).await?;
    }
    applied.map(drop)
}

async fn take(ctx: &Context, work: Work<'_>, step: &Recovery) -> Result<(), ActError> {
    ctx.leadership
        .check()
        .map_err(|source| ActError::Fenced { source })?;
    let coordinator = coordinator(ctx, work.etcd);
    match step {
        Recovery::Open(incident) => open(&coordinator, incident).await,
        Recovery::Reclaim => acquire(&coordinator, Purpose::Restore).await.map(drop),
        Recovery::Outrank { above } => outrank(&coordinator, work, *above).await,
        Recovery::Renew(_) => hold(&coordinator, work, "renew the lock").await.map(drop),
        Recovery::Release => match hold(&coordinator, work, "give the lock back").await? {
            Some(held) => release(held).await,
            None => Ok(()),
        },
        Recovery::Scale { .. } => Ok(()), // see above
        Recovery::Launch {
            ordinal,
            task,
            incident,
        } => launch(ctx, work, &coordinator, (*ordinal, *task), incident).await,
        Recovery::RemoveJob { ordinal, uid } => {
            let Some(_held) = hold(&coordinator, work, "delete a Job").await? else {
                return Ok(());
            };
            let incident = work.objects.observation.recovery.incident.as_ref();
            if !is_still(&coordinator, incident).await? {
                return Ok(()); // it may be wanted after all
            }
            remove_job(ctx, work, *ordinal, uid).await
        }
        Recovery::Record { from, to } => {
            let Some(held) = hold(&coordinator, work, "write down how far it is").await? else {
                return Ok(());
            };
            record(&held.fence(), Some(from), to).await?;
            tell_base(&held.fence(), work, to).await;
            Ok(())
        }
        Recovery::Close { from, to } => close(ctx, work, &coordinator, (from, to)).await,
    }
}

/// Access to the document of an Etcd. It is made with the labels it is watched by.
pub(crate) fn coordinator(ctx: &Context, etcd: &Etcd) -> Arc<Coordinator> {
    let names = Names::of(etcd);
    let key = crate::context::Key {
        namespace: names.namespace.to_owned(),
        name: names.etcd.to_owned(),
    };
    let uid = etcd.metadata.uid.as_deref().unwrap_or_default();
    ctx.memory.coordinator((&key, uid), || {
        let name = names.coordination();
        let metadata = ObjectMeta {
            labels: Some(of_object(names.etcd, &name, Component::Coordination)),
            owner_references: etcd.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        };
        let backing = ConfigMapBacking::new(ctx.client.clone(), names.namespace, &name);
        Coordinator::new(Arc::new(backing.created_with(metadata)))
    })
}

type Held = mainstay_coordination::Held;

fn failed(step: &'static str) -> impl Fn(CoordinationError) -> ActError {
    move |source| ActError::Coordinate { step, source }
}

/// Takes the lock, or goes on holding it; `None` while somebody else has it.
pub(crate) async fn acquire(
    coordinator: &Arc<Coordinator>,
    purpose: Purpose,
) -> Result<Option<Held>, ActError> {
    let wish = Wish {
        holder: HOLDER.to_owned(),
        purpose,
        ttl: cadence::LOCK_TTL,
    };
    let step = "take the lock";
    match coordinator.try_acquire(&wish).await.map_err(failed(step))? {
        Attempt::Held(held) => Ok(Some(held)),
        Attempt::Busy { lock, .. } if lock.holder == HOLDER => {
            let claim = Claim {
                holder: lock.holder,
                epoch: lock.epoch,
            };
            coordinator
                .resume(&claim)
                .await
                .map(Some)
                .map_err(failed(step))
        }
        Attempt::Busy { lock, .. } => {
            info!(
                holder = lock.holder,
                "the lock is held; the recovery waits for it"
            );
            Ok(None)
        }
    }
}

/// The lock as it was seen to be ours; `None` when it is not any more.
async fn hold(
    coordinator: &Arc<Coordinator>,
    work: Work<'_>,
    step: &'static str,
) -> Result<Option<Held>, ActError> {
    let SeenLock::Ours { epoch, .. } = work.objects.observation.recovery.lock else {
        return Ok(None);
    };
    let claim = Claim {
        holder: HOLDER.to_owned(),
        epoch,
    };
    match coordinator.resume(&claim).await {
        Ok(held) => Ok(Some(held)),
        // What was seen is old; the next pass sees what is.
        Err(CoordinationError::Lost { source, .. }) => {
            warn!(error = %source, "the lock is not what it was seen to be");
            Ok(None)
        }
        Err(source) => Err(ActError::Coordinate { step, source }),
    }
}

/// Raises the epoch of the lock, if it is still ours; the next Job is launched under it.
async fn outrank(
    coordinator: &Arc<Coordinator>,
    work: Work<'_>,
    above: Epoch,
) -> Result<(), ActError> {
    let step = "raise the epoch of the lock";
    let Some(held) = hold(coordinator, work, step).await? else {
        return Ok(());
    };
    match held.raise(above).await {
        Ok(held) => {
            info!(%above, epoch = %held.claim().epoch, "a volume remembers a greater epoch; the lock went above it");
            Ok(())
        }
        Err(CoordinationError::Lost { source, .. }) => {
            warn!(error = %source, "the lock is not what it was seen to be");
            Ok(())
        }
        Err(source) => Err(ActError::Coordinate { step, source }),
    }
}

async fn release(held: Held) -> Result<(), ActError> {
    match held.release().await {
        Ok(()) | Err(CoordinationError::Lost { .. }) => Ok(()),
        Err(source) => Err(ActError::Coordinate {
            step: "give the lock back",
            source,
        }),
    }
}

async fn open(coordinator: &Arc<Coordinator>, incident: &Incident) -> Result<(), ActError> {
    let purpose = match incident.cause {
        Cause::QuorumLost => Purpose::RecoverQuorum,
        Cause::MemberLost | Cause::FormerBackup | Cause::Requested => Purpose::Restore,
    };
    let Some(held) = acquire(coordinator, purpose).await? else {
        return Ok(());
    };
    let step = "read the document";
    let found = coordinator.incident().await.map_err(failed(step))?;
    if found.as_ref().is_some_and(Incident::is_open) {
        return Ok(()); // an earlier pass was here
    }
    record(&held.fence(), found.as_ref(), incident).await
}

/// Writes an incident. A document that says something else already is left: the next pass sees it.
async fn record(fence: &Fence, from: Option<&Incident>, to: &Incident) -> Result<(), ActError> {
    let step = "write down how far the recovery is";
    let found = fence.record(from, to).await.map_err(failed(step))?;
    if found.as_ref() != Some(to) {
        info!("the recovery is further than it was seen to be");
    }
    Ok(())
}

/// Tells how far the member is that the cluster is made from.
async fn tell_base(fence: &Fence, work: Work<'_>, incident: &Incident) {
    let phase = match incident.stage {
        Stage::Restoring => Phase::Pending,
        Stage::Restored => Phase::Restored,
        Stage::Closed => Phase::Confirmed,
        Stage::Abandoned | Stage::Failed => Phase::Failed,
    };
    let base = Ordinal(incident.base);
    report(fence, work, base, (phase, &incident.message)).await;
}

/// Tells how far a member is. Whoever reads the document wants to know; nothing is decided by it, so that a failure is
/// only told.
async fn report(fence: &Fence, work: Work<'_>, ordinal: Ordinal, (phase, words): (Phase, &str)) {
    let state = MemberState::new(phase, Timestamp::now()).with_message(words);
    let name = work.wanted.member(ordinal);
    if let Err(error) = fence.report(&name, &state).await {
        warn!(error = %Chain(&error), member = name, "how far a member is was not written down");
    }
}

async fn forget(fence: &Fence, work: Work<'_>, ordinal: Ordinal) {
    let name = work.wanted.member(ordinal);
    if let Err(error) = fence.forget(&name).await {
        warn!(error = %Chain(&error), member = name, "what was written down of a member stays");
    }
}

/// Whether the document still says what a step was decided on.
async fn is_still(
    coordinator: &Coordinator,
    incident: Option<&Incident>,
) -> Result<bool, ActError> {
    let found = coordinator
        .incident()
        .await
        .map_err(failed("read the document"))?;
    Ok(found.as_ref() == incident)
}

async fn may_scale(work: Work<'_>, coordinator: &Arc<Coordinator>) -> Result<bool, ActError> {
    let recovery = &work.objects.observation.recovery;
    let held = hold(coordinator, work, "change the number of pods").await?;
    Ok(held.is_some() && is_still(coordinator, recovery.incident.as_ref()).await?)
}

/// Starts or stops pods, and changes nothing else.
async fn scale(ctx: &Context, work: Work<'_>, to: u32) -> Result<(), ActError> {
    let observation = &work.objects.observation;
    let patch = json!({
        "metadata": {
            "uid": observation.set.as_ref().map(|set| &set.uid),
            "resourceVersion": observation.set.as_ref().map(|set| &set.resource_version),
        },
        "spec": { "replicas": to },
    });
    ctx.leadership
        .check()
        .map_err(|source| ActError::Fenced { source })?;
    let name = Names::of(work.etcd).stateful_set();
    let sets = Api::<StatefulSet>::namespaced(ctx.client.clone(), &work.wanted.namespace);
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    sets.patch(&name, &params, &Patch::Merge(&patch))
        .await
        .map_err(|source| ActError::Patch {
            kind: "StatefulSet".to_owned(),
            name,
            source: Box::new(source),
        })?;
    ctx.metrics.wrote("StatefulSet");
    Ok(())
}

async fn launch(
    ctx: &Context,
    work: Work<'_>,
    coordinator: &Arc<Coordinator>,
    (ordinal, task): (Ordinal, Task),
    incident: &Incident,
) -> Result<(), ActError> {
    let Some(held) = hold(coordinator, work, "start a Job").await? else {
        return Ok(());
    };
    if !is_still(coordinator, Some(incident)).await? {
        return Ok(());
    }
    let epoch = held.claim().epoch.0;
    let fence = format!("{epoch}/{}/{}", incident.id, incident.attempt);
    let mut job = job(ctx, work, (ordinal, task), (incident, fence))?;
    let (phase, words) = match task {
        Task::Restore => (Phase::Restoring, "its data is restored"),
        Task::SetAside => (
            Phase::Pending,
            "its old data is put aside, so that it joins anew",
        ),
    };
    report(&held.fence(), work, ordinal, (phase, words)).await;
    job.metadata.annotations.get_or_insert_default().extend([
        (INCIDENT.to_owned(), incident.token.clone()),
        (ATTEMPT.to_owned(), incident.attempt.to_string()),
    ]);
    create(ctx, &work.wanted.namespace, &job).await
}

/// Creates a Job; one that is there already is the one of an earlier pass.
pub(crate) async fn create(ctx: &Context, namespace: &str, job: &Job) -> Result<(), ActError> {
    ctx.leadership
        .check()
        .map_err(|source| ActError::Fenced { source })?;
    let jobs = Api::<Job>::namespaced(ctx.client.clone(), namespace);
    match jobs.create(&PostParams::default(), job).await {
        Ok(_) => {
            ctx.metrics.wrote("Job");
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        Err(source) => Err(ActError::Apply {
            kind: "Job".to_owned(),
            name: job.metadata.name.clone().unwrap_or_default(),
            source: Box::new(source),
        }),
    }
}

fn job(
    ctx: &Context,
    work: Work<'_>,
    (ordinal, task): (Ordinal, Task),
    (incident, fence): (&Incident, String),
) -> Result<Job, ActError> {
    let shape = shape(work);
    let rendered = match task {
        Task::Restore => {
            let restore = RestoreJob {
                ordinal: ordinal.0,
                members: vec![ordinal.0],
                token: incident.token.clone(),
                target: target(&incident.target),
                prefers_volume: incident.source == Source::BestCopy,
                bump: Some(RAISED_BY),
                fence,
                deadline: Some(RESTORE_DEADLINE),
            };
            jobs::restore_job(work.etcd, &ctx.settings, &shape, &restore)
        }
        Task::SetAside => {
            let aside = SetAsideJob {
                ordinal: ordinal.0,
                fence,
                deadline: Some(ASIDE_DEADLINE),
            };
            jobs::set_aside_job(work.etcd, &ctx.settings, &shape, &aside)
        }
    };
    rendered.map_err(|source| ActError::Render { source })
}

/// The shape Jobs are rendered with: what the cluster is now.
pub(crate) fn shape(work: Work<'_>) -> Rendered {
    let stage = work.objects.observation.set.as_ref();
    Rendered {
        peer_tls: objects::peer_tls(work, stage.map(|set| set.peer_stage).unwrap_or_default()),
        local_store_root: work.objects.local_store_root.clone(),
        ..Rendered::of(work.etcd)
    }
}

fn target(target: &Target) -> jobs::Target {
    match target {
        Target::Newest => jobs::Target::Newest,
        Target::Revision(revision) => jobs::Target::Revision(*revision),
        Target::Time(time) => jobs::Target::Time(time.to_string()),
        Target::Full { name, revision } => jobs::Target::Full {
            name: name.clone(),
            revision: *revision,
        },
    }
}

async fn remove_job(
    ctx: &Context,
    work: Work<'_>,
    ordinal: Ordinal,
    uid: &str,
) -> Result<(), ActError> {
    let meta = ObjectMeta {
        name: Some(Names::of(work.etcd).restore_job(ordinal.0)),
        namespace: Some(work.wanted.namespace.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectMeta::default()
    };
    apply::delete(ctx, &resource::<Job>(), &meta, DeleteParams::background()).await
}

async fn close(
    ctx: &Context,
    work: Work<'_>,
    coordinator: &Arc<Coordinator>,
    (from, to): (&Incident, &Incident),
) -> Result<(), ActError> {
    let Some(held) = hold(coordinator, work, "end the recovery").await? else {
        return Ok(());
    };
    for (ordinal, job) in &work.objects.observation.recovery.jobs {
        remove_job(ctx, work, *ordinal, &job.uid).await?;
    }
    record(&held.fence(), Some(from), to).await?;
    tell_base(&held.fence(), work, to).await;
    for other in (0..to.size).filter(|other| *other != to.base) {
        forget(&held.fence(), work, Ordinal(other)).await;
    }
    ctx.metrics.recovered(to);
    release(held).await
}

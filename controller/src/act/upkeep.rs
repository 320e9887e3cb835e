//! What is done for a backup: Jobs that are started and removed, and the snapshot asked for in their place.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams};
use kube::{Api, ResourceExt};
use mainstay_coordination::lock::LONGEST_TTL;
use mainstay_coordination::{PinWish, Purpose, RevisionRange};
use mainstay_crds::Etcd;
use mainstay_ids::Revision;
use mainstay_manifests::Names;
use mainstay_manifests::jobs::{self, CompactionJob, DrillJob, Target};
use mainstay_manifests::labels::{COMPONENT, Component};
use mainstay_telemetry::Chain;
use serde_json::json;
use tracing::{info, warn};

use super::marks::{FIELD_MANAGER, HOLDER};
use super::objects::resource;
use super::recovery::{coordinator, create, shape};
use super::snapshots::{self, Ask};
use super::{ActError, Work, apply, live_hash};
use crate::context::Context;
use crate::decide::upkeep::{Chore, PIN_RENEWAL, PinOf, piled_up};
use crate::observe::jobs::state;
use crate::observe::{self, FallBack, JobState, SeenJob};
use crate::quantity::quantity;

/// A database is built beside a copy of itself; the rest is for what the format adds.
const SCRATCH_FACTOR: u64 = 3;
/// What a scratch volume has at least.
const SCRATCH_LEAST: u64 = 1 << 30;

/// Who reads a backup while retention must leave it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader<'a> {
    /// A Job of the upkeep.
    Upkeep(PinOf),
    /// The Job of a task that checks the backup.
    Verification,
    /// The Job of the copy task of this name.
    Copy(&'a str),
}

impl Reader<'_> {
    /// The name of its pin in the coordination document.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Upkeep(of) => of.name().to_owned(),
            Self::Verification => "verification".to_owned(),
            Self::Copy(task) => format!("copy-{task}"),
        }
    }

    fn purpose(self) -> Purpose {
        match self {
            Self::Upkeep(PinOf::Compaction) => Purpose::Compact,
            Self::Upkeep(PinOf::Drill) => Purpose::Drill,
            Self::Verification => Purpose::Other("verify".to_owned()),
            Self::Copy(_) => Purpose::Copy,
        }
    }
}

/// Does all of it.
pub async fn chores(ctx: &Context, work: Work<'_>, chores: &[Chore]) -> Result<(), ActError> {
    measure(ctx, work);
    for chore in chores {
        info!(?chore, "for the backup");
        match chore {
            Chore::Compact { from } => compact(ctx, work, *from).await?,
            Chore::FullSnapshot => fall_back(ctx, work),
            Chore::RetireCompaction { uid, wrote } => {
                retire_compaction(ctx, work, uid, *wrote).await?;
            }
            Chore::Drill { to } => drill(ctx, work, *to).await?,
            Chore::RetireDrill { uid } => retire_drill(ctx, work, uid).await?,
            Chore::KeepPin { pin: of, from } => {
                pin(ctx, work.etcd, Reader::Upkeep(*of), *from).await?;
            }
        }
    }
    Ok(())
}

/// How much has piled up, and how many Jobs fold deltas, by namespace as etcd-druid has it.
fn measure(ctx: &Context, work: Work<'_>) {
    let (key, namespace) = (work.wanted.key(), &work.wanted.namespace);
    let piled_up = || piled_up(&work.objects.observation);
    let piled_up = work.wanted.backup.as_ref().and_then(|_| piled_up());
    ctx.metrics.delta_events(&key, piled_up);
    let is_running = |job: &Job| {
        job.labels().get(COMPONENT).map(String::as_str) == Some(Component::CompactionJob.name())
            && job.namespace().as_ref() == Some(namespace)
            && state(job, || None) == JobState::Running
    };
    let jobs = ctx.stores.jobs.state();
    let running = jobs.iter().filter(|job| is_running(&job.unpack())).count();
    ctx.metrics.compacting(&key, running);
}

/// Starts the Job that folds deltas, unless one is there.
pub async fn compact(ctx: &Context, work: Work<'_>, from: i64) -> Result<(), ActError> {
    pin(ctx, work.etcd, Reader::Upkeep(PinOf::Compaction), from).await?;
    let compaction = CompactionJob {
        deadline: Some(ctx.policy.upkeep.deadline),
        scratch: scratch(work),
    };
    let job = jobs::compaction_job(work.etcd, &ctx.settings, &shape(work), &compaction);
    let job = job.map_err(|source| ActError::Render { source })?;
    create(ctx, &work.wanted.namespace, &job).await
}

async fn drill(ctx: &Context, work: Work<'_>, to: Option<i64>) -> Result<(), ActError> {
    let full = work.objects.observation.full_snapshot.as_ref();
    let from = full.and_then(|full| full.revision).unwrap_or_default();
    pin(ctx, work.etcd, Reader::Upkeep(PinOf::Drill), from).await?;
    let expected = match to.or_else(|| newest_stored(work)) {
        Some(revision) => live_hash::at(ctx, work, Revision(revision)).await,
        None => None,
    };
    let drill = DrillJob {
        target: to.map_or(Target::Newest, Target::Revision),
        expected,
        deadline: Some(ctx.policy.upkeep.deadline),
        scratch: scratch(work),
    };
    let job = jobs::drill_job(work.etcd, &ctx.settings, &shape(work), &drill);
    let job = job.map_err(|source| ActError::Render { source })?;
    create(ctx, &work.wanted.namespace, &job).await
}

/// The newest revision the backup is told to hold.
fn newest_stored(work: Work<'_>) -> Option<i64> {
    let seen = &work.objects.observation;
    let leases = [&seen.full_snapshot, &seen.delta_snapshot];
    let revisions = leases
        .into_iter()
        .filter_map(|lease| lease.as_ref()?.revision);
    revisions.filter(|revision| *revision > 0).max()
}

/// Enough for the database as the members have it; what the node has when nobody knows.
fn scratch(work: Work<'_>) -> Option<k8s_openapi::apimachinery::pkg::api::resource::Quantity> {
    let members = work.etcd.status.as_ref()?.members.as_ref()?;
    let largest = members
        .iter()
        .filter_map(|member| member.db_size_bytes)
        .max()?;
    let bytes = u64::try_from(largest).ok()?.saturating_mul(SCRATCH_FACTOR);
    Some(quantity(bytes.saturating_add(SCRATCH_LEAST)))
}

/// Keeps retention from what a Job is about to read.
pub(crate) async fn pin(
    ctx: &Context,
    etcd: &Etcd,
    of: Reader<'_>,
    from: i64,
) -> Result<(), ActError> {
    ctx.leadership
        .check()
        .map_err(|source| ActError::Fenced { source })?;
    let wish = PinWish {
        revisions: Some(RevisionRange {
            first: Revision(from),
            last: None,
        }),
        ..wish(of)
    };
    let coordinator = coordinator(ctx, etcd);
    let pinned = coordinator.pin(&wish).await;
    pinned.map(drop).map_err(|source| ActError::Coordinate {
        step: "pin what is read",
        source,
    })
}

/// The same while a Job reads: a pin whose last sign of life is recent is left alone.
pub(crate) async fn keep_pin(
    ctx: &Context,
    etcd: &Etcd,
    of: Reader<'_>,
    from: i64,
) -> Result<(), ActError> {
    let seen = observe::upkeep::seen(&ctx.stores, etcd);
    let is_recent = seen.pins.get(&of.name()).is_some_and(|pin| {
        Timestamp::now().duration_since(pin.renewed).unsigned_abs() < PIN_RENEWAL
    });
    if is_recent {
        return Ok(());
    }
    pin(ctx, etcd, of, from).await
}

/// Takes a pin away. One that stays expires.
pub(crate) async fn unpin(ctx: &Context, etcd: &Etcd, of: Reader<'_>) {
    let coordinator = coordinator(ctx, etcd);
    let removed = async { coordinator.pin(&wish(of)).await?.remove().await };
    if let Err(error) = removed.await {
        warn!(error = %Chain(&error), pin = of.name(), "a pin was not removed and will expire");
    }
}

/// A pin of nothing yet.
fn wish(of: Reader<'_>) -> PinWish {
    PinWish {
        name: of.name(),
        holder: HOLDER.to_owned(),
        purpose: of.purpose(),
        keys: BTreeSet::new(),
        revisions: None,
        ttl: LONGEST_TTL,
    }
}

async fn retire_compaction(
    ctx: &Context,
    work: Work<'_>,
    uid: &str,
    wrote: Option<i64>,
) -> Result<(), ActError> {
    if let Some(revision) = wrote {
        tell_full(ctx, work, revision).await?;
    }
    remove(ctx, work, Names::of(work.etcd).compaction_job(), uid).await?;
    if let Some(job) = &work.objects.observation.upkeep.compaction {
        ctx.metrics
            .compacted(&work.wanted.key(), &job.state, took(job));
    }
    unpin(ctx, work.etcd, Reader::Upkeep(PinOf::Compaction)).await;
    Ok(())
}

async fn retire_drill(ctx: &Context, work: Work<'_>, uid: &str) -> Result<(), ActError> {
    remove(ctx, work, Names::of(work.etcd).drill_job(), uid).await?;
    if let Some(job) = &work.objects.observation.upkeep.drill {
        let succeeded = matches!(job.state, JobState::Succeeded { .. });
        ctx.metrics.drilled(&work.wanted.key(), succeeded);
    }
    unpin(ctx, work.etcd, Reader::Upkeep(PinOf::Drill)).await;
    Ok(())
}

fn took(job: &SeenJob) -> Option<std::time::Duration> {
    let (created, ended) = (job.created?, job.state.ended()?);
    Some(ended.duration_since(created).unsigned_abs())
}

async fn remove(ctx: &Context, work: Work<'_>, name: String, uid: &str) -> Result<(), ActError> {
    let meta = ObjectMeta {
        name: Some(name),
        namespace: Some(work.wanted.namespace.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectMeta::default()
    };
    apply::delete(ctx, &resource::<Job>(), &meta, DeleteParams::background()).await
}

/// The Job does not talk to the API server, so its snapshot is told here. A newer one is not overruled.
async fn tell_full(ctx: &Context, work: Work<'_>, revision: i64) -> Result<(), ActError> {
    let name = Names::of(work.etcd).full_snapshot_lease();
    let failed = |source| ActError::Patch {
        kind: "Lease".to_owned(),
        name: name.clone(),
        source: Box::new(source),
    };
    let leases = Api::<Lease>::namespaced(ctx.client.clone(), &work.wanted.namespace);
    let Some(lease) = leases.get_opt(&name).await.map_err(failed)? else {
        return Ok(());
    };
    let spec = lease.spec.as_ref();
    let held = spec.and_then(|spec| spec.holder_identity.as_ref()?.parse::<i64>().ok());
    remember_full(ctx, work, held.unwrap_or_default().max(revision));
    if held.is_some_and(|held| held >= revision) {
        return Ok(());
    }
    ctx.leadership
        .check()
        .map_err(|source| ActError::Fenced { source })?;
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(Timestamp::now());
    let patch = json!({
        "metadata": { "resourceVersion": lease.metadata.resource_version },
        "spec": { "holderIdentity": revision.to_string(), "renewTime": now },
    });
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    leases
        .patch(&name, &params, &Patch::Merge(&patch))
        .await
        .map_err(failed)?;
    ctx.metrics.wrote("Lease");
    Ok(())
}

/// The caches hear of the Lease later than of the Job, and a Job that is gone must not be followed by another for the same deltas.
fn remember_full(ctx: &Context, work: Work<'_>, revision: i64) {
    let seen = work.objects.observation.full_snapshot.as_ref();
    let before = seen.and_then(|lease| lease.revision);
    ctx.memory
        .full_snapshot(&work.wanted.key(), before, revision);
}

/// Asks the leader's sidecar in a task of its own; what became of it is seen in the next pass.
fn fall_back(ctx: &Context, work: Work<'_>) {
    let key = work.wanted.key();
    ctx.memory.fall_back(&key, FallBack::Running);
    let (memory, client, poke) = (ctx.memory.clone(), ctx.client.clone(), ctx.poke.clone());
    let (etcd, seen) = (work.etcd.clone(), work.objects.observation.clone());
    let metrics = ctx.metrics.clone();
    ctx.tasks.spawn(async move {
        let outcome = snapshots::ask(&client, &etcd, &seen, Ask::full(&etcd)).await;
        metrics.fell_back(&key, outcome.is_ok());
        let state = match outcome {
            Ok(answer) => {
                if let Some(revision) = answer["lastRevision"].as_i64() {
                    let lease = seen.full_snapshot.as_ref();
                    let before = lease.and_then(|lease| lease.revision);
                    memory.full_snapshot(&key, before, revision);
                }
                FallBack::Taken
            }
            Err(error) => FallBack::Failed {
                why: Chain(&error).to_string(),
            },
        };
        memory.fall_back(&key, state);
        poke.etcd(&key);
    });
}

//! Executes the upkeep of a backup: starts and deletes compaction and drill Jobs, and requests the fallback snapshot.
//!
//! **Invariant**: the objects that a Job reads are pinned before the Job is created, so that retention does not delete them.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, ResourceExt};
use mainstay_coordination::lock::MAX_TTL;
use mainstay_coordination::{PinRequest, Purpose, RevisionRange};
use mainstay_crds::Etcd;
use mainstay_ids::Revision;
use mainstay_manifests::Names;
use mainstay_manifests::jobs::{self, CompactionJob, DrillJob, RestorePoint};
use mainstay_manifests::labels::{COMPONENT, Component};
use mainstay_telemetry::ErrorChain;
use serde_json::json;
use tracing::{info, warn};

use super::recovery::{build_job_shape, get_coordinator};
use super::snapshots::{self, SidecarRequest};
use super::{ActError, Work, live_hash};
use crate::context::Context;
use crate::model::annotations::LOCK_HOLDER;
use crate::model::{FallbackSnapshot, JobState, ObservedJob, PIN_RENEWAL, PinOwner, UpkeepAction};
use crate::observe;
use crate::observe::jobs::job_state;
use crate::quantity::to_quantity;
use crate::writer::{Dependents, Target};

/// Scratch volume per byte of database: the restored database, a copy of it, and overhead of the format.
const SCRATCH_FACTOR: u64 = 3;
/// Added to every scratch volume.
const SCRATCH_MIN_BYTES: u64 = 1 << 30;

/// A Job that reads a backup, which retention must not delete meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackupReader<'a> {
    /// A compaction or drill Job.
    Upkeep(PinOwner),
    /// The Job of a `verifyBackup` task.
    Verification,
    /// The Job of the copy task with this name.
    Copy(&'a str),
}

impl BackupReader<'_> {
    /// Name of its pin in the coordination ConfigMap.
    pub(crate) fn pin_name(self) -> String {
        match self {
            Self::Upkeep(owner) => owner.name().to_owned(),
            Self::Verification => "verification".to_owned(),
            Self::Copy(task) => format!("copy-{task}"),
        }
    }

    fn purpose(self) -> Purpose {
        match self {
            Self::Upkeep(PinOwner::Compaction) => Purpose::Compact,
            Self::Upkeep(PinOwner::Drill) => Purpose::Drill,
            Self::Verification => Purpose::Other("verify".to_owned()),
            Self::Copy(_) => Purpose::Copy,
        }
    }
}

/// Executes all upkeep actions.
pub(crate) async fn perform_upkeep(
    ctx: &Context,
    work: Work<'_>,
    actions: &[UpkeepAction],
) -> Result<(), ActError> {
    update_metrics(ctx, work);
    for action in actions {
        info!(?action, "executing backup upkeep");
        match action {
            UpkeepAction::StartCompaction { from_revision } => {
                start_compaction(ctx, work, *from_revision).await?;
            }
            UpkeepAction::RequestFullSnapshot => request_fallback_snapshot(ctx, work),
            UpkeepAction::DeleteCompactionJob {
                uid,
                snapshot_revision,
            } => {
                finish_compaction(ctx, work, uid, *snapshot_revision).await?;
            }
            UpkeepAction::StartDrill { to_revision } => {
                start_drill(ctx, work, *to_revision).await?;
            }
            UpkeepAction::DeleteDrillJob { uid } => finish_drill(ctx, work, uid).await?,
            UpkeepAction::RenewPin {
                owner: pin_owner,
                from_revision,
            } => {
                create_pin(
                    ctx,
                    work.etcd,
                    BackupReader::Upkeep(*pin_owner),
                    *from_revision,
                )
                .await?;
            }
        }
    }
    Ok(())
}

/// Updates the gauges of accumulated delta events and running compactions, per namespace like etcd-druid.
fn update_metrics(ctx: &Context, work: Work<'_>) {
    let (key, namespace) = (work.desired.key(), &work.desired.namespace);
    let count = |_| work.objects.observation.count_events_since_full();
    let delta_events = work.desired.backup.as_ref().and_then(count);
    ctx.metrics.set_delta_events(&key, delta_events);
    let is_running = |job: &Job| {
        job.labels().get(COMPONENT).map(String::as_str) == Some(Component::CompactionJob.name())
            && job.namespace().as_ref() == Some(namespace)
            && job_state(job, || None) == JobState::Running
    };
    let jobs = ctx.stores.jobs.state();
    let running = jobs.iter().filter(|job| is_running(&job.unpack())).count();
    ctx.metrics.set_running_compactions(&key, running);
}

/// Pins the backup from revision `from` and creates the compaction Job, unless it exists.
pub(crate) async fn start_compaction(
    ctx: &Context,
    work: Work<'_>,
    from: i64,
) -> Result<(), ActError> {
    // The pin comes first: retention could delete the deltas before the Job reads them.
    create_pin(
        ctx,
        work.etcd,
        BackupReader::Upkeep(PinOwner::Compaction),
        from,
    )
    .await?;
    let compaction = CompactionJob {
        deadline: Some(ctx.policy.upkeep.job_deadline),
        scratch_size: compute_scratch_size(work),
    };
    let job = jobs::render_compaction_job(
        work.etcd,
        &ctx.settings,
        &build_job_shape(work),
        &compaction,
    );
    let job = job.map_err(|source| ActError::Render { source })?;
    Ok(ctx.writer.create(&Target::of(&job), &job).await?)
}

async fn start_drill(ctx: &Context, work: Work<'_>, to: Option<i64>) -> Result<(), ActError> {
    let full = work.objects.observation.full_snapshot.as_ref();
    let from = full.and_then(|full| full.revision).unwrap_or_default();
    create_pin(ctx, work.etcd, BackupReader::Upkeep(PinOwner::Drill), from).await?;
    // Without a hash the drill still restores the backup, but cannot compare it with etcd.
    let expected_hash = match to.or_else(|| find_newest_revision(work)) {
        Some(revision) => live_hash::query_hash(ctx, work, Revision(revision)).await,
        None => None,
    };
    let drill = DrillJob {
        target: to.map_or(RestorePoint::Newest, RestorePoint::Revision),
        expected_hash,
        deadline: Some(ctx.policy.upkeep.job_deadline),
        scratch_size: compute_scratch_size(work),
    };
    let job = jobs::render_drill_job(work.etcd, &ctx.settings, &build_job_shape(work), &drill);
    let job = job.map_err(|source| ActError::Render { source })?;
    Ok(ctx.writer.create(&Target::of(&job), &job).await?)
}

/// The newest revision of the backup according to the snapshot Leases.
fn find_newest_revision(work: Work<'_>) -> Option<i64> {
    let observed = &work.objects.observation;
    let leases = [&observed.full_snapshot, &observed.delta_snapshot];
    let revisions = leases
        .into_iter()
        .filter_map(|lease| lease.as_ref()?.revision);
    revisions.filter(|revision| *revision > 0).max()
}

/// Size of the scratch volume for the largest member database; `None` (no limit) when no size is known.
fn compute_scratch_size(
    work: Work<'_>,
) -> Option<k8s_openapi::apimachinery::pkg::api::resource::Quantity> {
    let members = work.etcd.status.as_ref()?.members.as_ref()?;
    let largest = members
        .iter()
        .filter_map(|member| member.db_size_bytes)
        .max()?;
    let bytes = u64::try_from(largest).ok()?.saturating_mul(SCRATCH_FACTOR);
    Some(to_quantity(bytes.saturating_add(SCRATCH_MIN_BYTES)))
}

/// Pins the backup from revision `from`, so that retention does not delete what a Job is about to read.
pub(crate) async fn create_pin(
    ctx: &Context,
    etcd: &Etcd,
    reader: BackupReader<'_>,
    from: i64,
) -> Result<(), ActError> {
    ctx.writer.check_leadership()?;
    let pin_request = PinRequest {
        revisions: Some(RevisionRange {
            first: Revision(from),
            last: None,
        }),
        ..build_pin_request(reader)
    };
    let coordinator = get_coordinator(ctx, etcd);
    let pinned = coordinator.create_pin(&pin_request).await;
    pinned.map(drop).map_err(|source| ActError::Coordinate {
        step: "pin the backup for a Job",
        source,
    })
}

/// Renews the pin of a running Job, unless it was renewed recently.
pub(crate) async fn renew_pin(
    ctx: &Context,
    etcd: &Etcd,
    reader: BackupReader<'_>,
    from: i64,
) -> Result<(), ActError> {
    let observed = observe::upkeep::observe_upkeep(&ctx.stores, etcd);
    let is_recent = observed.pins.get(&reader.pin_name()).is_some_and(|pin| {
        Timestamp::now()
            .duration_since(pin.renewed_at)
            .unsigned_abs()
            < PIN_RENEWAL
    });
    if is_recent {
        return Ok(());
    }
    create_pin(ctx, etcd, reader, from).await
}

/// Removes a pin. A failure is logged only, because the pin expires.
pub(crate) async fn remove_pin(ctx: &Context, etcd: &Etcd, reader: BackupReader<'_>) {
    let coordinator = get_coordinator(ctx, etcd);
    let removed = async {
        coordinator
            .create_pin(&build_pin_request(reader))
            .await?
            .remove()
            .await
    };
    if let Err(error) = removed.await {
        warn!(error = %ErrorChain(&error), pin = reader.pin_name(), "failed to remove pin; it will expire");
    }
}

/// A pin request without keys and revisions.
fn build_pin_request(reader: BackupReader<'_>) -> PinRequest {
    PinRequest {
        name: reader.pin_name(),
        holder: LOCK_HOLDER.to_owned(),
        purpose: reader.purpose(),
        keys: BTreeSet::new(),
        revisions: None,
        ttl: MAX_TTL,
    }
}

async fn finish_compaction(
    ctx: &Context,
    work: Work<'_>,
    uid: &str,
    snapshot_revision: Option<i64>,
) -> Result<(), ActError> {
    // Before the Job is deleted: afterwards its result is gone.
    if let Some(revision) = snapshot_revision {
        publish_full_snapshot(ctx, work, revision).await?;
    }
    delete_job(ctx, work, &Names::new(work.etcd).compaction_job(), uid).await?;
    if let Some(job) = &work.objects.observation.upkeep.compaction {
        ctx.metrics
            .record_compaction(&work.desired.key(), &job.state, compute_duration(job));
    }
    remove_pin(ctx, work.etcd, BackupReader::Upkeep(PinOwner::Compaction)).await;
    Ok(())
}

async fn finish_drill(ctx: &Context, work: Work<'_>, uid: &str) -> Result<(), ActError> {
    delete_job(ctx, work, &Names::new(work.etcd).drill_job(), uid).await?;
    if let Some(job) = &work.objects.observation.upkeep.drill {
        let succeeded = matches!(job.state, JobState::Succeeded { .. });
        ctx.metrics.record_drill(&work.desired.key(), succeeded);
    }
    remove_pin(ctx, work.etcd, BackupReader::Upkeep(PinOwner::Drill)).await;
    Ok(())
}

fn compute_duration(job: &ObservedJob) -> Option<std::time::Duration> {
    let (created, ended) = (job.created_at?, job.state.ended_at()?);
    Some(ended.duration_since(created).unsigned_abs())
}

async fn delete_job(ctx: &Context, work: Work<'_>, name: &str, uid: &str) -> Result<(), ActError> {
    let job = Target::new::<Job>(&work.desired.namespace, name);
    let deleted = ctx.writer.delete(&job, Some(uid), Dependents::Background);
    Ok(deleted.await?)
}

/// Publishes the snapshot of a compaction Job in the full snapshot Lease. The Job has no access to the API server.
async fn publish_full_snapshot(
    ctx: &Context,
    work: Work<'_>,
    revision: i64,
) -> Result<(), ActError> {
    let name = Names::new(work.etcd).full_snapshot_lease();
    let failed = |source| ActError::Read {
        kind: "Lease".to_owned(),
        name: name.clone(),
        source: Box::new(source),
    };
    let leases = Api::<Lease>::namespaced(ctx.client.clone(), &work.desired.namespace);
    let Some(lease) = leases.get_opt(&name).await.map_err(failed)? else {
        return Ok(());
    };
    let spec = lease.spec.as_ref();
    let published = spec.and_then(|spec| spec.holder_identity.as_ref()?.parse::<i64>().ok());
    record_full_snapshot(ctx, work, published.unwrap_or_default().max(revision));
    // A newer snapshot of the sidecar wins.
    if published.is_some_and(|published| published >= revision) {
        return Ok(());
    }
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(Timestamp::now());
    // The sidecar writes this Lease too: the resourceVersion keeps its newer revision from being overwritten.
    let patch = json!({
        "metadata": { "resourceVersion": lease.metadata.resource_version },
        "spec": { "holderIdentity": revision.to_string(), "renewTime": now },
    });
    let target = Target::of(&lease);
    Ok(ctx.writer.merge(&target, &patch).await?)
}

/// Records the snapshot locally. The cache may observe the deleted Job before the changed Lease, and would start another
/// compaction of the same deltas.
fn record_full_snapshot(ctx: &Context, work: Work<'_>, revision: i64) {
    let observed = work.objects.observation.full_snapshot.as_ref();
    let before = observed.and_then(|lease| lease.revision);
    ctx.local
        .record_full_snapshot(&work.desired.key(), before, revision);
}

/// Requests a full snapshot from the sidecar of the leader in a background task, which triggers the next reconcile.
fn request_fallback_snapshot(ctx: &Context, work: Work<'_>) {
    let key = work.desired.key();
    // Recorded before the task starts, so that the next reconcile does not request a second snapshot.
    ctx.local.set_fallback(&key, FallbackSnapshot::Running);
    let (local, client, trigger) = (ctx.local.clone(), ctx.client.clone(), ctx.trigger.clone());
    let (etcd, observed) = (work.etcd.clone(), work.objects.observation.clone());
    let metrics = ctx.metrics.clone();
    ctx.background_tasks.spawn(async move {
        let outcome = snapshots::call_sidecar(
            &client,
            &etcd,
            &observed,
            SidecarRequest::full_snapshot(&etcd),
        )
        .await;
        metrics.record_fallback_snapshot(&key, outcome.is_ok());
        let state = match outcome {
            Ok(response) => {
                if let Some(revision) = response["lastRevision"].as_i64() {
                    let lease = observed.full_snapshot.as_ref();
                    let before = lease.and_then(|lease| lease.revision);
                    local.record_full_snapshot(&key, before, revision);
                }
                FallbackSnapshot::Taken
            }
            Err(error) => FallbackSnapshot::Failed {
                reason: ErrorChain(&error).to_string(),
            },
        };
        local.set_fallback(&key, state);
        trigger.request(&key);
    });
}

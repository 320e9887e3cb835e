//! One reconcile of one Etcd: validate → observe → decide → act → publish status.
//!
//! Invariants: a reconcile may be repeated, and may be cancelled at any await. A reconcile that fails while acting still
//! publishes the observed state.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use mainstay_crds::{Etcd, EtcdStatus};
use mainstay_ids::EtcdVersion;
use mainstay_telemetry::ErrorChain;
use tokio::time::Instant;
use tracing::{Instrument, debug, info_span, warn};

use crate::act::{self, ActError, ActOutcome, Teardown, Work};
use crate::caches::LazyEtcd;
use crate::context::Context;
use crate::decide;
use crate::fingerprint::hash_value;
use crate::intervals;
use crate::metrics::ReconcileOutcome;
use crate::model::{
    Blocker, DesiredState, EtcdKey, LastKnown, LogRead, Observation, ReconcilePlan,
    RestoreProgress, World,
};
use crate::observe::{self, DialError, Dialer, Objects};
use crate::publish;
use crate::status::{self, Facts, ReconcileFailure};
use crate::validate::{self, SpecError};
use crate::writer::{Finalizer, WriteError};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ReconcileError {
    /// Another version of the CRD may have admitted it.
    #[error("failed to parse the Etcd resource")]
    InvalidResource { source: serde_json::Error },
    /// A request hangs.
    #[error("reconcile did not finish within {:?}", intervals::RECONCILE_TIMEOUT)]
    Timeout,
    #[error("invalid spec")]
    Validate { source: SpecError },
    #[error("failed to observe the cluster")]
    Observe { source: DialError },
    #[error("failed to carry out the plan")]
    Act { source: ActError },
    #[error("failed to update the Etcd resource")]
    Publish { source: WriteError },
}

pub(crate) async fn reconcile(
    guard: Arc<LazyEtcd>,
    ctx: Arc<Context>,
) -> Result<Action, ReconcileError> {
    let key = EtcdKey {
        namespace: guard.meta().namespace.clone().unwrap_or_default(),
        name: guard.name_any(),
    };
    let span = info_span!("reconcile", cluster = %key);
    let started = Instant::now();
    let outcome = async {
        let version = guard.meta().resource_version.as_deref();
        // The watch has not delivered our last write yet: deciding on the older version would repeat it.
        if ctx.local.is_stale(&key, version) {
            let soon = Action::requeue(intervals::AFTER_STEP);
            return Ok(ReconcileResult::new(soon, false));
        }
        let etcd = guard.parse().map(Box::new);
        let etcd = etcd.map_err(|source| ReconcileError::InvalidResource { source })?;
        let reconciling = Box::pin(reconcile_etcd(&etcd, &ctx, &key));
        // kube runs one reconcile per object: a hanging one would block this Etcd for ever.
        let in_time = tokio::time::timeout(intervals::RECONCILE_TIMEOUT, reconciling).await;
        in_time.unwrap_or(Err(ReconcileError::Timeout))
    }
    .instrument(span)
    .await;
    let outcome_label = match &outcome {
        Ok(ReconcileResult {
            is_settled: true, ..
        }) => ReconcileOutcome::Settled,
        Ok(_) => ReconcileOutcome::InProgress,
        Err(_) => ReconcileOutcome::Failed,
    };
    ctx.metrics
        .record_reconcile(outcome_label, started.elapsed());
    // A permanent error counts as done: retrying does not change it.
    if outcome.as_ref().err().is_none_or(is_permanent) {
        ctx.probe.record_reconciled("Etcd", &*guard);
    }
    outcome.map(|result| {
        if result.is_deleted {
            ctx.local.remove_cluster(&key);
            ctx.metrics.remove_cluster(&key);
        } else {
            ctx.local.record_success(&key);
        }
        result.action
    })
}

/// When to retry a failed reconcile: exponential backoff, or only after a change for permanent errors.
#[expect(clippy::needless_pass_by_value, reason = "the signature is kube's")]
pub(crate) fn error_policy(
    guard: Arc<LazyEtcd>,
    error: &ReconcileError,
    ctx: Arc<Context>,
) -> Action {
    let key = EtcdKey {
        namespace: guard.meta().namespace.clone().unwrap_or_default(),
        name: guard.name_any(),
    };
    warn!(cluster = %key, error = %ErrorChain(error), "reconcile failed");
    if is_permanent(error) {
        return Action::await_change();
    }
    let (first, longest) = intervals::ERROR_BACKOFF;
    let doublings = ctx.local.record_failure(&key).saturating_sub(1).min(16);
    let pause = first.saturating_mul(1 << doublings).min(longest);
    Action::requeue(with_jitter(pause, &key))
}

/// Whether only a change of the resource can fix the error.
fn is_permanent(error: &ReconcileError) -> bool {
    matches!(
        error,
        ReconcileError::InvalidResource { .. } | ReconcileError::Validate { .. }
    )
}

struct ReconcileResult {
    action: Action,
    is_settled: bool,
    /// The finalizer is removed.
    is_deleted: bool,
}

impl ReconcileResult {
    fn new(action: Action, is_settled: bool) -> Self {
        Self {
            action,
            is_settled,
            is_deleted: false,
        }
    }
}

async fn reconcile_etcd(
    etcd: &Etcd,
    ctx: &Context,
    key: &EtcdKey,
) -> Result<ReconcileResult, ReconcileError> {
    let now = Timestamp::now();
    // Before validation: an Etcd with an invalid spec can be deleted as well.
    if etcd.metadata.deletion_timestamp.is_some() {
        return tear_down(etcd, ctx).await;
    }
    let desired = match validate::validate_etcd(etcd, &ctx.settings.images.etcd) {
        Ok(desired) => desired,
        Err(source) => return Err(report_invalid_spec(etcd, ctx, source).await),
    };
    // Before the first object is created, so that none is orphaned by a deletion.
    let publish_failed = |source| ReconcileError::Publish { source };
    let finalized = publish::set_finalizer(ctx, etcd, Finalizer::Present).await;
    finalized.map_err(publish_failed)?;
    let known = read_last_known(etcd);
    let objects = observe_cluster(etcd, ctx, &desired, &known, now).await?;
    let world = World {
        desired: &desired,
        observed: &objects.observation,
        policy: &ctx.policy,
        last_known: &known,
        now,
    };
    let plan = decide::decide(&world);
    debug!(step = ?plan.step, generation = etcd.metadata.generation, "plan computed");
    let work = Work {
        etcd,
        desired: &desired,
        objects: &objects,
    };
    let acted = execute_plan(ctx, work, &plan, &world).await;
    // The plan was made on an outdated cache: observe again instead of reporting an error.
    if is_write_conflict(&acted) {
        let action = Action::requeue(intervals::AFTER_STEP);
        return Ok(ReconcileResult::new(action, false));
    }
    let plan = adjust_plan(plan, &acted);
    let failure = acted.as_ref().err().map(to_failure);
    let run_id = ctx.next_run_id();
    let facts = Facts {
        etcd,
        desired: &desired,
        observed: &objects.observation,
        plan: &plan,
        policy: &ctx.policy,
        last_known: &known,
        failure: failure.as_ref(),
        thresholds: ctx.thresholds,
        run_id: &run_id,
        now,
    };
    let status = status::compute(&facts);
    // The status is published even if acting failed: it names the error.
    let published = publish_status(ctx, etcd, &status, (key, &objects)).await;
    acted.map_err(|source| ReconcileError::Act { source })?;
    published.map_err(publish_failed)?;
    // After the status: Gardener takes the removed annotation as the sign that the status is current.
    let removed = remove_handled_annotations(ctx, etcd, &plan, &world).await;
    removed.map_err(publish_failed)?;
    let facts_due = has_missing_facts(&status).then(|| ctx.local.facts_retry_delay(key));
    // Missing versions are queried earlier than the plan requires.
    let pause = requeue_interval(&plan, &facts, key).min(facts_due.unwrap_or(Duration::MAX));
    let action = Action::requeue(pause);
    Ok(ReconcileResult::new(action, plan.is_settled()))
}

/// Publishes the status, then drops the outcome that it reports. The other order would lose the outcome on a conflict.
async fn publish_status(
    ctx: &Context,
    etcd: &Etcd,
    status: &EtcdStatus,
    (key, objects): (&EtcdKey, &Objects),
) -> Result<(), WriteError> {
    publish::write_status(ctx, etcd, status).await?;
    let outcome = &objects.observation.upkeep.fallback;
    ctx.local.clear_published_fallback(key, outcome);
    Ok(())
}

/// Removes annotations whose request is done, or whose recovery is finished.
async fn remove_handled_annotations(
    ctx: &Context,
    etcd: &Etcd,
    plan: &ReconcilePlan,
    world: &World<'_>,
) -> Result<(), WriteError> {
    if world.desired.requests.reconcile && world.is_spec_accepted() && plan.effective_spec.is_some()
    {
        publish::remove_reconcile_request(ctx, etcd).await?;
    }
    if world.desired.recovery.approved_id.is_some() && is_cluster_healthy(plan, world) {
        publish::remove_recovery_approval(ctx, etcd).await?;
    }
    Ok(())
}

/// Whether all members exist and are ready and no step or recovery is in progress. Refusals of the spec do not count.
fn is_cluster_healthy(plan: &ReconcilePlan, world: &World<'_>) -> bool {
    let is_ready = |ordinal| world.pod(ordinal).is_some_and(|pod| pod.is_ready);
    let is_idle = plan.step.is_none() && world.observed.recovery.open_incident().is_none();
    is_idle && world.size() > 0 && world.ordinals().all(is_ready)
}

/// Carries out the plan first, then compactions and restore drills.
async fn execute_plan(
    ctx: &Context,
    work: Work<'_>,
    plan: &ReconcilePlan,
    world: &World<'_>,
) -> Result<ActOutcome, ActError> {
    let acted = act::execute_plan(ctx, work, plan).await?;
    act::perform_upkeep(ctx, work, &decide::upkeep::plan_actions(world)).await?;
    Ok(acted)
}

/// A reconcile that changed the StatefulSet is not settled until its controller has observed the change.
fn adjust_plan(plan: ReconcilePlan, acted: &Result<ActOutcome, ActError>) -> ReconcilePlan {
    let has_begun = acted
        .as_ref()
        .is_ok_and(|acted| acted.has_changed_stateful_set);
    if plan.step.is_none() && has_begun {
        plan.into_waiting(Blocker::StatefulSetUnobserved)
    } else {
        plan
    }
}

/// A conflict means that another write won. It reaches the caches soon, so the reconcile is repeated and not failed.
fn is_write_conflict(acted: &Result<ActOutcome, ActError>) -> bool {
    let conflict = acted.as_ref().err().filter(|error| error.is_conflict());
    if let Some(error) = conflict {
        debug!(error = %ErrorChain(error), "write conflict, reconciling again");
    }
    conflict.is_some()
}

/// Publishes an invalid spec as an error; no object is changed.
async fn report_invalid_spec(etcd: &Etcd, ctx: &Context, source: SpecError) -> ReconcileError {
    let published = publish::publish_spec_error(ctx, etcd, &source).await;
    match published {
        Ok(()) => ReconcileError::Validate { source },
        Err(source) => ReconcileError::Publish { source },
    }
}

fn to_failure(error: &ActError) -> ReconcileFailure {
    ReconcileFailure {
        code: error.code(),
        description: ErrorChain(error).to_string(),
    }
}

/// Facts that only earlier reconciles could observe, read back from the status.
fn read_last_known(etcd: &Etcd) -> LastKnown {
    let status = etcd.status.as_ref();
    let members = status.and_then(|status| status.members.as_ref());
    let versions = members
        .into_iter()
        .flatten()
        .filter_map(|member| member.version.as_deref());
    LastKnown {
        observed_generation: status.and_then(|status| status.observed_generation),
        // The oldest member limits the upgrade path.
        etcd_version: versions.filter_map(EtcdVersion::parse).min(),
        data_lost_since: status.and_then(status::read_data_lost_since),
        upkeep: status.map(status::read_reported_upkeep).unwrap_or_default(),
    }
}

/// Observes the cluster. etcd is queried only while something changes, and periodically for versions and sizes.
async fn observe_cluster(
    etcd: &Etcd,
    ctx: &Context,
    desired_state: &DesiredState,
    last_known: &LastKnown,
    now: Timestamp,
) -> Result<Objects, ReconcileError> {
    let key = desired_state.key();
    let mut objects = observe::observe_objects(&ctx.stores, etcd);
    // A Secret, which is not watched: read when needed.
    objects.local_store_root = observe::read_local_store_root(&ctx.client, etcd)
        .await
        .map_err(|source| ReconcileError::Observe { source })?;
    objects.ca_fingerprint = observe::observe_ca(&ctx.client, etcd).await;
    // Watches lag behind our own writes; a cache without them would make a step run twice.
    ctx.local.overlay_own_writes(&key, &mut objects.observation);
    // A PVC without our label is missing from the cache; taking it for deleted could start a recovery.
    observe::confirm_missing_pvcs(&ctx.client, etcd, &mut objects.observation).await;
    objects.observation.snapshot_request = ctx.local.snapshot_request(&key);
    objects.observation.upkeep.fallback = ctx.local.fallback(&key);
    objects.observation.recovery.progress =
        read_restore_progress(ctx, &key, &objects.observation, now).await;
    objects.observation.expansion_refusal =
        ctx.local
            .expansion_refusal(&key, desired_state.storage_bytes, now);
    let world = World {
        desired: desired_state,
        observed: &objects.observation,
        policy: &ctx.policy,
        last_known,
        now,
    };
    if decide::should_query_members(&world) || should_refresh_facts(etcd, ctx, &key, now) {
        let dialer = Dialer::new(&ctx.client, etcd);
        let membership = observe::query_members(&dialer, etcd, &objects.observation).await;
        ctx.local.record_query(&key, now);
        objects.observation.membership = membership;
    }
    Ok(objects)
}

/// Progress of a running restore, from the log of its pod. The log is read at intervals, and only while a restore runs.
async fn read_restore_progress(
    ctx: &Context,
    key: &EtcdKey,
    observed: &Observation,
    now: Timestamp,
) -> Option<RestoreProgress> {
    let job = &observed.recovery.running_restore()?.uid;
    // The progress of another Job says nothing about this one.
    let known = ctx
        .local
        .last_log_read(key)
        .filter(|known| known.job_uid == *job);
    let is_due = known.as_ref().is_none_or(|known| known.is_due(now));
    let pod = || observe::progress::find_running_pod(&ctx.stores, &key.namespace, job);
    let Some(pod) = is_due.then(pod).flatten() else {
        return known?.progress;
    };
    let log = observe::progress::read_log(&ctx.client, &key.namespace, &pod).await;
    let known = LogRead::from_log(known.as_ref(), job, log.as_deref(), now);
    ctx.local.record_log_read(key, known.clone());
    known.progress
}

/// Whether versions and sizes are due for a refresh. After a controller restart the queries are spread over the interval.
fn should_refresh_facts(etcd: &Etcd, ctx: &Context, key: &EtcdKey, now: Timestamp) -> bool {
    let Some(status) = etcd.status.as_ref().filter(|status| has_members(status)) else {
        return false;
    };
    let requested = ctx.local.last_query(key);
    let waited = |requested| now.duration_since(requested).unsigned_abs();
    if has_missing_facts(status) {
        let retry_delay = ctx.local.facts_retry_delay(key);
        let is_due = requested.is_none_or(|requested| waited(requested) >= retry_delay);
        if is_due {
            ctx.local.record_missing_facts(key);
        }
        return is_due;
    }
    ctx.local.clear_missing_facts(key);
    // The controller restarted: pretend an earlier query at a time that is fixed per cluster.
    let Some(requested) = requested else {
        let span = intervals::MEMBER_FACTS_REFRESH.as_secs();
        let earlier = jiff::SignedDuration::from_secs(
            i64::try_from(hash_value(key) % span).unwrap_or_default(),
        );
        ctx.local
            .record_query(key, now.checked_sub(earlier).unwrap_or(now));
        return false;
    };
    waited(requested) >= intervals::MEMBER_FACTS_REFRESH
}

fn has_members(status: &EtcdStatus) -> bool {
    status.members.as_ref().is_some_and(|all| !all.is_empty())
}

/// Whether the version of a reported member is unknown.
fn has_missing_facts(status: &EtcdStatus) -> bool {
    let mut members = status.members.iter().flatten();
    members.any(|member| member.version.is_none())
}

/// Time until the next reconcile without a watch event.
fn requeue_interval(plan: &ReconcilePlan, facts: &Facts<'_>, key: &EtcdKey) -> Duration {
    // Jitter only for idle clusters: a step in progress is not delayed.
    let planned = if plan.step.is_none() {
        with_jitter(plan.requeue_after, key)
    } else {
        plan.requeue_after
    };
    status::requeue_after(facts).map_or(planned, |due| due.min(planned))
}

/// Shortens the interval by a share that is fixed per cluster, so that many clusters do not reconcile at once.
fn with_jitter(pause: Duration, key: &EtcdKey) -> Duration {
    let percent = hash_value(key) % intervals::JITTER_PERCENT;
    let share = u32::try_from(100 - percent).unwrap_or(100);
    pause * share / 100
}

async fn tear_down(etcd: &Etcd, ctx: &Context) -> Result<ReconcileResult, ReconcileError> {
    let left = act::tear_down(ctx, etcd)
        .await
        .map_err(|source| ReconcileError::Act { source })?;
    let action = match left {
        Teardown::InProgress(left) => {
            publish::publish_deletion_progress(ctx, etcd, left)
                .await
                .map_err(|source| ReconcileError::Publish { source })?;
            Action::requeue(intervals::WAIT_POLL)
        }
        Teardown::Done => {
            // Before the Etcd's own finalizer: after its removal no reconcile would do it.
            act::remove_secret_finalizers(ctx, etcd).await;
            publish::set_finalizer(ctx, etcd, Finalizer::Absent)
                .await
                .map_err(|source| ReconcileError::Publish { source })?;
            Action::await_change()
        }
    };
    Ok(ReconcileResult {
        action,
        is_settled: false,
        is_deleted: left == Teardown::Done,
    })
}

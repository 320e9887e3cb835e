//! One pass over one Etcd: validate → observe → decide → act → tell.
//!
//! Safe to repeat, safe to abandon at any await. Whatever stops a pass, what was seen until then is told.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use mainstay_crds::{Etcd, EtcdStatus};
use mainstay_telemetry::ErrorChain;
use tokio::time::Instant;
use tracing::{Instrument, debug, info_span, warn};

use crate::act::{self, ActError, ActOutcome, Teardown, Work};
use crate::caches::{LazyEtcd, hash_value};
use crate::cadence;
use crate::context::{Context, EtcdKey};
use crate::decide::upgrade::EtcdVersion;
use crate::decide::{self, Blocker, LastKnown, ReconcilePlan, World, is_spec_accepted};
use crate::metrics::ReconcileOutcome;
use crate::observe::{self, DialError, Dialer, LogRead, Objects, Observation, RestoreProgress};
use crate::publish::{self, PublishError};
use crate::status::{self, Facts, ReconcileFailure};
use crate::validate::{self, SpecError, DesiredState};

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReconcileError {
    /// The resource cannot be read; another version may have written it.
    #[error("read the resource")]
    InvalidResource {
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// It took too long; something does not answer.
    #[error("the pass took longer than {:?}", cadence::RECONCILE_TIMEOUT)]
    Timeout,
    /// The spec cannot be worked with.
    #[error("understand the spec")]
    Validate {
        /// What is wrong with it.
        source: SpecError,
    },
    /// What there is cannot be seen.
    #[error("observe")]
    Observe {
        /// What failed.
        source: DialError,
    },
    /// The plan was not carried out.
    #[error("act")]
    Act {
        /// What failed.
        source: ActError,
    },
    /// What is known was not told.
    #[error("tell")]
    Publish {
        /// What failed.
        source: PublishError,
    },
}

/// One pass.
pub async fn reconcile(guard: Arc<LazyEtcd>, ctx: Arc<Context>) -> Result<Action, ReconcileError> {
    let key = EtcdKey {
        namespace: guard.meta().namespace.clone().unwrap_or_default(),
        name: guard.name_any(),
    };
    let span = info_span!("reconcile", cluster = %key);
    let started = Instant::now();
    let outcome = async {
        let version = guard.meta().resource_version.as_deref();
        if ctx.local.is_stale(&key, version) {
            let soon = Action::requeue(cadence::AFTER_STEP);
            return Ok(ReconcileResult::new(soon, false));
        }
        let etcd = guard.parse().map(Box::new);
        let etcd = etcd.map_err(|source| ReconcileError::InvalidResource { source })?;
        let pass = Box::pin(reconcile_etcd(&etcd, &ctx, &key));
        let in_time = tokio::time::timeout(cadence::RECONCILE_TIMEOUT, pass).await;
        in_time.unwrap_or(Err(ReconcileError::Timeout))
    }
    .instrument(span)
    .await;
    let word = match &outcome {
        Ok(ReconcileResult {
            is_settled: true, ..
        }) => ReconcileOutcome::Settled,
        Ok(_) => ReconcileOutcome::InProgress,
        Err(_) => ReconcileOutcome::Failed,
    };
    ctx.metrics.record_reconcile(word, started.elapsed());
    if outcome.as_ref().err().is_none_or(is_permanent) {
        ctx.probe.record_reconciled("Etcd", &*guard);
    }
    outcome.map(|passed| {
        if passed.is_deleted {
            ctx.local.remove_cluster(&key);
            ctx.metrics.remove_cluster(&key);
        } else {
            ctx.local.record_success(&key);
        }
        passed.action
    })
}

/// When to try again after a pass failed.
#[expect(clippy::needless_pass_by_value, reason = "the signature is kube's")]
pub fn error_policy(guard: Arc<LazyEtcd>, error: &ReconcileError, ctx: Arc<Context>) -> Action {
    let key = EtcdKey {
        namespace: guard.meta().namespace.clone().unwrap_or_default(),
        name: guard.name_any(),
    };
    warn!(cluster = %key, error = %ErrorChain(error), "a pass failed");
    if is_permanent(error) {
        return Action::await_change();
    }
    let (first, longest) = cadence::ERROR_BACKOFF;
    let doublings = ctx.local.record_failure(&key).saturating_sub(1).min(16);
    let pause = first.saturating_mul(1 << doublings).min(longest);
    Action::requeue(with_jitter(pause, &key))
}

/// Whether only a change of the resource helps.
fn is_permanent(error: &ReconcileError) -> bool {
    matches!(
        error,
        ReconcileError::InvalidResource { .. } | ReconcileError::Validate { .. }
    )
}

/// How a pass ended.
struct ReconcileResult {
    action: Action,
    is_settled: bool,
    /// The resource is let go.
    is_deleted: bool,
}

impl ReconcileResult {
    /// The resource stays.
    fn new(action: Action, is_settled: bool) -> Self {
        Self {
            action,
            is_settled,
            is_deleted: false,
        }
    }
}

async fn reconcile_etcd(etcd: &Etcd, ctx: &Context, key: &EtcdKey) -> Result<ReconcileResult, ReconcileError> {
    let now = Timestamp::now();
    // Also one whose spec cannot be worked with.
    if etcd.metadata.deletion_timestamp.is_some() {
        return tear_down(etcd, ctx).await;
    }
    let wanted = match validate::validate_etcd(etcd, &ctx.settings.images.etcd) {
        Ok(wanted) => wanted,
        Err(source) => return Err(report_invalid_spec(etcd, ctx, source).await),
    };
    publish::add_finalizer(ctx, etcd)
        .await
        .map_err(|source| ReconcileError::Publish { source })?;
    let known = read_last_known(etcd);
    let objects = observe_cluster(etcd, ctx, &wanted, &known, now).await?;
    let world = World {
        desired: &wanted,
        observed: &objects.observation,
        policy: &ctx.policy,
        last_known: &known,
        now,
    };
    let plan = decide::decide(&world);
    debug!(step = ?plan.step, generation = etcd.metadata.generation, "decided");
    let work = Work {
        etcd,
        desired: &wanted,
        objects: &objects,
    };
    let acted = execute_plan(ctx, work, &plan, &world).await;
    if is_write_conflict(&acted) {
        return Ok(ReconcileResult::new(Action::requeue(cadence::AFTER_STEP), false));
    }
    let plan = adjust_plan(plan, &acted);
    let failure = acted.as_ref().err().map(to_failure);
    let run_id = ctx.next_run_id();
    let facts = Facts {
        etcd,
        desired: &wanted,
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
    let told = publish_status(ctx, etcd, &status, (key, &objects)).await;
    acted.map_err(|source| ReconcileError::Act { source })?;
    told.map_err(|source| ReconcileError::Publish { source })?;
    remove_handled_annotations(ctx, etcd, &plan, &world)
        .await
        .map_err(|source| ReconcileError::Publish { source })?;
    let facts_due = has_missing_facts(&status).then(|| ctx.local.facts_retry_delay(key));
    let pause = requeue_interval(&plan, &facts, key).min(facts_due.unwrap_or(Duration::MAX));
    Ok(ReconcileResult::new(Action::requeue(pause), plan.is_settled()))
}

/// Publishes the status. Only then an outcome that it reports may be forgotten: a conflict would lose it.
async fn publish_status(
    ctx: &Context,
    etcd: &Etcd,
    status: &EtcdStatus,
    (key, objects): (&EtcdKey, &Objects),
) -> Result<(), PublishError> {
    publish::write_status(ctx, etcd, status).await?;
    let outcome = &objects.observation.upkeep.fallback;
    ctx.local.clear_published_fallback(key, outcome);
    Ok(())
}

/// Removes annotations that ask for what is done, or approve what is over.
async fn remove_handled_annotations(
    ctx: &Context,
    etcd: &Etcd,
    plan: &ReconcilePlan,
    world: &World<'_>,
) -> Result<(), PublishError> {
    if world.desired.requests.reconcile && is_spec_accepted(world) && plan.effective_spec.is_some() {
        publish::remove_reconcile_request(ctx, etcd).await?;
    }
    if world.desired.recovery.approved_id.is_some() && is_cluster_healthy(plan, world) {
        publish::remove_recovery_approval(ctx, etcd).await?;
    }
    Ok(())
}

/// Whether nothing is lost: members are wanted, all of them are ready, and nothing is done about them. What is refused of a spec
/// has nothing to do with that.
fn is_cluster_healthy(plan: &ReconcilePlan, world: &World<'_>) -> bool {
    let is_ready = |ordinal| world.pod(ordinal).is_some_and(|pod| pod.is_ready);
    let is_idle = plan.step.is_none() && world.observed.recovery.open_incident().is_none();
    is_idle && world.size() > 0 && world.ordinals().all(is_ready)
}

/// The plan first, then what is to be done for the backup.
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

/// Nothing is over before the pods are what the template says.
fn adjust_plan(plan: ReconcilePlan, acted: &Result<ActOutcome, ActError>) -> ReconcilePlan {
    let has_begun = acted.as_ref().is_ok_and(|acted| acted.has_changed_stateful_set);
    if plan.step.is_none() && has_begun {
        plan.into_waiting(Blocker::StatefulSetUnobserved)
    } else {
        plan
    }
}

/// Somebody was faster; what they wrote is on its way to the stores.
fn is_write_conflict(acted: &Result<ActOutcome, ActError>) -> bool {
    let conflict = acted.as_ref().err().filter(|error| error.is_conflict());
    if let Some(error) = conflict {
        debug!(error = %ErrorChain(error), "a write came too late");
    }
    conflict.is_some()
}

/// A spec nobody can work with is told as an error; everything stays as it is.
async fn report_invalid_spec(etcd: &Etcd, ctx: &Context, source: SpecError) -> ReconcileError {
    let told = publish::publish_spec_error(ctx, etcd, &source).await;
    match told {
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

/// What earlier passes told.
fn read_last_known(etcd: &Etcd) -> LastKnown {
    let status = etcd.status.as_ref();
    let members = status.and_then(|status| status.members.as_ref());
    let versions = members
        .into_iter()
        .flatten()
        .filter_map(|member| member.version.as_deref());
    LastKnown {
        observed_generation: status.and_then(|status| status.observed_generation),
        etcd_version: versions.filter_map(EtcdVersion::parse).min(),
        data_lost_since: status.and_then(status::read_data_lost_since),
        upkeep: status.map(status::told_upkeep).unwrap_or_default(),
    }
}

/// What there is. etcd itself is asked when something moves, and now and then for its facts.
async fn observe_cluster(
    etcd: &Etcd,
    ctx: &Context,
    wanted: &DesiredState,
    known: &LastKnown,
    now: Timestamp,
) -> Result<Objects, ReconcileError> {
    let key = wanted.key();
    let mut objects = observe::observe_objects(&ctx.stores, etcd);
    objects.local_store_root = observe::read_local_store_root(&ctx.client, etcd)
        .await
        .map_err(|source| ReconcileError::Observe { source })?;
    objects.ca_fingerprint = observe::observe_ca(&ctx.client, etcd).await;
    ctx.local.overlay_own_writes(&key, &mut objects.observation);
    observe::confirm_missing_pvcs(&ctx.client, etcd, &mut objects.observation).await;
    objects.observation.snapshot_request = ctx.local.snapshot_request(&key);
    objects.observation.upkeep.fallback = ctx.local.fallback(&key);
    objects.observation.recovery.progress = read_restore_progress(ctx, &key, &objects.observation, now).await;
    objects.observation.expansion_refusal =
        ctx.local
            .expansion_refusal(&key, wanted.storage_bytes, now);
    let world = World {
        desired: wanted,
        observed: &objects.observation,
        policy: &ctx.policy,
        last_known: known,
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

/// How far the restore is that goes on. Its log is read now and then, and never at rest.
async fn read_restore_progress(
    ctx: &Context,
    key: &EtcdKey,
    observed: &Observation,
    now: Timestamp,
) -> Option<RestoreProgress> {
    let job = &observed.recovery.running_restore()?.uid;
    let known = ctx.local.last_log_read(key).filter(|known| known.job_uid == *job);
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

/// Versions and sizes grow old slowly. After a restart of the controller they are not all asked for at once.
fn should_refresh_facts(etcd: &Etcd, ctx: &Context, key: &EtcdKey, now: Timestamp) -> bool {
    let Some(status) = etcd.status.as_ref().filter(|status| has_members(status)) else {
        return false;
    };
    let requested = ctx.local.last_query(key);
    let waited = |requested| now.duration_since(requested).unsigned_abs();
    if has_missing_facts(status) {
        let patience = ctx.local.facts_retry_delay(key);
        let is_due = requested.is_none_or(|requested| waited(requested) >= patience);
        if is_due {
            ctx.local.record_missing_facts(key);
        }
        return is_due;
    }
    ctx.local.clear_missing_facts(key);
    let Some(requested) = requested else {
        let span = cadence::MEMBER_FACTS_REFRESH.as_secs();
        let earlier =
            jiff::SignedDuration::from_secs(i64::try_from(hash_value(key) % span).unwrap_or_default());
        ctx.local
            .record_query(key, now.checked_sub(earlier).unwrap_or(now));
        return false;
    };
    waited(requested) >= cadence::MEMBER_FACTS_REFRESH
}

fn has_members(status: &EtcdStatus) -> bool {
    status.members.as_ref().is_some_and(|all| !all.is_empty())
}

/// Whether a member is told of whose version nobody knows.
fn has_missing_facts(status: &EtcdStatus) -> bool {
    let mut members = status.members.iter().flatten();
    members.any(|member| member.version.is_none())
}

/// When to look again although nothing happens.
fn requeue_interval(plan: &ReconcilePlan, facts: &Facts<'_>, key: &EtcdKey) -> Duration {
    let planned = if plan.step.is_none() {
        with_jitter(plan.requeue_after, key)
    } else {
        plan.requeue_after
    };
    status::requeue_after(facts).map_or(planned, |told| told.min(planned))
}

/// Spreads many clusters over time; the same cluster always gets the same share.
fn with_jitter(pause: Duration, key: &EtcdKey) -> Duration {
    let percent = hash_value(key) % cadence::JITTER_PERCENT;
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
            Action::requeue(cadence::WAIT_POLL)
        }
        Teardown::Done => {
            act::remove_secret_finalizers(ctx, etcd).await;
            publish::remove_finalizer(ctx, etcd)
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

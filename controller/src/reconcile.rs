//! One pass over one Etcd: validate → observe → decide → act → tell.
//!
//! Safe to repeat, safe to abandon at any await. Whatever stops a pass, what was seen until then is told.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use mainstay_crds::{Etcd, EtcdStatus};
use mainstay_telemetry::Chain;
use tokio::time::Instant;
use tracing::{Instrument, debug, info_span, warn};

use crate::act::{self, ActError, Acted, Teardown, Work};
use crate::caches::{Guarded, number};
use crate::cadence;
use crate::context::{Context, Key};
use crate::decide::upgrade::Version;
use crate::decide::{self, Blocker, Known, Plan, World, is_accepted};
use crate::metrics::Outcome;
use crate::observe::{self, DialError, Dialer, LogRead, Objects, Observation, Progress};
use crate::publish::{self, PublishError};
use crate::status::{self, Facts, Failure};
use crate::validate::{self, Problem, Wanted};

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReconcileError {
    /// The resource cannot be read; another version may have written it.
    #[error("read the resource")]
    Unreadable {
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// It took too long; something does not answer.
    #[error("the pass took longer than {:?}", cadence::LONGEST_PASS)]
    Abandoned,
    /// The spec cannot be worked with.
    #[error("understand the spec")]
    Validate {
        /// What is wrong with it.
        source: Problem,
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
pub async fn reconcile(guard: Arc<Guarded>, ctx: Arc<Context>) -> Result<Action, ReconcileError> {
    let key = Key {
        namespace: guard.meta().namespace.clone().unwrap_or_default(),
        name: guard.name_any(),
    };
    let span = info_span!("reconcile", cluster = %key);
    let started = Instant::now();
    let outcome = async {
        let version = guard.meta().resource_version.as_deref();
        if ctx.memory.is_outdated(&key, version) {
            let soon = Action::requeue(cadence::AFTER_A_STEP);
            return Ok(Passed::on(soon, false));
        }
        let etcd = guard.read().map(Box::new);
        let etcd = etcd.map_err(|source| ReconcileError::Unreadable { source })?;
        let pass = Box::pin(pass(&etcd, &ctx, &key));
        let in_time = tokio::time::timeout(cadence::LONGEST_PASS, pass).await;
        in_time.unwrap_or(Err(ReconcileError::Abandoned))
    }
    .instrument(span)
    .await;
    let word = match &outcome {
        Ok(Passed {
            is_settled: true, ..
        }) => Outcome::Settled,
        Ok(_) => Outcome::Moving,
        Err(_) => Outcome::Failed,
    };
    ctx.metrics.passed(word, started.elapsed());
    if outcome.as_ref().err().is_none_or(is_lasting) {
        ctx.insight.reconciled("Etcd", &*guard);
    }
    outcome.map(|passed| {
        if passed.is_last {
            ctx.memory.forget(&key);
            ctx.metrics.forget(&key);
        } else {
            ctx.memory.succeeded(&key);
        }
        passed.action
    })
}

/// When to try again after a pass failed.
#[expect(clippy::needless_pass_by_value, reason = "the signature is kube's")]
pub fn error_policy(guard: Arc<Guarded>, error: &ReconcileError, ctx: Arc<Context>) -> Action {
    let key = Key {
        namespace: guard.meta().namespace.clone().unwrap_or_default(),
        name: guard.name_any(),
    };
    warn!(cluster = %key, error = %Chain(error), "a pass failed");
    if is_lasting(error) {
        return Action::await_change();
    }
    let (first, longest) = cadence::ERROR_BACKOFF;
    let doublings = ctx.memory.failed(&key).saturating_sub(1).min(16);
    let pause = first.saturating_mul(1 << doublings).min(longest);
    Action::requeue(jittered(pause, &key))
}

/// Whether only a change of the resource helps.
fn is_lasting(error: &ReconcileError) -> bool {
    matches!(
        error,
        ReconcileError::Unreadable { .. } | ReconcileError::Validate { .. }
    )
}

/// How a pass ended.
struct Passed {
    action: Action,
    is_settled: bool,
    /// The resource is let go.
    is_last: bool,
}

impl Passed {
    /// The resource stays.
    fn on(action: Action, is_settled: bool) -> Self {
        Self {
            action,
            is_settled,
            is_last: false,
        }
    }
}

async fn pass(etcd: &Etcd, ctx: &Context, key: &Key) -> Result<Passed, ReconcileError> {
    let now = Timestamp::now();
    // Also one whose spec cannot be worked with.
    if etcd.metadata.deletion_timestamp.is_some() {
        return tear_down(etcd, ctx).await;
    }
    let wanted = match validate::etcd(etcd, &ctx.settings.images.etcd) {
        Ok(wanted) => wanted,
        Err(source) => return Err(unreadable_spec(etcd, ctx, source).await),
    };
    publish::hold(ctx, etcd)
        .await
        .map_err(|source| ReconcileError::Publish { source })?;
    let known = known(etcd);
    let objects = look(etcd, ctx, &wanted, &known, now).await?;
    let world = World {
        wanted: &wanted,
        seen: &objects.observation,
        policy: &ctx.policy,
        known: &known,
        now,
    };
    let plan = decide::decide(&world);
    debug!(step = ?plan.step, generation = etcd.metadata.generation, "decided");
    let work = Work {
        etcd,
        wanted: &wanted,
        objects: &objects,
    };
    let acted = carry_out(ctx, work, &plan, &world).await;
    if has_come_too_late(&acted) {
        return Ok(Passed::on(Action::requeue(cadence::AFTER_A_STEP), false));
    }
    let plan = in_hindsight(plan, &acted);
    let failure = acted.as_ref().err().map(failure);
    let run_id = ctx.next_run_id();
    let facts = Facts {
        etcd,
        wanted: &wanted,
        seen: &objects.observation,
        plan: &plan,
        policy: &ctx.policy,
        known: &known,
        failure: failure.as_ref(),
        thresholds: ctx.thresholds,
        run_id: &run_id,
        now,
    };
    let status = status::compute(&facts);
    let told = publish_status(ctx, etcd, &status, (key, &objects)).await;
    acted.map_err(|source| ReconcileError::Act { source })?;
    told.map_err(|source| ReconcileError::Publish { source })?;
    take_off_what_is_done(ctx, etcd, &plan, &world)
        .await
        .map_err(|source| ReconcileError::Publish { source })?;
    let facts_due = lacks_facts(&status).then(|| ctx.memory.patience_for_facts(key));
    let pause = wake(&plan, &facts, key).min(facts_due.unwrap_or(Duration::MAX));
    Ok(Passed::on(Action::requeue(pause), plan.is_settled()))
}

/// Publishes the status. Only then an outcome that it reports may be forgotten: a conflict would lose it.
async fn publish_status(
    ctx: &Context,
    etcd: &Etcd,
    status: &EtcdStatus,
    (key, objects): (&Key, &Objects),
) -> Result<(), PublishError> {
    publish::status(ctx, etcd, status).await?;
    let outcome = &objects.observation.upkeep.fall_back;
    ctx.memory.fall_back_was_published(key, outcome);
    Ok(())
}

/// Removes annotations that ask for what is done, or approve what is over.
async fn take_off_what_is_done(
    ctx: &Context,
    etcd: &Etcd,
    plan: &Plan,
    world: &World<'_>,
) -> Result<(), PublishError> {
    if world.wanted.requests.reconcile && is_accepted(world) && plan.shape.is_some() {
        publish::requested_is_done(ctx, etcd).await?;
    }
    if world.wanted.recovery.approved.is_some() && is_all_well(plan, world) {
        publish::approval_is_over(ctx, etcd).await?;
    }
    Ok(())
}

/// Whether nothing is lost: members are wanted, all of them are ready, and nothing is done about them. What is refused of a spec
/// has nothing to do with that.
fn is_all_well(plan: &Plan, world: &World<'_>) -> bool {
    let is_ready = |ordinal| world.pod(ordinal).is_some_and(|pod| pod.is_ready);
    let is_idle = plan.step.is_none() && world.seen.recovery.open().is_none();
    is_idle && world.size() > 0 && world.ordinals().all(is_ready)
}

/// The plan first, then what is to be done for the backup.
async fn carry_out(
    ctx: &Context,
    work: Work<'_>,
    plan: &Plan,
    world: &World<'_>,
) -> Result<Acted, ActError> {
    let acted = act::carry_out(ctx, work, plan).await?;
    act::chores(ctx, work, &decide::upkeep::chores(world)).await?;
    Ok(acted)
}

/// Nothing is over before the pods are what the template says.
fn in_hindsight(plan: Plan, acted: &Result<Acted, ActError>) -> Plan {
    let has_begun = acted.as_ref().is_ok_and(|acted| acted.has_changed_set);
    if plan.step.is_none() && has_begun {
        plan.unfinished(Blocker::SetUnobserved)
    } else {
        plan
    }
}

/// Somebody was faster; what they wrote is on its way to the stores.
fn has_come_too_late(acted: &Result<Acted, ActError>) -> bool {
    let conflict = acted.as_ref().err().filter(|error| error.is_conflict());
    if let Some(error) = conflict {
        debug!(error = %Chain(error), "a write came too late");
    }
    conflict.is_some()
}

/// A spec nobody can work with is told as an error; everything stays as it is.
async fn unreadable_spec(etcd: &Etcd, ctx: &Context, source: Problem) -> ReconcileError {
    let told = publish::problem(ctx, etcd, &source).await;
    match told {
        Ok(()) => ReconcileError::Validate { source },
        Err(source) => ReconcileError::Publish { source },
    }
}

fn failure(error: &ActError) -> Failure {
    Failure {
        code: error.code(),
        description: Chain(error).to_string(),
    }
}

/// What earlier passes told.
fn known(etcd: &Etcd) -> Known {
    let status = etcd.status.as_ref();
    let members = status.and_then(|status| status.members.as_ref());
    let versions = members
        .into_iter()
        .flatten()
        .filter_map(|member| member.version.as_deref());
    Known {
        observed_generation: status.and_then(|status| status.observed_generation),
        version: versions.filter_map(Version::parse).min(),
        loss_since: status.and_then(status::loss_since),
        upkeep: status.map(status::told_upkeep).unwrap_or_default(),
    }
}

/// What there is. etcd itself is asked when something moves, and now and then for its facts.
async fn look(
    etcd: &Etcd,
    ctx: &Context,
    wanted: &Wanted,
    known: &Known,
    now: Timestamp,
) -> Result<Objects, ReconcileError> {
    let key = wanted.key();
    let mut objects = observe::objects(&ctx.stores, etcd);
    objects.local_store_root = observe::local_store_root(&ctx.client, etcd)
        .await
        .map_err(|source| ReconcileError::Observe { source })?;
    objects.authorities = observe::authorities(&ctx.client, etcd).await;
    ctx.memory.correct(&key, &mut objects.observation);
    observe::confirm_missing_claims(&ctx.client, etcd, &mut objects.observation).await;
    objects.observation.snapshot = ctx.memory.snapshot_state(&key);
    objects.observation.upkeep.fall_back = ctx.memory.fall_back_state(&key);
    objects.observation.recovery.progress = progress(ctx, &key, &objects.observation, now).await;
    objects.observation.expansion_refused =
        ctx.memory
            .expansion_refused(&key, wanted.storage_bytes, now);
    let world = World {
        wanted,
        seen: &objects.observation,
        policy: &ctx.policy,
        known,
        now,
    };
    if decide::is_moving(&world) || are_facts_due(etcd, ctx, &key, now) {
        let dialer = Dialer::new(&ctx.client, etcd);
        let membership = observe::members(&dialer, etcd, &objects.observation).await;
        ctx.memory.asked(&key, now);
        objects.observation.membership = membership;
    }
    Ok(objects)
}

/// How far the restore is that goes on. Its log is read now and then, and never at rest.
async fn progress(
    ctx: &Context,
    key: &Key,
    seen: &Observation,
    now: Timestamp,
) -> Option<Progress> {
    let job = &seen.recovery.restoring()?.uid;
    let known = ctx.memory.log(key).filter(|known| known.job == *job);
    let is_due = known.as_ref().is_none_or(|known| known.is_due(now));
    let pod = || observe::progress::running_pod(&ctx.stores, &key.namespace, job);
    let Some(pod) = is_due.then(pod).flatten() else {
        return known?.progress;
    };
    let log = observe::progress::log(&ctx.client, &key.namespace, &pod).await;
    let known = LogRead::after(known.as_ref(), job, log.as_deref(), now);
    ctx.memory.log_was_read(key, known.clone());
    known.progress
}

/// Versions and sizes grow old slowly. After a restart of the controller they are not all asked for at once.
fn are_facts_due(etcd: &Etcd, ctx: &Context, key: &Key, now: Timestamp) -> bool {
    let Some(status) = etcd.status.as_ref().filter(|status| has_members(status)) else {
        return false;
    };
    let asked = ctx.memory.last_asked(key);
    let waited = |asked| now.duration_since(asked).unsigned_abs();
    if lacks_facts(status) {
        let patience = ctx.memory.patience_for_facts(key);
        let is_due = asked.is_none_or(|asked| waited(asked) >= patience);
        if is_due {
            ctx.memory.facts_are_missing(key);
        }
        return is_due;
    }
    ctx.memory.facts_are_known(key);
    let Some(asked) = asked else {
        let span = cadence::MEMBER_FACTS.as_secs();
        let earlier =
            jiff::SignedDuration::from_secs(i64::try_from(number(key) % span).unwrap_or_default());
        ctx.memory
            .asked(key, now.checked_sub(earlier).unwrap_or(now));
        return false;
    };
    waited(asked) >= cadence::MEMBER_FACTS
}

fn has_members(status: &EtcdStatus) -> bool {
    status.members.as_ref().is_some_and(|all| !all.is_empty())
}

/// Whether a member is told of whose version nobody knows.
fn lacks_facts(status: &EtcdStatus) -> bool {
    let mut members = status.members.iter().flatten();
    members.any(|member| member.version.is_none())
}

/// When to look again although nothing happens.
fn wake(plan: &Plan, facts: &Facts<'_>, key: &Key) -> Duration {
    let planned = if plan.step.is_none() {
        jittered(plan.wake_after, key)
    } else {
        plan.wake_after
    };
    status::wake_after(facts).map_or(planned, |told| told.min(planned))
}

/// Spreads many clusters over time; the same cluster always gets the same share.
fn jittered(pause: Duration, key: &Key) -> Duration {
    let percent = number(key) % cadence::JITTER_PERCENT;
    let share = u32::try_from(100 - percent).unwrap_or(100);
    pause * share / 100
}

async fn tear_down(etcd: &Etcd, ctx: &Context) -> Result<Passed, ReconcileError> {
    let left = act::tear_down(ctx, etcd)
        .await
        .map_err(|source| ReconcileError::Act { source })?;
    let action = match left {
        Teardown::Going(left) => {
            publish::going(ctx, etcd, left)
                .await
                .map_err(|source| ReconcileError::Publish { source })?;
            Action::requeue(cadence::WAITING)
        }
        Teardown::Done => {
            act::let_secrets_go(ctx, etcd).await;
            publish::release(ctx, etcd)
                .await
                .map_err(|source| ReconcileError::Publish { source })?;
            Action::await_change()
        }
    };
    Ok(Passed {
        action,
        is_settled: false,
        is_last: left == Teardown::Done,
    })
}

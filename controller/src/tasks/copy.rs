//! Reconciles `EtcdCopyBackupsTask`: one Job, whose outcome becomes the outcome of the task.
//!
//! A copy is resumable, because objects that exist in the target are not written again. A Job that failed for a transient
//! reason is therefore retried. A finished task and its Job are deleted after the time to live, if one is set; it starts when
//! the condition becomes true.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, ListParams};
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};
use mainstay_crds::copy::EtcdCopyBackupsTaskStatus;
use mainstay_crds::store::StoreSpec;
use mainstay_crds::{Condition, ConditionStatus, ConditionType, Etcd, EtcdCopyBackupsTask};
use mainstay_manifests::jobs::{CopyJob, render_copy_job};
use mainstay_manifests::names;
use mainstay_verdict::Verdict;
use serde_json::json;

use super::{POLL_INTERVAL, TaskError, find_pod};
use crate::act::upkeep::{BackupReader, create_pin, remove_pin, renew_pin};
use crate::context::Context;
use crate::model::JobState;
use crate::model::annotations::{ATTEMPT, FINALIZER};
use crate::observe::jobs::job_state;
use crate::writer::{Dependents, Finalizer, Target};

const MAX_ATTEMPTS: u32 = 5;
/// First and longest interval between attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(30), Duration::from_mins(10));
/// Verdicts of the restorer that a retry does not change.
const PERMANENT_VERDICTS: [Verdict; 2] = [Verdict::Usage, Verdict::NoBackup];

/// Observed state of a copy task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObservedCopyTask {
    pub(crate) is_deleting: bool,
    pub(crate) has_finalizer: bool,
    /// When the outcome was published.
    pub(crate) finished_at: Option<Timestamp>,
    /// Time to live after that; `None` keeps the task forever.
    pub(crate) ttl: Option<Duration>,
    /// Number of the attempt, from 1.
    pub(crate) attempt: u32,
    pub(crate) job: Option<JobState>,
    pub(crate) now: Timestamp,
}

/// The next action on a copy task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CopyTaskAction {
    /// Keeps the task until its Job is deleted.
    AddFinalizer,
    CreateJob,
    DeleteJob,
    /// Records the next attempt and deletes the failed Job.
    Retry,
    /// The time to live has passed.
    DeleteTask,
    /// Publishes the outcome.
    Report {
        succeeded: bool,
        message: String,
    },
    RemoveFinalizer,
    /// Renews the pins and reconciles again after this time.
    Wait(Duration),
    /// The task is finished; reconciles again after this time.
    WaitForTtl(Duration),
    AwaitChange,
}

/// Decides the next action.
pub(crate) fn next_action(observed: &ObservedCopyTask) -> CopyTaskAction {
    match (&observed.job, observed.is_deleting) {
        (Some(_), true) => return CopyTaskAction::DeleteJob,
        (None, true) if observed.has_finalizer => return CopyTaskAction::RemoveFinalizer,
        (None, true) => return CopyTaskAction::AwaitChange,
        _ => {}
    }
    // A published outcome is final, whatever becomes of the Job.
    if let Some(since) = observed.finished_at {
        return wait_for_ttl(since, observed);
    }
    if !observed.has_finalizer {
        return CopyTaskAction::AddFinalizer;
    }
    match &observed.job {
        None => CopyTaskAction::CreateJob,
        Some(JobState::Running) => CopyTaskAction::Wait(POLL_INTERVAL * 20),
        Some(JobState::Succeeded { .. }) => CopyTaskAction::Report {
            succeeded: true,
            message: "All backups copied and verified".to_owned(),
        },
        Some(JobState::Failed { at, failure }) => {
            let is_permanent = failure
                .verdict
                .is_some_and(|verdict| PERMANENT_VERDICTS.contains(&verdict));
            if is_permanent || observed.attempt >= MAX_ATTEMPTS {
                return CopyTaskAction::Report {
                    succeeded: false,
                    message: failure.message.clone(),
                };
            }
            let (first, longest) = BACKOFF;
            let pause = first.saturating_mul(1 << observed.attempt.saturating_sub(1).min(16));
            match remaining_time(*at, pause.min(longest), observed.now) {
                Some(left) => CopyTaskAction::Wait(left),
                None => CopyTaskAction::Retry,
            }
        }
    }
}

/// Keeps a finished task until its time to live has passed.
fn wait_for_ttl(since: Timestamp, observed: &ObservedCopyTask) -> CopyTaskAction {
    match observed
        .ttl
        .map(|ttl| remaining_time(since, ttl, observed.now))
    {
        None => CopyTaskAction::AwaitChange,
        Some(Some(left)) => CopyTaskAction::WaitForTtl(left),
        Some(None) => CopyTaskAction::DeleteTask,
    }
}

/// Remaining time of a period that started at `since`; `None` once it has passed.
fn remaining_time(since: Timestamp, period: Duration, now: Timestamp) -> Option<Duration> {
    let period = SignedDuration::try_from(period).unwrap_or(SignedDuration::MAX);
    let left = period.saturating_sub(now.duration_since(since));
    left.is_positive().then(|| left.unsigned_abs())
}

/// Reconciles one task.
pub(crate) async fn reconcile(
    guard: Arc<DeserializeGuard<EtcdCopyBackupsTask>>,
    ctx: Arc<Context>,
) -> Result<Action, TaskError> {
    let task = guard.0.as_ref().map_err(|invalid| TaskError::Unreadable {
        reason: invalid.to_string(),
    })?;
    let reconciler = CopyTaskReconciler::new(task, &ctx);
    let (observed, job) = reconciler.observe().await?;
    Ok(match next_action(&observed) {
        CopyTaskAction::AddFinalizer => {
            reconciler.set_finalizer(Finalizer::Present).await?;
            Action::requeue(Duration::from_millis(100))
        }
        CopyTaskAction::CreateJob => {
            reconciler.start_job().await?;
            Action::requeue(POLL_INTERVAL * 20)
        }
        CopyTaskAction::DeleteJob => {
            reconciler.delete_job(job.as_ref()).await?;
            Action::requeue(POLL_INTERVAL)
        }
        CopyTaskAction::Retry => {
            // Recorded before the deletion: a crash in between counts an attempt twice, but never loses one.
            reconciler.record_attempt(observed.attempt + 1).await?;
            reconciler.delete_job(job.as_ref()).await?;
            Action::requeue(POLL_INTERVAL)
        }
        CopyTaskAction::Report {
            succeeded,
            message: outcome,
        } => {
            reconciler.report(succeeded, &outcome).await?;
            reconciler.remove_pins().await;
            let state = if succeeded { "Succeeded" } else { "Failed" };
            ctx.metrics.record_task_end("copyBackups", state);
            Action::await_change()
        }
        CopyTaskAction::RemoveFinalizer => {
            reconciler.remove_pins().await;
            reconciler.set_finalizer(Finalizer::Absent).await?;
            Action::await_change()
        }
        CopyTaskAction::Wait(pause) => {
            reconciler.renew_pins().await?;
            Action::requeue(pause)
        }
        CopyTaskAction::WaitForTtl(left) => Action::requeue(left),
        CopyTaskAction::DeleteTask => {
            reconciler.delete_task().await?;
            Action::await_change()
        }
        CopyTaskAction::AwaitChange => Action::await_change(),
    })
}

/// When the outcome was published: one condition has been true since then.
fn find_finish_time(task: &EtcdCopyBackupsTask) -> Option<Timestamp> {
    let conditions = task.status.as_ref()?.conditions.as_ref()?;
    let finished = conditions
        .iter()
        .find(|one| one.status == ConditionStatus::True)?;
    Some(finished.last_transition_time.0)
}

/// Whether the backup of an Etcd is in this store.
fn uses_store(etcd: &Etcd, store: &StoreSpec) -> bool {
    let backup = etcd.spec.backup.store.as_ref();
    backup.is_some_and(|backup| {
        backup.provider == store.provider
            && backup.container == store.container
            && backup.prefix.trim_matches('/') == store.prefix.trim_matches('/')
    })
}

struct CopyTaskReconciler<'a> {
    task: &'a EtcdCopyBackupsTask,
    ctx: &'a Context,
    namespace: String,
}

impl<'a> CopyTaskReconciler<'a> {
    fn new(task: &'a EtcdCopyBackupsTask, ctx: &'a Context) -> Self {
        Self {
            task,
            ctx,
            namespace: task.namespace().unwrap_or_default(),
        }
    }

    async fn observe(&self) -> Result<(ObservedCopyTask, Option<Job>), TaskError> {
        let name = names::copy_job_name(&self.task.name_any());
        let jobs = Api::<Job>::namespaced(self.ctx.client.clone(), &self.namespace);
        let job = jobs.get_opt(&name).await;
        let job = job.map_err(TaskError::api_error("get the copy Job"))?;
        let pod = match &job {
            Some(job) => find_pod(self.ctx, &self.namespace, job).await?,
            None => None,
        };
        let attempt = self.task.annotations().get(ATTEMPT);
        let attempt = attempt.and_then(|text| text.parse().ok()).unwrap_or(1);
        let ttl = self.task.spec.ttl_seconds_after_finished;
        let observed = ObservedCopyTask {
            is_deleting: self.task.metadata.deletion_timestamp.is_some(),
            has_finalizer: self.task.finalizers().iter().any(|name| name == FINALIZER),
            finished_at: find_finish_time(self.task),
            ttl: ttl.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0))),
            attempt,
            // A terminating Job still has its name: a new one cannot be created until it is gone.
            job: job
                .as_ref()
                .map(|job| match job.metadata.deletion_timestamp {
                    Some(_) => JobState::Running,
                    None => job_state(job, || pod),
                }),
            now: Timestamp::now(),
        };
        Ok((observed, job))
    }

    async fn start_job(&self) -> Result<(), TaskError> {
        self.ctx.writer.check_leadership()?;
        let spec = &self.task.spec;
        let copy = CopyJob {
            deadline: None,
            source_local_store_root: read_local_store_root(
                &self.ctx.client,
                &self.namespace,
                &spec.source_store,
            )
            .await?,
            target_local_store_root: read_local_store_root(
                &self.ctx.client,
                &self.namespace,
                &spec.target_store,
            )
            .await?,
        };
        let job = match render_copy_job(self.task, &self.ctx.settings, &copy) {
            Ok(job) => job,
            // The spec of the task is invalid: a retry gives the same error.
            Err(error) => return self.report(false, &error.to_string()).await,
        };
        // Always create the pin: the cache may still hold one that a former task of this name has removed.
        for etcd in self.list_source_etcds().await? {
            create_pin(
                self.ctx,
                &etcd,
                BackupReader::Copy(&self.task.name_any()),
                0,
            )
            .await?;
        }
        Ok(self.ctx.writer.create(&Target::of(&job), &job).await?)
    }

    /// Renews the pins on the whole source backup, because the Job may read any object of it.
    async fn renew_pins(&self) -> Result<(), TaskError> {
        for etcd in self.list_source_etcds().await? {
            renew_pin(
                self.ctx,
                &etcd,
                BackupReader::Copy(&self.task.name_any()),
                0,
            )
            .await?;
        }
        Ok(())
    }

    async fn remove_pins(&self) {
        for etcd in self.list_source_etcds().await.unwrap_or_default() {
            remove_pin(self.ctx, &etcd, BackupReader::Copy(&self.task.name_any())).await;
        }
    }

    /// Etcds in the namespace of the task whose backup is copied. Other namespaces are not searched.
    async fn list_source_etcds(&self) -> Result<Vec<Etcd>, TaskError> {
        let etcds =
            Api::<DeserializeGuard<Etcd>>::namespaced(self.ctx.client.clone(), &self.namespace);
        let found = etcds.list(&ListParams::default()).await;
        let found = found.map_err(TaskError::api_error("list the Etcds of the source store"))?;
        let readable = found.items.into_iter().filter_map(|etcd| etcd.0.ok());
        let source = &self.task.spec.source_store;
        Ok(readable.filter(|etcd| uses_store(etcd, source)).collect())
    }

    async fn record_attempt(&self, attempt: u32) -> Result<(), TaskError> {
        let patch = json!({ "metadata": { "annotations": { ATTEMPT: attempt.to_string() } } });
        let task = Target::of(self.task);
        Ok(self.ctx.writer.merge(&task, &patch).await?)
    }

    async fn delete_job(&self, job: Option<&Job>) -> Result<(), TaskError> {
        // A second foreground deletion adds the finalizer again that the garbage collector has just removed.
        let Some(job) = job.filter(|job| job.metadata.deletion_timestamp.is_none()) else {
            return Ok(());
        };
        let (target, uid) = (Target::of(job), job.metadata.uid.as_deref());
        let deleted = self.ctx.writer.delete(&target, uid, Dependents::Foreground);
        Ok(deleted.await?)
    }

    /// Deletes the task with this uid; another task may have its name by now.
    async fn delete_task(&self) -> Result<(), TaskError> {
        let (target, uid) = (Target::of(self.task), self.task.metadata.uid.as_deref());
        let deleted = self.ctx.writer.delete(&target, uid, Dependents::Default);
        Ok(deleted.await?)
    }

    async fn set_finalizer(&self, wanted: Finalizer) -> Result<(), TaskError> {
        let finalizer = (FINALIZER, wanted);
        let (target, meta) = (Target::of(self.task), &self.task.metadata);
        let written = self.ctx.writer.set_finalizer(&target, meta, finalizer);
        Ok(written.await?)
    }

    async fn report(&self, succeeded: bool, outcome: &str) -> Result<(), TaskError> {
        let now = now();
        let condition = |type_: ConditionType, is_true: bool| Condition {
            type_,
            status: if is_true {
                ConditionStatus::True
            } else {
                ConditionStatus::False
            },
            last_transition_time: now.clone(),
            last_update_time: now.clone(),
            reason: if succeeded {
                "JobComplete"
            } else {
                "JobFailed"
            }
            .to_owned(),
            message: outcome.to_owned(),
        };
        let status = EtcdCopyBackupsTaskStatus {
            conditions: Some(vec![
                condition(ConditionType::Failed, !succeeded),
                condition(ConditionType::Succeeded, succeeded),
            ]),
            observed_generation: self.task.metadata.generation,
            last_error: (!succeeded).then(|| outcome.to_owned()),
        };
        let (target, patch) = (Target::of(self.task), json!({ "status": status }));
        Ok(self.ctx.writer.merge_status(&target, &patch).await?)
    }
}

/// The current time in whole seconds, as the API server stores times.
pub(super) fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// The host directory that the Secret of a `Local` store sets; `None` for other providers, or when none is set.
async fn read_local_store_root(
    client: &Client,
    namespace: &str,
    store: &StoreSpec,
) -> Result<Option<String>, TaskError> {
    let provider = store.provider.as_deref().unwrap_or_default();
    let secret = store
        .secret_ref
        .as_ref()
        .and_then(|secret| secret.non_empty_name());
    let Some(name) = secret.filter(|_| provider.eq_ignore_ascii_case("local")) else {
        return Ok(None);
    };
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let secret = secrets.get(name).await;
    let secret = secret.map_err(TaskError::api_error("read the Secret of the store"))?;
    let path = secret.data.and_then(|mut data| data.remove("hostPath"));
    let path = path.and_then(|path| String::from_utf8(path.0).ok());
    Ok(path.filter(|path| !path.is_empty()))
}

#[cfg(test)]
mod tests;

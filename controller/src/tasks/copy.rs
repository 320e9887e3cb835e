//! Copies of backups: one Job, whose outcome becomes that of the task.
//!
//! A copy goes on where it stopped: what is in the target already is not written again. So a Job that failed for a reason
//! that passes is started again. A task that is over goes with its Job after its time to live, if it has one; that counts from
//! the moment its condition became true.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};
use mainstay_crds::copy::EtcdCopyBackupsTaskStatus;
use mainstay_crds::store::StoreSpec;
use mainstay_crds::{Condition, ConditionStatus, ConditionType, Etcd, EtcdCopyBackupsTask};
use mainstay_manifests::jobs::{CopyJob, render_copy_job};
use mainstay_manifests::names;
use serde_json::json;

use super::{POLL_INTERVAL, TaskError};
use crate::act::marks::{ATTEMPT, FIELD_MANAGER};
use crate::act::recovery::create_job;
use crate::act::upkeep::{BackupReader, renew_pin, create_pin, remove_pin};
use crate::context::Context;
use crate::observe::JobState;
use crate::observe::jobs::job_state;
use crate::validate::FINALIZER;

/// How often a copy is tried.
const MAX_ATTEMPTS: u32 = 5;
/// The first pause after a failure, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(30), Duration::from_mins(10));
/// Verdicts of the restorer that another attempt will not change.
const PERMANENT_VERDICTS: [&str; 2] = ["usage", "no-backup"];

/// What there is.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedCopyTask {
    /// Whether the task is being deleted.
    pub is_deleting: bool,
    /// Whether the task stays until its Job is gone.
    pub has_finalizer: bool,
    /// Since when it is told how it ended.
    pub finished_at: Option<Timestamp>,
    /// How long it stays after that; for ever when absent.
    pub ttl: Option<Duration>,
    /// Which attempt it is, from 1.
    pub attempt: u32,
    /// The Job.
    pub job: Option<JobState>,
    /// Now.
    pub now: Timestamp,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum CopyTaskAction {
    /// Keeps the task until its Job is gone.
    AddFinalizer,
    /// Starts the Job.
    CreateJob,
    /// Deletes the Job.
    DeleteJob,
    /// Counts the attempt and deletes its Job, so that another one is made.
    Retry,
    /// Deletes the task: it has been looked at for long enough.
    DeleteTask,
    /// Tells how it ended.
    Report {
        /// Whether it went well.
        succeeded: bool,
        /// In words.
        message: String,
    },
    /// Lets the task go.
    RemoveFinalizer,
    /// Nothing but to keep what the Job reads, for this long.
    Wait(Duration),
    /// Nothing, for this long: it is over and is looked at.
    WaitForTtl(Duration),
    /// Nothing, ever.
    AwaitChange,
}

/// Decides.
pub fn next_action(observed: &ObservedCopyTask) -> CopyTaskAction {
    match (&observed.job, observed.is_deleting) {
        (Some(_), true) => return CopyTaskAction::DeleteJob,
        (None, true) if observed.has_finalizer => return CopyTaskAction::RemoveFinalizer,
        (None, true) => return CopyTaskAction::AwaitChange,
        _ => {}
    }
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
            message: "all backups were copied and compared".to_owned(),
        },
        Some(JobState::Failed { at, failure }) => {
            let verdict = failure.verdict.as_deref();
            let is_for_good = verdict.is_some_and(|verdict| PERMANENT_VERDICTS.contains(&verdict));
            if is_for_good || observed.attempt >= MAX_ATTEMPTS {
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

/// A finished task stays for its time to live.
fn wait_for_ttl(since: Timestamp, observed: &ObservedCopyTask) -> CopyTaskAction {
    match observed.ttl.map(|ttl| remaining_time(since, ttl, observed.now)) {
        None => CopyTaskAction::AwaitChange,
        Some(Some(left)) => CopyTaskAction::WaitForTtl(left),
        Some(None) => CopyTaskAction::DeleteTask,
    }
}

/// What is left of a while; nothing once it has passed.
fn remaining_time(since: Timestamp, lasts: Duration, now: Timestamp) -> Option<Duration> {
    let lasts = SignedDuration::try_from(lasts).unwrap_or(SignedDuration::MAX);
    let left = lasts.saturating_sub(now.duration_since(since));
    left.is_positive().then(|| left.unsigned_abs())
}

/// One pass over one task.
pub async fn reconcile(
    guard: Arc<DeserializeGuard<EtcdCopyBackupsTask>>,
    ctx: Arc<Context>,
) -> Result<Action, TaskError> {
    let task = guard.0.as_ref().map_err(|invalid| TaskError::Unreadable {
        reason: invalid.to_string(),
    })?;
    let pass = CopyTaskReconciler::new(task, &ctx);
    let (observed, job) = pass.observe().await?;
    Ok(match next_action(&observed) {
        CopyTaskAction::AddFinalizer => {
            pass.set_finalizer(true).await?;
            Action::requeue(Duration::from_millis(100))
        }
        CopyTaskAction::CreateJob => {
            pass.start_job().await?;
            Action::requeue(POLL_INTERVAL * 20)
        }
        CopyTaskAction::DeleteJob => {
            pass.delete_job(job.as_ref()).await?;
            Action::requeue(POLL_INTERVAL)
        }
        CopyTaskAction::Retry => {
            pass.record_attempt(observed.attempt + 1).await?;
            pass.delete_job(job.as_ref()).await?;
            Action::requeue(POLL_INTERVAL)
        }
        CopyTaskAction::Report { succeeded, message: words } => {
            pass.report(succeeded, &words).await?;
            pass.remove_pins().await;
            let word = if succeeded { "Succeeded" } else { "Failed" };
            ctx.metrics.record_task_end("copyBackups", word);
            Action::await_change()
        }
        CopyTaskAction::RemoveFinalizer => {
            pass.remove_pins().await;
            pass.set_finalizer(false).await?;
            Action::await_change()
        }
        CopyTaskAction::Wait(pause) => {
            pass.renew_pins().await?;
            Action::requeue(pause)
        }
        CopyTaskAction::WaitForTtl(left) => Action::requeue(left),
        CopyTaskAction::DeleteTask => {
            pass.delete_task().await?;
            Action::await_change()
        }
        CopyTaskAction::AwaitChange => Action::await_change(),
    })
}

/// Since when it is told how a task ended: one of its conditions is true from then on.
fn find_finish_time(task: &EtcdCopyBackupsTask) -> Option<Timestamp> {
    let conditions = task.status.as_ref()?.conditions.as_ref()?;
    let told = conditions
        .iter()
        .find(|one| one.status == ConditionStatus::True)?;
    Some(told.last_transition_time.0)
}

/// Whether an Etcd has its backup there.
fn uses_store(etcd: &Etcd, store: &StoreSpec) -> bool {
    let own = etcd.spec.backup.store.as_ref();
    own.is_some_and(|own| {
        own.provider == store.provider
            && own.container == store.container
            && own.prefix.trim_matches('/') == store.prefix.trim_matches('/')
    })
}

struct CopyTaskReconciler<'a> {
    task: &'a EtcdCopyBackupsTask,
    ctx: &'a Context,
    namespace: String,
    tasks: Api<EtcdCopyBackupsTask>,
    jobs: Api<Job>,
}

impl<'a> CopyTaskReconciler<'a> {
    fn new(task: &'a EtcdCopyBackupsTask, ctx: &'a Context) -> Self {
        let namespace = task.namespace().unwrap_or_default();
        Self {
            task,
            ctx,
            tasks: Api::namespaced(ctx.client.clone(), &namespace),
            jobs: Api::namespaced(ctx.client.clone(), &namespace),
            namespace,
        }
    }

    fn check_leadership(&self) -> Result<(), TaskError> {
        let may = self.ctx.leadership.check();
        may.map_err(|source| crate::act::ActError::Fenced { source }.into())
    }

    async fn observe(&self) -> Result<(ObservedCopyTask, Option<Job>), TaskError> {
        let name = names::copy_job_name(&self.task.name_any());
        let job = self.jobs.get_opt(&name).await;
        let job = job.map_err(TaskError::api_error("look for the Job"))?;
        let pod = match &job {
            Some(job) => self.find_pod(job).await?,
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
            // One that is going is as good as there until it is gone.
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

    async fn find_pod(&self, job: &Job) -> Result<Option<Pod>, TaskError> {
        let pods = Api::<Pod>::namespaced(self.ctx.client.clone(), &self.namespace);
        let uid = job.uid().unwrap_or_default();
        let list = ListParams::default().labels(&format!("controller-uid={uid}"));
        let found = pods.list(&list).await;
        let found = found.map_err(TaskError::api_error("look for the pod of the Job"))?;
        Ok(found.items.into_iter().next())
    }

    async fn start_job(&self) -> Result<(), TaskError> {
        self.check_leadership()?;
        let spec = &self.task.spec;
        let copy = CopyJob {
            deadline: None,
            source_local_store_root: read_local_store_root(&self.ctx.client, &self.namespace, &spec.source_store)
                .await?,
            target_local_store_root: read_local_store_root(&self.ctx.client, &self.namespace, &spec.target_store)
                .await?,
        };
        let job = match render_copy_job(self.task, &self.ctx.settings, &copy) {
            Ok(job) => job,
            // Nobody but the author of the task can help.
            Err(error) => return self.report(false, &error.to_string()).await,
        };
        // What a former task of this name left may be seen longer than it is there.
        for etcd in self.list_source_etcds().await? {
            create_pin(self.ctx, &etcd, BackupReader::Copy(&self.task.name_any()), 0).await?;
        }
        Ok(create_job(self.ctx, &self.namespace, &job).await?)
    }

    /// Goes on keeping retention from what is copied: all of it may be read.
    async fn renew_pins(&self) -> Result<(), TaskError> {
        for etcd in self.list_source_etcds().await? {
            renew_pin(self.ctx, &etcd, BackupReader::Copy(&self.task.name_any()), 0).await?;
        }
        Ok(())
    }

    async fn remove_pins(&self) {
        for etcd in self.list_source_etcds().await.unwrap_or_default() {
            remove_pin(self.ctx, &etcd, BackupReader::Copy(&self.task.name_any())).await;
        }
    }

    /// Whose backup is copied, of the Etcds beside the task. That of others is not ours to pin.
    async fn list_source_etcds(&self) -> Result<Vec<Etcd>, TaskError> {
        let etcds =
            Api::<DeserializeGuard<Etcd>>::namespaced(self.ctx.client.clone(), &self.namespace);
        let found = etcds.list(&ListParams::default()).await;
        let found = found.map_err(TaskError::api_error("look for the Etcd that is copied"))?;
        let readable = found.items.into_iter().filter_map(|etcd| etcd.0.ok());
        let source = &self.task.spec.source_store;
        Ok(readable.filter(|etcd| uses_store(etcd, source)).collect())
    }

    async fn record_attempt(&self, attempt: u32) -> Result<(), TaskError> {
        self.check_leadership()?;
        let patch = json!({ "metadata": { "annotations": { ATTEMPT: attempt.to_string() } } });
        let name = self.task.name_any();
        let params = PatchParams::default();
        let counted = self
            .tasks
            .patch(&name, &params, &Patch::Merge(&patch))
            .await;
        counted.map_err(TaskError::api_error("count the attempt"))?;
        Ok(())
    }

    async fn delete_job(&self, job: Option<&Job>) -> Result<(), TaskError> {
        // Deleting it once more would add the finalizer that the garbage collector has just removed, again and again.
        let Some(job) = job.filter(|job| job.metadata.deletion_timestamp.is_none()) else {
            return Ok(());
        };
        self.check_leadership()?;
        match self
            .jobs
            .delete(&job.name_any(), &DeleteParams::foreground())
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(TaskError::api_error("delete the Job")(error)),
        }
    }

    /// Deletes this very task.
    async fn delete_task(&self) -> Result<(), TaskError> {
        self.check_leadership()?;
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: self.task.uid(),
            resource_version: None,
        });
        match self.tasks.delete(&self.task.name_any(), &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(TaskError::api_error("delete the task")(error)),
        }
    }

    async fn set_finalizer(&self, hold: bool) -> Result<(), TaskError> {
        self.check_leadership()?;
        let mut finalizers = self.task.finalizers().to_vec();
        finalizers.retain(|name| name != FINALIZER);
        if hold {
            finalizers.push(FINALIZER.to_owned());
        }
        let patch = json!({ "metadata": {
            "resourceVersion": self.task.metadata.resource_version, "finalizers": finalizers,
        }});
        let name = self.task.name_any();
        let params = PatchParams::default();
        match self
            .tasks
            .patch(&name, &params, &Patch::Merge(&patch))
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(TaskError::api_error("change the finalizers")(error)),
        }
    }

    async fn report(&self, succeeded: bool, words: &str) -> Result<(), TaskError> {
        self.check_leadership()?;
        let now = now();
        let condition = |type_: ConditionType, holds: bool| Condition {
            type_,
            status: if holds {
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
            message: words.to_owned(),
        };
        let status = EtcdCopyBackupsTaskStatus {
            conditions: Some(vec![
                condition(ConditionType::Failed, !succeeded),
                condition(ConditionType::Succeeded, succeeded),
            ]),
            observed_generation: self.task.metadata.generation,
            last_error: (!succeeded).then(|| words.to_owned()),
        };
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = json!({ "status": status });
        self.tasks
            .patch_status(&self.task.name_any(), &params, &Patch::Merge(&patch))
            .await
            .map_err(TaskError::api_error("tell how it ended"))?;
        Ok(())
    }
}

pub(super) fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// The directory the secret of a `Local` store names, if it names one.
async fn read_local_store_root(
    client: &Client,
    namespace: &str,
    store: &StoreSpec,
) -> Result<Option<String>, TaskError> {
    let provider = store.provider.as_deref().unwrap_or_default();
    let secret = store.secret_ref.as_ref().and_then(|secret| secret.non_empty_name());
    let Some(name) = secret.filter(|_| provider.eq_ignore_ascii_case("local")) else {
        return Ok(None);
    };
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let secret = secrets.get(name).await;
    let secret = secret.map_err(TaskError::api_error("read the secret of the store"))?;
    let path = secret.data.and_then(|mut data| data.remove("hostPath"));
    let path = path.and_then(|path| String::from_utf8(path.0).ok());
    Ok(path.filter(|path| !path.is_empty()))
}

#[cfg(test)]
mod tests;

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
use mainstay_manifests::jobs::{CopyJob, copy_job};
use mainstay_manifests::names;
use serde_json::json;

use super::{LOOK_AGAIN, TaskError};
use crate::act::marks::{ATTEMPT, FIELD_MANAGER};
use crate::act::recovery::create;
use crate::act::upkeep::{Reader, keep_pin, pin, unpin};
use crate::context::Context;
use crate::observe::JobState;
use crate::observe::jobs::state;
use crate::validate::FINALIZER;

/// How often a copy is tried.
const ATTEMPTS: u32 = 5;
/// The first pause after a failure, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(30), Duration::from_mins(10));
/// Verdicts of the restorer that another attempt will not change.
const FOR_GOOD: [&str; 2] = ["usage", "no-backup"];

/// What there is.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Whether the task is being deleted.
    pub is_deleting: bool,
    /// Whether the task stays until its Job is gone.
    pub is_held: bool,
    /// Since when it is told how it ended.
    pub over: Option<Timestamp>,
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
pub enum Next {
    /// Keeps the task until its Job is gone.
    Hold,
    /// Starts the Job.
    Launch,
    /// Deletes the Job.
    RemoveJob,
    /// Counts the attempt and deletes its Job, so that another one is made.
    Retry,
    /// Deletes the task: it has been looked at for long enough.
    Delete,
    /// Tells how it ended.
    Tell {
        /// Whether it went well.
        succeeded: bool,
        /// In words.
        words: String,
    },
    /// Lets the task go.
    Release,
    /// Nothing but to keep what the Job reads, for this long.
    Wait(Duration),
    /// Nothing, for this long: it is over and is looked at.
    Linger(Duration),
    /// Nothing, ever.
    Rest,
}

/// Decides.
pub fn next(seen: &Seen) -> Next {
    match (&seen.job, seen.is_deleting) {
        (Some(_), true) => return Next::RemoveJob,
        (None, true) if seen.is_held => return Next::Release,
        (None, true) => return Next::Rest,
        _ => {}
    }
    if let Some(since) = seen.over {
        return linger(since, seen);
    }
    if !seen.is_held {
        return Next::Hold;
    }
    match &seen.job {
        None => Next::Launch,
        Some(JobState::Running) => Next::Wait(LOOK_AGAIN * 20),
        Some(JobState::Succeeded { .. }) => Next::Tell {
            succeeded: true,
            words: "all backups were copied and compared".to_owned(),
        },
        Some(JobState::Failed { at, failure }) => {
            let verdict = failure.verdict.as_deref();
            let is_for_good = verdict.is_some_and(|verdict| FOR_GOOD.contains(&verdict));
            if is_for_good || seen.attempt >= ATTEMPTS {
                return Next::Tell {
                    succeeded: false,
                    words: failure.words.clone(),
                };
            }
            let (first, longest) = BACKOFF;
            let pause = first.saturating_mul(1 << seen.attempt.saturating_sub(1).min(16));
            match left(*at, pause.min(longest), seen.now) {
                Some(left) => Next::Wait(left),
                None => Next::Retry,
            }
        }
    }
}

/// A finished task stays for its time to live.
fn linger(since: Timestamp, seen: &Seen) -> Next {
    match seen.ttl.map(|ttl| left(since, ttl, seen.now)) {
        None => Next::Rest,
        Some(Some(left)) => Next::Linger(left),
        Some(None) => Next::Delete,
    }
}

/// What is left of a while; nothing once it has passed.
fn left(since: Timestamp, lasts: Duration, now: Timestamp) -> Option<Duration> {
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
    let pass = Pass::new(task, &ctx);
    let (seen, job) = pass.look().await?;
    Ok(match next(&seen) {
        Next::Hold => {
            pass.finalize(true).await?;
            Action::requeue(Duration::from_millis(100))
        }
        Next::Launch => {
            pass.launch().await?;
            Action::requeue(LOOK_AGAIN * 20)
        }
        Next::RemoveJob => {
            pass.remove(job.as_ref()).await?;
            Action::requeue(LOOK_AGAIN)
        }
        Next::Retry => {
            pass.count(seen.attempt + 1).await?;
            pass.remove(job.as_ref()).await?;
            Action::requeue(LOOK_AGAIN)
        }
        Next::Tell { succeeded, words } => {
            pass.tell(succeeded, &words).await?;
            pass.unpin().await;
            let word = if succeeded { "Succeeded" } else { "Failed" };
            ctx.metrics.ended("copyBackups", word);
            Action::await_change()
        }
        Next::Release => {
            pass.unpin().await;
            pass.finalize(false).await?;
            Action::await_change()
        }
        Next::Wait(pause) => {
            pass.keep_pins().await?;
            Action::requeue(pause)
        }
        Next::Linger(left) => Action::requeue(left),
        Next::Delete => {
            pass.delete().await?;
            Action::await_change()
        }
        Next::Rest => Action::await_change(),
    })
}

/// Since when it is told how a task ended: one of its conditions is true from then on.
fn over(task: &EtcdCopyBackupsTask) -> Option<Timestamp> {
    let conditions = task.status.as_ref()?.conditions.as_ref()?;
    let told = conditions
        .iter()
        .find(|one| one.status == ConditionStatus::True)?;
    Some(told.last_transition_time.0)
}

/// Whether an Etcd has its backup there.
fn writes(etcd: &Etcd, store: &StoreSpec) -> bool {
    let own = etcd.spec.backup.store.as_ref();
    own.is_some_and(|own| {
        own.provider == store.provider
            && own.container == store.container
            && own.prefix.trim_matches('/') == store.prefix.trim_matches('/')
    })
}

struct Pass<'a> {
    task: &'a EtcdCopyBackupsTask,
    ctx: &'a Context,
    namespace: String,
    tasks: Api<EtcdCopyBackupsTask>,
    jobs: Api<Job>,
}

impl<'a> Pass<'a> {
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

    fn may(&self) -> Result<(), TaskError> {
        let may = self.ctx.leadership.check();
        may.map_err(|source| crate::act::ActError::Fenced { source }.into())
    }

    async fn look(&self) -> Result<(Seen, Option<Job>), TaskError> {
        let name = names::copy_job(&self.task.name_any());
        let job = self.jobs.get_opt(&name).await;
        let job = job.map_err(TaskError::api("look for the Job"))?;
        let pod = match &job {
            Some(job) => self.pod(job).await?,
            None => None,
        };
        let attempt = self.task.annotations().get(ATTEMPT);
        let attempt = attempt.and_then(|text| text.parse().ok()).unwrap_or(1);
        let ttl = self.task.spec.ttl_seconds_after_finished;
        let seen = Seen {
            is_deleting: self.task.metadata.deletion_timestamp.is_some(),
            is_held: self.task.finalizers().iter().any(|name| name == FINALIZER),
            over: over(self.task),
            ttl: ttl.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0))),
            attempt,
            // One that is going is as good as there until it is gone.
            job: job
                .as_ref()
                .map(|job| match job.metadata.deletion_timestamp {
                    Some(_) => JobState::Running,
                    None => state(job, || pod),
                }),
            now: Timestamp::now(),
        };
        Ok((seen, job))
    }

    async fn pod(&self, job: &Job) -> Result<Option<Pod>, TaskError> {
        let pods = Api::<Pod>::namespaced(self.ctx.client.clone(), &self.namespace);
        let uid = job.uid().unwrap_or_default();
        let list = ListParams::default().labels(&format!("controller-uid={uid}"));
        let found = pods.list(&list).await;
        let found = found.map_err(TaskError::api("look for the pod of the Job"))?;
        Ok(found.items.into_iter().next())
    }

    async fn launch(&self) -> Result<(), TaskError> {
        self.may()?;
        let spec = &self.task.spec;
        let copy = CopyJob {
            deadline: None,
            source_local_store_root: root(&self.ctx.client, &self.namespace, &spec.source_store)
                .await?,
            target_local_store_root: root(&self.ctx.client, &self.namespace, &spec.target_store)
                .await?,
        };
        let job = match copy_job(self.task, &self.ctx.settings, &copy) {
            Ok(job) => job,
            // Nobody but the author of the task can help.
            Err(error) => return self.tell(false, &error.to_string()).await,
        };
        // What a former task of this name left may be seen longer than it is there.
        for etcd in self.sources().await? {
            pin(self.ctx, &etcd, Reader::Copy(&self.task.name_any()), 0).await?;
        }
        Ok(create(self.ctx, &self.namespace, &job).await?)
    }

    /// Goes on keeping retention from what is copied: all of it may be read.
    async fn keep_pins(&self) -> Result<(), TaskError> {
        for etcd in self.sources().await? {
            keep_pin(self.ctx, &etcd, Reader::Copy(&self.task.name_any()), 0).await?;
        }
        Ok(())
    }

    async fn unpin(&self) {
        for etcd in self.sources().await.unwrap_or_default() {
            unpin(self.ctx, &etcd, Reader::Copy(&self.task.name_any())).await;
        }
    }

    /// Whose backup is copied, of the Etcds beside the task. That of others is not ours to pin.
    async fn sources(&self) -> Result<Vec<Etcd>, TaskError> {
        let etcds =
            Api::<DeserializeGuard<Etcd>>::namespaced(self.ctx.client.clone(), &self.namespace);
        let found = etcds.list(&ListParams::default()).await;
        let found = found.map_err(TaskError::api("look for the Etcd that is copied"))?;
        let readable = found.items.into_iter().filter_map(|etcd| etcd.0.ok());
        let source = &self.task.spec.source_store;
        Ok(readable.filter(|etcd| writes(etcd, source)).collect())
    }

    async fn count(&self, attempt: u32) -> Result<(), TaskError> {
        self.may()?;
        let patch = json!({ "metadata": { "annotations": { ATTEMPT: attempt.to_string() } } });
        let name = self.task.name_any();
        let params = PatchParams::default();
        let counted = self
            .tasks
            .patch(&name, &params, &Patch::Merge(&patch))
            .await;
        counted.map_err(TaskError::api("count the attempt"))?;
        Ok(())
    }

    async fn remove(&self, job: Option<&Job>) -> Result<(), TaskError> {
        // Deleting it once more would add the finalizer that the garbage collector has just removed, again and again.
        let Some(job) = job.filter(|job| job.metadata.deletion_timestamp.is_none()) else {
            return Ok(());
        };
        self.may()?;
        match self
            .jobs
            .delete(&job.name_any(), &DeleteParams::foreground())
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(TaskError::api("delete the Job")(error)),
        }
    }

    /// Deletes this very task.
    async fn delete(&self) -> Result<(), TaskError> {
        self.may()?;
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: self.task.uid(),
            resource_version: None,
        });
        match self.tasks.delete(&self.task.name_any(), &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(TaskError::api("delete the task")(error)),
        }
    }

    async fn finalize(&self, hold: bool) -> Result<(), TaskError> {
        self.may()?;
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
            Err(error) => Err(TaskError::api("change the finalizers")(error)),
        }
    }

    async fn tell(&self, succeeded: bool, words: &str) -> Result<(), TaskError> {
        self.may()?;
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
            .map_err(TaskError::api("tell how it ended"))?;
        Ok(())
    }
}

pub(super) fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// The directory the secret of a `Local` store names, if it names one.
async fn root(
    client: &Client,
    namespace: &str,
    store: &StoreSpec,
) -> Result<Option<String>, TaskError> {
    let provider = store.provider.as_deref().unwrap_or_default();
    let secret = store.secret_ref.as_ref().and_then(|secret| secret.named());
    let Some(name) = secret.filter(|_| provider.eq_ignore_ascii_case("local")) else {
        return Ok(None);
    };
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let secret = secrets.get(name).await;
    let secret = secret.map_err(TaskError::api("read the secret of the store"))?;
    let path = secret.data.and_then(|mut data| data.remove("hostPath"));
    let path = path.and_then(|path| String::from_utf8(path.0).ok());
    Ok(path.filter(|path| !path.is_empty()))
}

#[cfg(test)]
mod tests;

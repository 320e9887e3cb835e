//! Reconciles `EtcdOpsTask`: admits, executes, publishes the outcome, and deletes the task after its time to live.

pub(crate) mod decide;
mod etcd;
mod execute;
mod recover;
mod report;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use mainstay_crds::ops::TaskState;
use mainstay_crds::{Etcd, EtcdOpsTask};
use mainstay_telemetry::ErrorChain;
use serde_json::json;
use tracing::info;

use self::decide::{FINALIZER, ObservedOpsTask, OpsTaskAction, TaskReport};
use super::{POLL_INTERVAL, TaskError};
use crate::context::Context;
use crate::model::annotations::INCIDENT;
use crate::writer::{Dependents, Finalizer, Rejection, Target, WriteResultExt};

/// Outcome of one execution of a task.
enum TaskOutcome {
    /// The task is finished or made progress.
    Report(TaskReport),
    /// The task is finished. Its Job is deleted after the report is published.
    Finished(TaskReport, FinishedJob),
    /// The operation is still running; reconciles again after this time.
    Wait(Duration),
}

/// A finished Job.
struct FinishedJob {
    name: String,
    uid: String,
}

/// Reconciles one task.
pub(crate) async fn reconcile(
    guard: Arc<DeserializeGuard<EtcdOpsTask>>,
    ctx: Arc<Context>,
) -> Result<Action, TaskError> {
    let task = guard.0.as_ref().map_err(|invalid| TaskError::Unreadable {
        reason: invalid.to_string(),
    })?;
    let reconciler = OpsTaskReconciler::new(task, &ctx);
    let (etcd, blocking) = reconciler.observe().await?;
    let next = decide::next_action(&ObservedOpsTask {
        task,
        etcd: etcd.as_ref(),
        blocking_task: blocking.as_deref(),
        now: Timestamp::now(),
    });
    let soon = Action::requeue(Duration::from_millis(100));
    Ok(match next {
        OpsTaskAction::AddFinalizer => {
            reconciler.set_finalizer(Finalizer::Present).await?;
            soon
        }
        OpsTaskAction::Report(report) => {
            reconciler.publish_report(&report).await?;
            soon
        }
        OpsTaskAction::Execute => match reconciler.execute(etcd.as_ref()).await? {
            TaskOutcome::Report(report) => {
                reconciler.publish_report(&report).await?;
                soon
            }
            TaskOutcome::Finished(report, finished) => {
                // The Job holds the outcome: it is deleted only after the status has it.
                if reconciler.publish_report(&report).await? {
                    reconciler.clean_up_job(etcd.as_ref(), &finished).await;
                }
                soon
            }
            TaskOutcome::Wait(pause) => Action::requeue(pause),
        },
        OpsTaskAction::Wait(pause) => Action::requeue(pause),
        OpsTaskAction::DeleteTask => {
            reconciler.delete_task().await?;
            soon
        }
        OpsTaskAction::RemoveFinalizer => {
            reconciler.set_finalizer(Finalizer::Absent).await?;
            Action::await_change()
        }
    })
}

struct OpsTaskReconciler<'a> {
    task: &'a EtcdOpsTask,
    ctx: &'a Context,
    namespace: String,
}

impl<'a> OpsTaskReconciler<'a> {
    fn new(task: &'a EtcdOpsTask, ctx: &'a Context) -> Self {
        Self {
            task,
            ctx,
            namespace: task.namespace().unwrap_or_default(),
        }
    }

    /// Identifies the incidents and Jobs of this task.
    fn operation_id(&self) -> String {
        let uid = self.task.uid().unwrap_or_default();
        format!("task-{}", uid.chars().take(8).collect::<String>())
    }

    fn started_at(&self) -> Timestamp {
        let status = self.task.status.as_ref();
        let started = status.and_then(|status| status.started_at.as_ref());
        started.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
    }

    /// The Etcd, and the name of an earlier unfinished task of the same Etcd.
    async fn observe(&self) -> Result<(Option<Etcd>, Option<String>), TaskError> {
        let Some(name) = &self.task.spec.etcd_name else {
            return Ok((None, None));
        };
        let etcds = Api::<Etcd>::namespaced(self.ctx.client.clone(), &self.namespace);
        let etcd = etcds.get_opt(name).await;
        let etcd = etcd.map_err(TaskError::api_error("get the Etcd of the task"))?;
        let tasks = Api::<EtcdOpsTask>::namespaced(self.ctx.client.clone(), &self.namespace);
        let tasks = tasks.list(&ListParams::default()).await;
        let tasks = tasks.map_err(TaskError::api_error("list the tasks"))?;
        let blocking = tasks
            .items
            .iter()
            .find(|other| is_ahead_of(other, self.task));
        Ok((etcd, blocking.map(ResourceExt::name_any)))
    }

    fn target(&self) -> Target {
        Target::of(self.task)
    }

    async fn set_finalizer(&self, wanted: Finalizer) -> Result<(), TaskError> {
        let (writer, meta) = (&self.ctx.writer, &self.task.metadata);
        let finalizer = (FINALIZER, wanted);
        Ok(writer
            .set_finalizer(&self.target(), meta, finalizer)
            .await?)
    }

    async fn delete_task(&self) -> Result<(), TaskError> {
        // Another task may have the name by now.
        let uid = self.task.metadata.uid.as_deref();
        let target = self.target();
        let deleted = self.ctx.writer.delete(&target, uid, Dependents::Default);
        Ok(deleted.await?)
    }

    /// Whether this task has started its recovery.
    fn has_started_recovery(&self) -> bool {
        self.task.annotations().get(INCIDENT) == Some(&self.operation_id())
    }

    /// Records that this task has started its recovery, so that it is not started twice.
    async fn record_recovery_start(&self) -> Result<(), TaskError> {
        let patch = json!({ "metadata": { "annotations": { INCIDENT: self.operation_id() } } });
        let merged = self.ctx.writer.merge(&self.target(), &patch).await;
        merged.unless(&[Rejection::Gone])?;
        Ok(())
    }

    /// Deletes a Job whose outcome is published. If that fails, the next task of this kind deletes it.
    async fn clean_up_job(&self, etcd: Option<&Etcd>, finished: &FinishedJob) {
        if let Err(error) = execute::delete_verify_job(self, etcd, finished).await {
            info!(job = finished.name, error = %ErrorChain(&error), "failed to delete finished Job");
        }
    }

    /// Publishes the report. Returns `false` if the task was changed or deleted meanwhile.
    async fn publish_report(&self, report: &TaskReport) -> Result<bool, TaskError> {
        let kind = report::operation_kind(&self.task.spec.config);
        info!(task = self.task.name_any(), state = ?report.state, "{}", report.message);
        let status = report::build_status(self.task, report, &self.ctx.next_run_id());
        let patch = json!({
            "metadata": { "resourceVersion": self.task.metadata.resource_version },
            "status": status,
        });
        let written = self.ctx.writer.merge_status(&self.target(), &patch).await;
        // The task was changed or deleted meanwhile: the next reconcile observes it.
        let outdated = [Rejection::Gone, Rejection::Conflict];
        if written.unless(&outdated)?.is_none() {
            return Ok(false);
        }
        if report.state.is_final() {
            self.ctx
                .metrics
                .record_task_end(kind, report::state_label(report.state));
        }
        Ok(true)
    }

    async fn execute(&self, etcd: Option<&Etcd>) -> Result<TaskOutcome, TaskError> {
        let Some(etcd) = etcd else {
            let message = "Etcd was deleted";
            return Ok(TaskOutcome::Report(TaskReport::error(
                TaskState::Failed,
                "ERR_GET_ETCD",
                message,
            )));
        };
        let outcome = Box::pin(execute::execute(self, etcd)).await; // boxed, because the future is large
        if let Err(error) = &outcome {
            info!(task = self.task.name_any(), error = %ErrorChain(error), "task execution failed; retrying");
        }
        outcome
    }
}

/// Whether `other` is an unfinished task of the same Etcd that runs, or was created before `task`.
fn is_ahead_of(other: &EtcdOpsTask, task: &EtcdOpsTask) -> bool {
    if other.spec.etcd_name != task.spec.etcd_name || other.name_any() == task.name_any() {
        return false;
    }
    let state = other.status.as_ref().and_then(|status| status.state);
    let key = |task: &EtcdOpsTask| {
        (
            task.creation_timestamp().map(|time| time.0),
            task.name_any(),
        )
    };
    match state {
        Some(state) if state.is_final() => false,
        Some(TaskState::InProgress) => true,
        // Names break ties: creation timestamps have a resolution of one second.
        _ => key(other) < key(task),
    }
}

/// Reconciles again after the poll interval.
fn retry_later() -> TaskOutcome {
    TaskOutcome::Wait(POLL_INTERVAL)
}

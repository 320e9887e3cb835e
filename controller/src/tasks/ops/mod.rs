//! Ops tasks: checked, done, told, and removed after their time to live.

pub mod decide;
mod etcd;
mod execute;
mod recover;
mod tell;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use mainstay_crds::ops::TaskState;
use mainstay_crds::{Etcd, EtcdOpsTask};
use mainstay_telemetry::ErrorChain;
use serde_json::json;
use tracing::info;

use self::decide::{FINALIZER, OpsTaskAction, ObservedOpsTask, TaskReport};
use super::{POLL_INTERVAL, TaskError};
use crate::act::ActError;
use crate::act::marks::INCIDENT;
use crate::context::Context;

/// What came of working on a task.
enum TaskOutcome {
    /// It is over, or further than it was.
    Report(TaskReport),
    /// It is over; its Job goes after that was told.
    Finished(TaskReport, FinishedJob),
    /// It goes on elsewhere; look again after this.
    Wait(Duration),
}

/// A Job that has done its work.
struct FinishedJob {
    name: String,
    uid: String,
}

/// One pass over one task.
pub async fn reconcile(
    guard: Arc<DeserializeGuard<EtcdOpsTask>>,
    ctx: Arc<Context>,
) -> Result<Action, TaskError> {
    let task = guard.0.as_ref().map_err(|invalid| TaskError::Unreadable {
        reason: invalid.to_string(),
    })?;
    let pass = OpsTaskReconciler::new(task, &ctx);
    let (etcd, rival) = pass.observe().await?;
    let next = decide::next_action(&ObservedOpsTask {
        task,
        etcd: etcd.as_ref(),
        blocking_task: rival.as_deref(),
        now: Timestamp::now(),
    });
    let soon = Action::requeue(Duration::from_millis(100));
    Ok(match next {
        OpsTaskAction::AddFinalizer => {
            pass.set_finalizer(true).await?;
            soon
        }
        OpsTaskAction::Report(telling) => {
            pass.publish_report(&telling).await?;
            soon
        }
        OpsTaskAction::Execute => match pass.execute(etcd.as_ref()).await? {
            TaskOutcome::Report(telling) => {
                pass.publish_report(&telling).await?;
                soon
            }
            TaskOutcome::Finished(telling, finished) => {
                if pass.publish_report(&telling).await? {
                    pass.clean_up_job(etcd.as_ref(), &finished).await;
                }
                soon
            }
            TaskOutcome::Wait(pause) => Action::requeue(pause),
        },
        OpsTaskAction::Wait(pause) => Action::requeue(pause),
        OpsTaskAction::DeleteTask => {
            pass.delete_task().await?;
            soon
        }
        OpsTaskAction::RemoveFinalizer => {
            pass.set_finalizer(false).await?;
            Action::await_change()
        }
    })
}

struct OpsTaskReconciler<'a> {
    task: &'a EtcdOpsTask,
    ctx: &'a Context,
    namespace: String,
    tasks: Api<EtcdOpsTask>,
}

impl<'a> OpsTaskReconciler<'a> {
    fn new(task: &'a EtcdOpsTask, ctx: &'a Context) -> Self {
        let namespace = task.namespace().unwrap_or_default();
        Self {
            task,
            ctx,
            tasks: Api::namespaced(ctx.client.clone(), &namespace),
            namespace,
        }
    }

    fn check_leadership(&self) -> Result<(), TaskError> {
        let may = self.ctx.leadership.check();
        may.map_err(|source| ActError::Fenced { source }.into())
    }

    /// Names what this task does elsewhere.
    fn operation_id(&self) -> String {
        let uid = self.task.uid().unwrap_or_default();
        format!("task-{}", uid.chars().take(8).collect::<String>())
    }

    fn started_at(&self) -> Timestamp {
        let status = self.task.status.as_ref();
        let started = status.and_then(|status| status.started_at.as_ref());
        started.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
    }

    /// The Etcd, and the task that was there first.
    async fn observe(&self) -> Result<(Option<Etcd>, Option<String>), TaskError> {
        let Some(name) = &self.task.spec.etcd_name else {
            return Ok((None, None));
        };
        let etcds = Api::<Etcd>::namespaced(self.ctx.client.clone(), &self.namespace);
        let etcd = etcds.get_opt(name).await;
        let etcd = etcd.map_err(TaskError::api_error("look for the Etcd"))?;
        let tasks = self.tasks.list(&ListParams::default()).await;
        let tasks = tasks.map_err(TaskError::api_error("list the tasks"))?;
        let rival = tasks.items.iter().find(|other| is_ahead_of(other, self.task));
        Ok((etcd, rival.map(ResourceExt::name_any)))
    }

    async fn set_finalizer(&self, hold: bool) -> Result<(), TaskError> {
        let mut finalizers = self.task.finalizers().to_vec();
        let is_held = finalizers.iter().any(|name| name == FINALIZER);
        if is_held == hold {
            return Ok(());
        }
        self.check_leadership()?;
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

    async fn delete_task(&self) -> Result<(), TaskError> {
        self.check_leadership()?;
        let params = DeleteParams::default();
        match self.tasks.delete(&self.task.name_any(), &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(TaskError::api_error("delete the task")(error)),
        }
    }

    /// Whether the recovery of this task was begun.
    fn has_started_recovery(&self) -> bool {
        self.task.annotations().get(INCIDENT) == Some(&self.operation_id())
    }

    /// Notes that the recovery of this task was begun, so that it is not begun again.
    async fn record_recovery_start(&self) -> Result<(), TaskError> {
        self.check_leadership()?;
        let patch = json!({ "metadata": { "annotations": { INCIDENT: self.operation_id() } } });
        let (name, params) = (self.task.name_any(), PatchParams::default());
        let patch = Patch::Merge(&patch);
        match self.tasks.patch(&name, &params, &patch).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(TaskError::api_error("note that it began")(error)),
        }
    }

    /// Removes a Job whose outcome was told. One that stays is removed by the next task of its kind.
    async fn clean_up_job(&self, etcd: Option<&Etcd>, finished: &FinishedJob) {
        if let Err(error) = execute::delete_verify_job(self, etcd, finished).await {
            info!(job = finished.name, error = %ErrorChain(&error), "a Job was not removed");
        }
    }

    /// Whether it was told.
    async fn publish_report(&self, telling: &TaskReport) -> Result<bool, TaskError> {
        self.check_leadership()?;
        let kind = tell::operation_kind(&self.task.spec.config);
        info!(task = self.task.name_any(), state = ?telling.state, "{}", telling.message);
        let status = tell::build_status(self.task, telling, &self.ctx.next_run_id());
        let patch = json!({
            "metadata": { "resourceVersion": self.task.metadata.resource_version },
            "status": status,
        });
        let params = PatchParams {
            field_manager: Some(crate::act::marks::FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let name = self.task.name_any();
        match self
            .tasks
            .patch_status(&name, &params, &Patch::Merge(&patch))
            .await
        {
            Ok(_) => {}
            // Somebody was faster; the next pass sees it.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return Ok(false),
            Err(error) => return Err(TaskError::api_error("tell how far it is")(error)),
        }
        if telling.state.is_final() {
            self.ctx.metrics.record_task_end(kind, tell::state_label(telling.state));
        }
        Ok(true)
    }

    async fn execute(&self, etcd: Option<&Etcd>) -> Result<TaskOutcome, TaskError> {
        let Some(etcd) = etcd else {
            let words = "the Etcd is gone";
            return Ok(TaskOutcome::Report(TaskReport::error(
                TaskState::Failed,
                "ERR_GET_ETCD",
                words,
            )));
        };
        let outcome = Box::pin(execute::execute(self, etcd)).await; // it is large
        if let Err(error) = &outcome {
            info!(task = self.task.name_any(), error = %ErrorChain(error), "it is tried again");
        }
        outcome
    }
}

/// Whether a task of the same Etcd was there first and is not over.
fn is_ahead_of(other: &EtcdOpsTask, than: &EtcdOpsTask) -> bool {
    if other.spec.etcd_name != than.spec.etcd_name || other.name_any() == than.name_any() {
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
        _ => key(other) < key(than),
    }
}

/// Looks again soon.
fn retry_later() -> TaskOutcome {
    TaskOutcome::Wait(POLL_INTERVAL)
}

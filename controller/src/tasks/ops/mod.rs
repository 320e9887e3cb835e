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
use mainstay_telemetry::Chain;
use serde_json::json;
use tracing::info;

use self::decide::{FINALIZER, Next, Seen, Telling};
use super::{LOOK_AGAIN, TaskError};
use crate::act::ActError;
use crate::act::marks::INCIDENT;
use crate::context::Context;

/// What came of working on a task.
enum Outcome {
    /// It is over, or further than it was.
    Told(Telling),
    /// It is over; its Job goes after that was told.
    Over(Telling, Finished),
    /// It goes on elsewhere; look again after this.
    Wait(Duration),
}

/// A Job that has done its work.
struct Finished {
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
    let pass = Pass::new(task, &ctx);
    let (etcd, rival) = pass.look().await?;
    let next = decide::next(&Seen {
        task,
        etcd: etcd.as_ref(),
        rival: rival.as_deref(),
        now: Timestamp::now(),
    });
    let soon = Action::requeue(Duration::from_millis(100));
    Ok(match next {
        Next::Hold => {
            pass.finalize(true).await?;
            soon
        }
        Next::Tell(telling) => {
            pass.tell(&telling).await?;
            soon
        }
        Next::Execute => match pass.execute(etcd.as_ref()).await? {
            Outcome::Told(telling) => {
                pass.tell(&telling).await?;
                soon
            }
            Outcome::Over(telling, finished) => {
                if pass.tell(&telling).await? {
                    pass.tidy(etcd.as_ref(), &finished).await;
                }
                soon
            }
            Outcome::Wait(pause) => Action::requeue(pause),
        },
        Next::Wait(pause) => Action::requeue(pause),
        Next::Delete => {
            pass.delete().await?;
            soon
        }
        Next::Release => {
            pass.finalize(false).await?;
            Action::await_change()
        }
    })
}

struct Pass<'a> {
    task: &'a EtcdOpsTask,
    ctx: &'a Context,
    namespace: String,
    tasks: Api<EtcdOpsTask>,
}

impl<'a> Pass<'a> {
    fn new(task: &'a EtcdOpsTask, ctx: &'a Context) -> Self {
        let namespace = task.namespace().unwrap_or_default();
        Self {
            task,
            ctx,
            tasks: Api::namespaced(ctx.client.clone(), &namespace),
            namespace,
        }
    }

    fn may(&self) -> Result<(), TaskError> {
        let may = self.ctx.leadership.check();
        may.map_err(|source| ActError::Fenced { source }.into())
    }

    /// Names what this task does elsewhere.
    fn id(&self) -> String {
        let uid = self.task.uid().unwrap_or_default();
        format!("task-{}", uid.chars().take(8).collect::<String>())
    }

    fn started(&self) -> Timestamp {
        let status = self.task.status.as_ref();
        let started = status.and_then(|status| status.started_at.as_ref());
        started.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
    }

    /// The Etcd, and the task that was there first.
    async fn look(&self) -> Result<(Option<Etcd>, Option<String>), TaskError> {
        let Some(name) = &self.task.spec.etcd_name else {
            return Ok((None, None));
        };
        let etcds = Api::<Etcd>::namespaced(self.ctx.client.clone(), &self.namespace);
        let etcd = etcds.get_opt(name).await;
        let etcd = etcd.map_err(TaskError::api("look for the Etcd"))?;
        let tasks = self.tasks.list(&ListParams::default()).await;
        let tasks = tasks.map_err(TaskError::api("list the tasks"))?;
        let rival = tasks.items.iter().find(|other| is_before(other, self.task));
        Ok((etcd, rival.map(ResourceExt::name_any)))
    }

    async fn finalize(&self, hold: bool) -> Result<(), TaskError> {
        let mut finalizers = self.task.finalizers().to_vec();
        let is_held = finalizers.iter().any(|name| name == FINALIZER);
        if is_held == hold {
            return Ok(());
        }
        self.may()?;
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

    async fn delete(&self) -> Result<(), TaskError> {
        self.may()?;
        let params = DeleteParams::default();
        match self.tasks.delete(&self.task.name_any(), &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(TaskError::api("delete the task")(error)),
        }
    }

    /// Whether the recovery of this task was begun.
    fn has_begun(&self) -> bool {
        self.task.annotations().get(INCIDENT) == Some(&self.id())
    }

    /// Notes that the recovery of this task was begun, so that it is not begun again.
    async fn note_begun(&self) -> Result<(), TaskError> {
        self.may()?;
        let patch = json!({ "metadata": { "annotations": { INCIDENT: self.id() } } });
        let (name, params) = (self.task.name_any(), PatchParams::default());
        let patch = Patch::Merge(&patch);
        match self.tasks.patch(&name, &params, &patch).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(TaskError::api("note that it began")(error)),
        }
    }

    /// Removes a Job whose outcome was told. One that stays is removed by the next task of its kind.
    async fn tidy(&self, etcd: Option<&Etcd>, finished: &Finished) {
        if let Err(error) = execute::remove(self, etcd, finished).await {
            info!(job = finished.name, error = %Chain(&error), "a Job was not removed");
        }
    }

    /// Whether it was told.
    async fn tell(&self, telling: &Telling) -> Result<bool, TaskError> {
        self.may()?;
        let kind = tell::kind(&self.task.spec.config);
        info!(task = self.task.name_any(), state = ?telling.state, "{}", telling.words);
        let status = tell::status(self.task, telling, &self.ctx.next_run_id());
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
            Err(error) => return Err(TaskError::api("tell how far it is")(error)),
        }
        if telling.state.is_final() {
            self.ctx.metrics.ended(kind, tell::state(telling.state));
        }
        Ok(true)
    }

    async fn execute(&self, etcd: Option<&Etcd>) -> Result<Outcome, TaskError> {
        let Some(etcd) = etcd else {
            let words = "the Etcd is gone";
            return Ok(Outcome::Told(Telling::ill(
                TaskState::Failed,
                "ERR_GET_ETCD",
                words,
            )));
        };
        let outcome = Box::pin(execute::execute(self, etcd)).await; // it is large
        if let Err(error) = &outcome {
            info!(task = self.task.name_any(), error = %Chain(error), "it is tried again");
        }
        outcome
    }
}

/// Whether a task of the same Etcd was there first and is not over.
fn is_before(other: &EtcdOpsTask, than: &EtcdOpsTask) -> bool {
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
fn wait() -> Outcome {
    Outcome::Wait(LOOK_AGAIN)
}

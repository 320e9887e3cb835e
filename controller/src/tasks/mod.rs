//! Controllers of the task resources: one-time operations on an Etcd or its backup.
//!
//! ```text
//! EtcdCopyBackupsTask ─► one Job ─► Succeeded | Failed
//! EtcdOpsTask ─► Pending ─► admitted? ─┬─ InProgress ─► Succeeded | Failed ─┬─ time to live ─► deleted
//!                                       └─ Rejected ─────────────────────────┘
//! ```
//!
//! **Invariants**: the next action is a pure function of the task, its Etcd and its Job; no state is kept in memory. After a
//! crash the action is repeated, which is safe: a second snapshot does no harm, a Job has a fixed name, a recovery is
//! recorded once. Tasks never touch volumes or pods: a restore is executed by the recovery of the Etcd, which holds the lock.

pub(crate) mod copy;
pub(crate) mod ops;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::core::DeserializeGuard;
use kube::runtime::controller::{Action, Config as ControllerConfig};
use kube::runtime::{Controller, watcher};
use kube::{Client, ResourceExt};
use mainstay_crds::{EtcdCopyBackupsTask, EtcdOpsTask};
use mainstay_manifests::labels::{COMPONENT, Component};
use mainstay_telemetry::ErrorChain;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::act::ActError;
use crate::caches::WatchScope;
use crate::caches::backoff::WatchBackoff;
use crate::config::Controllers;
use crate::context::Context;
use crate::writer::WriteError;

/// Interval before a failed reconcile of a task is retried.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Interval at which a waiting task is reconciled.
const POLL_INTERVAL: Duration = Duration::from_secs(3);

/// Errors of reconciling a task.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TaskError {
    /// The resource does not match the CRD; another version may have written it.
    #[error("failed to parse the task: {reason}")]
    Unreadable { reason: String },
    /// A request to the API server failed.
    #[error("failed to {step}")]
    Api {
        /// Verb phrase: `delete the Job`.
        step: &'static str,
        source: Box<kube::Error>,
    },
    #[error(transparent)]
    Write { source: WriteError },
    #[error("failed to execute the task")]
    Act { source: ActError },
}

impl TaskError {
    fn api_error(step: &'static str) -> impl Fn(kube::Error) -> Self {
        move |source| Self::Api {
            step,
            source: Box::new(source),
        }
    }
}

impl From<ActError> for TaskError {
    fn from(source: ActError) -> Self {
        Self::Act { source }
    }
}

impl From<WriteError> for TaskError {
    fn from(source: WriteError) -> Self {
        Self::Write { source }
    }
}

/// Number of tasks reconciled concurrently, per kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskWorkers {
    pub(crate) copy: u16,
    pub(crate) ops: u16,
}

impl TaskWorkers {
    pub(crate) fn from_config(controllers: &Controllers) -> Self {
        Self {
            copy: controllers.etcd_copy_backups_task.concurrent_syncs,
            ops: controllers.etcd_ops_task.concurrent_syncs,
        }
    }
}

/// Runs the task controllers until `cancel` is triggered.
pub(crate) async fn run(
    client: Client,
    scope: WatchScope,
    workers: TaskWorkers,
    context: Arc<Context>,
    cancel: CancellationToken,
) {
    let copies = Controller::new(
        scope.api::<DeserializeGuard<EtcdCopyBackupsTask>>(&client),
        watcher::Config::default(),
    )
    .owns(
        scope.api::<Job>(&client),
        watcher::Config::default().labels(&format!("{COMPONENT}={}", Component::CopyJob.name())),
    )
    .trigger_backoff(WatchBackoff::default())
    .with_config(ControllerConfig::default().concurrency(workers.copy))
    .graceful_shutdown_on(cancel.clone().cancelled_owned())
    .run(reconcile_copy_task, error_policy, Arc::clone(&context))
    .for_each(|reconciled| async move {
        if let Err(error) = reconciled {
            debug!(error = %ErrorChain(&error), "copy task controller error");
        }
    });
    let ops = Controller::new(
        scope.api::<DeserializeGuard<EtcdOpsTask>>(&client),
        watcher::Config::default(),
    )
    .trigger_backoff(WatchBackoff::default())
    .with_config(ControllerConfig::default().concurrency(workers.ops))
    .graceful_shutdown_on(cancel.cancelled_owned())
    .run(reconcile_ops_task, error_policy, context)
    .for_each(|reconciled| async move {
        if let Err(error) = reconciled {
            debug!(error = %ErrorChain(&error), "ops task controller error");
        }
    });
    tokio::join!(copies, ops);
}

async fn reconcile_copy_task(
    task: Arc<DeserializeGuard<EtcdCopyBackupsTask>>,
    ctx: Arc<Context>,
) -> Result<Action, TaskError> {
    let outcome = copy::reconcile(Arc::clone(&task), Arc::clone(&ctx)).await;
    if outcome.as_ref().err().is_none_or(is_permanent) {
        ctx.probe.record_reconciled("EtcdCopyBackupsTask", &*task);
    }
    outcome
}

async fn reconcile_ops_task(
    task: Arc<DeserializeGuard<EtcdOpsTask>>,
    ctx: Arc<Context>,
) -> Result<Action, TaskError> {
    let outcome = ops::reconcile(Arc::clone(&task), Arc::clone(&ctx)).await;
    if outcome.as_ref().err().is_none_or(is_permanent) {
        ctx.probe.record_reconciled("EtcdOpsTask", &*task);
    }
    outcome
}

#[expect(clippy::needless_pass_by_value, reason = "the signature is kube's")]
fn error_policy<K: kube::Resource>(task: Arc<K>, error: &TaskError, _: Arc<Context>) -> Action {
    warn!(task = task.name_any(), error = %ErrorChain(error), "failed to reconcile task");
    if is_permanent(error) {
        return Action::await_change();
    }
    Action::requeue(RETRY_INTERVAL)
}

/// Whether a retry cannot succeed until the task changes.
fn is_permanent(error: &TaskError) -> bool {
    matches!(error, TaskError::Unreadable { .. })
}

/// A pod of a Job, whose termination message holds the result.
async fn find_pod(ctx: &Context, namespace: &str, job: &Job) -> Result<Option<Pod>, TaskError> {
    let pods = Api::<Pod>::namespaced(ctx.client.clone(), namespace);
    let uid = job.uid().unwrap_or_default();
    let list = ListParams::default().labels(&format!("controller-uid={uid}"));
    let found = pods.list(&list).await;
    let found = found.map_err(TaskError::api_error("list the pods of the Job"))?;
    Ok(found.items.into_iter().next())
}

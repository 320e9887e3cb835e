//! Tasks: things done once, each a resource of its own.
//!
//! ```text
//! EtcdCopyBackupsTask ─► one Job ─► Succeeded | Failed
//! EtcdOpsTask ─► Pending ─► admitted? ─┬─ InProgress ─► Succeeded | Failed ─┬─ time to live ─► gone
//!                                       └─ Rejected ─────────────────────────┘
//! ```
//!
//! **Holds**: what is to be done next is a pure function of the task, its Etcd and its Job; nothing is remembered. Whatever a
//! process was doing when it died is done again, and may be: a second snapshot does no harm, a Job has one name, a
//! recovery is written down once. **Does not do**: touch volumes and pods. A restore is handed to the recovery of the
//! Etcd, which has the lock and the steps.

pub mod copy;
pub mod ops;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
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
use crate::caches::pauses::WatchBackoff;
use crate::config::Controllers;
use crate::context::Context;

/// The pause after a pass over a task failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How often a task that waits for something else is looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(3);

/// Why a pass over a task failed. It is tried again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The resource cannot be read; another version may have written it.
    #[error("read the task: {reason}")]
    Unreadable {
        /// What is wrong with it.
        reason: String,
    },
    /// The API server did not answer as it should.
    #[error("{step}")]
    Api {
        /// What was asked.
        step: &'static str,
        /// What it said.
        source: Box<kube::Error>,
    },
    /// Something was not done.
    #[error("act")]
    Act {
        /// What.
        source: ActError,
    },
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

/// How many tasks of a kind are worked on at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskWorkers {
    /// Of those that copy backups.
    pub copy: u16,
    /// Of all others.
    pub ops: u16,
}

impl TaskWorkers {
    /// As many as the operator's configuration says.
    pub fn from_config(controllers: &Controllers) -> Self {
        Self {
            copy: controllers.etcd_copy_backups_task.concurrent_syncs,
            ops: controllers.etcd_ops_task.concurrent_syncs,
        }
    }
}

/// Looks after all tasks until told to stop.
pub async fn run(
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
    .for_each(|passed| async move {
        if let Err(error) = passed {
            debug!(error = %ErrorChain(&error), "a pass over a copy task did not end well");
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
    .for_each(|passed| async move {
        if let Err(error) = passed {
            debug!(error = %ErrorChain(&error), "a pass over an ops task did not end well");
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
    warn!(task = task.name_any(), error = %ErrorChain(error), "a pass over a task failed");
    if is_permanent(error) {
        return Action::await_change();
    }
    Action::requeue(RETRY_INTERVAL)
}

/// Whether only a change of the task helps.
fn is_permanent(error: &TaskError) -> bool {
    matches!(error, TaskError::Unreadable { .. })
}

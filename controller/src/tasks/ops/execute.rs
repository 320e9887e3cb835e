//! Executes the operation of an ops task. An interrupted operation is repeated, so each one must be idempotent.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::Api;
use mainstay_crds::Etcd;
use mainstay_crds::ops::{
    Chains, OnDemandSnapshot, Operation, OpsTaskResult, RestoreTarget, SnapshotType, TaskState,
};
use mainstay_manifests::Names;
use mainstay_manifests::jobs::{self, RestorePoint, VerifyJob};
use mainstay_telemetry::ErrorChain;
use serde_json::Value;

use super::decide::{
    TaskReport, parse_full_revision, report_compaction, report_verification, require_ready,
};
use super::{FinishedJob, OpsTaskReconciler, TaskOutcome, etcd as members, recover, retry_later};
use crate::act::recovery::build_job_shape;
use crate::act::snapshots::{SidecarRequest, SnapshotError, call_sidecar};
use crate::act::upkeep::{BackupReader, remove_pin, renew_pin};
use crate::act::{ActError, Work};
use crate::model::annotations::INCIDENT;
use crate::model::{DesiredState, Observation, ObservedMembership, Ordinal};
use crate::observe::jobs::job_state;
use crate::observe::{self, Dialer, Objects};
use crate::tasks::{TaskError, find_pod};
use crate::validate;
use crate::writer::{Dependents, Target};

/// Deadline of the Job that verifies a backup.
const VERIFY_DEADLINE: Duration = Duration::from_hours(6);

/// Desired and observed state of the Etcd, without querying etcd.
pub(super) struct Sight {
    pub(super) desired: DesiredState,
    pub(super) objects: Objects,
}

impl Sight {
    pub(super) fn work<'a>(&'a self, etcd: &'a Etcd) -> Work<'a> {
        Work {
            etcd,
            desired: &self.desired,
            objects: &self.objects,
        }
    }
}

pub(super) async fn execute(
    reconciler: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
) -> Result<TaskOutcome, TaskError> {
    let operation = match reconciler.task.spec.config.operation() {
        Ok(operation) => operation,
        Err(error) => return Ok(failed_outcome("ERR_UNSUPPORTED_TASK", error.to_string())),
    };
    let desired_state = match validate::validate_etcd(etcd, &reconciler.ctx.settings.images.etcd) {
        Ok(valid) => valid,
        Err(invalid) => return Ok(failed_outcome("ERR_GET_ETCD", invalid.to_string())),
    };
    let sight = Sight {
        objects: observe_for_task(reconciler, etcd).await?,
        desired: desired_state,
    };
    match operation {
        Operation::OnDemandSnapshot(snapshot) => {
            take_snapshot(reconciler, etcd, &sight, snapshot).await
        }
        Operation::Compact(_) => run_compaction(reconciler, etcd, &sight).await,
        Operation::VerifyBackup(verify) => {
            let verify = VerifyJob {
                all_objects: verify.chains == Some(Chains::All),
                deadline: Some(VERIFY_DEADLINE),
                ..VerifyJob::default()
            };
            verify_backup(reconciler, etcd, &sight, &verify).await
        }
        Operation::Restore(restore) => {
            let target = match restore.target().map(to_job_target) {
                Ok(Ok(target)) => target,
                Ok(Err((code, message))) => return Ok(failed_outcome(code, message)),
                Err(error) => return Ok(failed_outcome("ERR_INVALID_TASK", error.to_string())),
            };
            if restore.dry_run == Some(true) {
                let verify = VerifyJob {
                    target,
                    all_objects: false,
                    deadline: Some(VERIFY_DEADLINE),
                };
                return verify_backup(reconciler, etcd, &sight, &verify).await;
            }
            recover::restore(reconciler, etcd, &sight, target).await
        }
        Operation::RecoverQuorum(how) => {
            recover::recover_quorum(reconciler, etcd, &sight, how).await
        }
        Operation::Defragment(how) => members::defragment(reconciler, etcd, &sight, how).await,
        Operation::MoveLeader(to) => members::move_leader(reconciler, etcd, &sight, to).await,
        _ => Ok(failed_outcome(
            "ERR_UNSUPPORTED_TASK",
            "Operation not supported by this version",
        )),
    }
}

async fn observe_for_task(
    reconciler: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
) -> Result<Objects, TaskError> {
    let client = &reconciler.ctx.client;
    let mut objects = observe::observe_objects(&reconciler.ctx.stores, etcd);
    observe::confirm_pvcs(client, etcd, &mut objects.observation, [Ordinal(0)]).await;
    // The Jobs of a Local store need its host directory; a wrong one would read another backup.
    let root = observe::read_local_store_root(client, etcd).await;
    objects.local_store_root = root.map_err(|source| ActError::Etcd {
        step: "lookup of the Local store directory",
        source,
    })?;
    Ok(objects)
}

pub(super) fn failed_outcome(code: &'static str, message: impl Into<String>) -> TaskOutcome {
    TaskOutcome::Report(TaskReport::error(TaskState::Failed, code, message))
}

fn to_job_target(target: RestoreTarget<'_>) -> Result<RestorePoint, (&'static str, String)> {
    Ok(match target {
        RestoreTarget::Newest => RestorePoint::Newest,
        RestoreTarget::Revision(revision) => RestorePoint::Revision(revision),
        RestoreTarget::Time(time) => RestorePoint::Time(time.0.to_string()),
        RestoreTarget::Full(name) => RestorePoint::Full {
            name: name.to_owned(),
            revision: parse_full_revision(name)?,
        },
    })
}

async fn take_snapshot(
    reconciler: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
    snapshot: &OnDemandSnapshot,
) -> Result<TaskOutcome, TaskError> {
    if let Err((code, message)) = require_ready(etcd) {
        return Ok(failed_outcome(code, message));
    }
    let path = match (snapshot.type_, snapshot.is_final) {
        (SnapshotType::Full, Some(true)) => "/snapshot/full?final=true",
        (SnapshotType::Full, _) => "/snapshot/full",
        (SnapshotType::Delta, _) => "/snapshot/delta",
    };
    let seconds = u64::try_from(snapshot.timeout_seconds()).unwrap_or(60);
    let timeout = Duration::from_secs(seconds);
    let observed = &sight.objects.observation;
    match call_sidecar(
        &reconciler.ctx.client,
        etcd,
        observed,
        SidecarRequest { path, timeout },
    )
    .await
    {
        Ok(response) => Ok(TaskOutcome::Report(snapshot_report(&response))),
        Err(error @ SnapshotError::Refused { .. }) => Ok(failed_outcome(
            "ERR_CREATE_SNAPSHOT",
            ErrorChain(&error).to_string(),
        )),
        // A sidecar that restarts is unreachable for a while: retry until the timeout of the task.
        Err(error) => {
            tracing::warn!(error = %ErrorChain(&error), "snapshot request failed");
            let waited = Timestamp::now()
                .duration_since(reconciler.started_at())
                .unsigned_abs();
            Ok(if waited > timeout {
                failed_outcome("ERR_EXECUTE_HTTP_REQUEST", ErrorChain(&error).to_string())
            } else {
                retry_later()
            })
        }
    }
}

fn snapshot_report(response: &Value) -> TaskReport {
    // The sidecar returns no name when etcd has not changed since the last snapshot.
    let Some(name) = response["snapName"].as_str() else {
        let message = "No snapshot taken: no changes since the last one";
        let result = OpsTaskResult {
            summary: message.to_owned(),
            ..OpsTaskResult::default()
        };
        return TaskReport::ok(TaskState::Succeeded, message).with_result(result);
    };
    let message = format!("Snapshot {name} taken");
    let result = OpsTaskResult {
        summary: message.clone(),
        revision: response["lastRevision"].as_i64(),
        snapshot: Some(name.to_owned()),
        safety_snapshot: None,
    };
    TaskReport::ok(TaskState::Succeeded, message).with_result(result)
}

/// Outcome of the snapshot before a restore.
pub(super) enum SafetySnapshot {
    /// Name of the snapshot.
    Taken(String),
    /// The last snapshot already holds the current state.
    Unchanged,
    /// No member serves, so no snapshot can be taken.
    NotServing,
}

/// Takes a snapshot of the current state before a restore replaces it.
pub(super) async fn take_safety_snapshot(
    reconciler: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
) -> Result<SafetySnapshot, SnapshotError> {
    let observed = &sight.objects.observation;
    if !is_serving(reconciler, etcd, observed).await {
        return Ok(SafetySnapshot::NotServing);
    }
    let response = call_sidecar(
        &reconciler.ctx.client,
        etcd,
        observed,
        SidecarRequest::full_snapshot(etcd),
    )
    .await?;
    let name = response["snapName"].as_str();
    Ok(name.map_or(SafetySnapshot::Unchanged, |name| {
        SafetySnapshot::Taken(name.to_owned())
    }))
}

/// Whether a snapshot of the current state must be taken: a pod is ready, the status is ready, or etcd has quorum.
async fn is_serving(
    reconciler: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    observed: &Observation,
) -> bool {
    // Without a pod there is no sidecar to request a snapshot from.
    if observed.pods.is_empty() {
        return false;
    }
    let is_ready = observed
        .pods
        .values()
        .any(|pod| pod.is_ready && !pod.is_deleting);
    if is_ready || require_ready(etcd).is_ok() {
        return true;
    }
    // The status lags behind: etcd may have regained quorum, with writes that no snapshot holds.
    let dialer = Dialer::new(&reconciler.ctx.client, etcd);
    let members = observe::query_members(&dialer, etcd, observed).await;
    matches!(members, ObservedMembership::Known(_))
}

/// Runs the compaction Job of the upkeep, or waits for a running one. The condition of the Etcd holds the outcome.
async fn run_compaction(
    reconciler: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
) -> Result<TaskOutcome, TaskError> {
    let reported = etcd
        .status
        .as_ref()
        .map(crate::status::read_reported_upkeep);
    let reported = reported.and_then(|reported| reported.compaction);
    if let Some(report) = report_compaction(reported.as_ref(), reconciler.started_at()) {
        return Ok(TaskOutcome::Report(report));
    }
    let is_recovering = sight.objects.observation.recovery.open_incident().is_some();
    if sight.objects.observation.upkeep.compaction.is_none() && !is_recovering {
        let full = sight.objects.observation.full_snapshot.as_ref();
        let from = full.and_then(|full| full.revision).unwrap_or_default();
        crate::act::start_compaction(reconciler.ctx, sight.work(etcd), from).await?;
    }
    Ok(retry_later())
}

/// Runs a Job that reads the backup.
async fn verify_backup(
    reconciler: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
    verify: &VerifyJob,
) -> Result<TaskOutcome, TaskError> {
    let jobs = Api::<Job>::namespaced(reconciler.ctx.client.clone(), &reconciler.namespace);
    let name = Names::new(etcd).verify_job();
    let found = jobs.get_opt(&name).await;
    let found = found.map_err(TaskError::api_error("get the verify Job"))?;
    let from = first_pinned_revision(sight, verify);
    renew_pin(reconciler.ctx, etcd, BackupReader::Verification, from).await?;
    let Some(job) = found else {
        let work = sight.work(etcd);
        let job = jobs::render_verify_job(
            etcd,
            &reconciler.ctx.settings,
            &build_job_shape(work),
            verify,
        );
        let mut job = match job {
            Ok(job) => job,
            Err(error) => return Ok(failed_outcome("ERR_INVALID_TASK", error.to_string())),
        };
        let annotations = job.metadata.annotations.get_or_insert_default();
        annotations.insert(INCIDENT.to_owned(), reconciler.operation_id());
        let writer = &reconciler.ctx.writer;
        writer.create(&Target::of(&job), &job).await?;
        return Ok(retry_later());
    };
    // The name is free again only when the terminating Job is gone.
    if job.metadata.deletion_timestamp.is_some() {
        return Ok(retry_later());
    }
    let finished = FinishedJob {
        name,
        uid: job.uid().unwrap_or_default(),
    };
    let is_ours = job.annotations().get(INCIDENT) == Some(&reconciler.operation_id());
    if !is_ours {
        // A Job that an earlier task left behind.
        delete_verify_job(reconciler, Some(etcd), &finished).await?;
        return Ok(retry_later());
    }
    let pod = find_pod(reconciler.ctx, &reconciler.namespace, &job).await?;
    Ok(match report_verification(&job_state(&job, || pod)) {
        Some(report) => TaskOutcome::Finished(report, finished),
        None => retry_later(),
    })
}

/// First revision to pin: the newest full snapshot when only the newest state is read, else everything.
fn first_pinned_revision(sight: &Sight, verify: &VerifyJob) -> i64 {
    let full = sight.objects.observation.full_snapshot.as_ref();
    let newest = full.and_then(|full| full.revision);
    match (&verify.target, verify.all_objects) {
        (RestorePoint::Newest, false) => newest.unwrap_or_default(),
        _ => 0,
    }
}

/// Deletes the verify Job, then its pin.
pub(super) async fn delete_verify_job(
    reconciler: &OpsTaskReconciler<'_>,
    etcd: Option<&Etcd>,
    finished: &FinishedJob,
) -> Result<(), TaskError> {
    let job = Target::new::<Job>(&reconciler.namespace, &finished.name);
    let deleted = reconciler
        .ctx
        .writer
        .delete(&job, Some(&finished.uid), Dependents::Background);
    deleted.await?;
    if let Some(etcd) = etcd {
        remove_pin(reconciler.ctx, etcd, BackupReader::Verification).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn skipped_delta_snapshot_is_a_success() {
        let skipped = snapshot_report(&Value::Null);
        assert_eq!(skipped.state, TaskState::Succeeded);
        let taken = snapshot_report(&json!({ "snapName": "Full-1", "lastRevision": 7 }));
        let result = taken.result.unwrap();
        assert_eq!(
            (result.revision, result.snapshot.as_deref()),
            (Some(7), Some("Full-1"))
        );
    }
}

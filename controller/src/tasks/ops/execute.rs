//! What each kind does. Whatever is interrupted is done again.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use mainstay_crds::Etcd;
use mainstay_crds::ops::{
    Chains, OnDemandSnapshot, Operation, OpsTaskResult, RestoreTarget, SnapshotType, TaskState,
};
use mainstay_manifests::Names;
use mainstay_manifests::jobs::{self, RestorePoint, VerifyJob};
use mainstay_telemetry::ErrorChain;
use serde_json::Value;

use super::decide::{TaskReport, parse_full_revision, require_ready, report_verification, report_compaction};
use super::{FinishedJob, TaskOutcome, OpsTaskReconciler, etcd as members, recover, retry_later};
use crate::act::marks::INCIDENT;
use crate::act::recovery::{create_job, build_job_shape};
use crate::act::snapshots::{SidecarRequest, SnapshotError, call_sidecar};
use crate::act::upkeep::{BackupReader, renew_pin, remove_pin};
use crate::act::{ActError, Work};
use crate::observe::jobs::job_state;
use crate::observe::{self, Dialer, ObservedMembership, Objects, Observation, Ordinal};
use crate::tasks::TaskError;
use crate::validate::{self, DesiredState};

/// How long reading a backup may take.
const VERIFY_DEADLINE: Duration = Duration::from_hours(6);

/// The Etcd as a pass over it would see it, without asking etcd.
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

pub(super) async fn execute(pass: &OpsTaskReconciler<'_>, etcd: &Etcd) -> Result<TaskOutcome, TaskError> {
    let operation = match pass.task.spec.config.operation() {
        Ok(operation) => operation,
        Err(error) => return Ok(failed_outcome("ERR_UNSUPPORTED_TASK", error.to_string())),
    };
    let wanted = match validate::validate_etcd(etcd, &pass.ctx.settings.images.etcd) {
        Ok(wanted) => wanted,
        Err(problem) => return Ok(failed_outcome("ERR_GET_ETCD", problem.to_string())),
    };
    let mut objects = observe::observe_objects(&pass.ctx.stores, etcd);
    observe::confirm_pvcs(
        &pass.ctx.client,
        etcd,
        &mut objects.observation,
        [Ordinal(0)],
    )
    .await;
    let root = observe::read_local_store_root(&pass.ctx.client, etcd).await;
    objects.local_store_root = root.map_err(|source| ActError::Etcd {
        step: "look at the store",
        source,
    })?;
    let sight = Sight { desired: wanted, objects };
    match operation {
        Operation::OnDemandSnapshot(snapshot) => take_snapshot(pass, etcd, &sight, snapshot).await,
        Operation::Compact(_) => run_compaction(pass, etcd, &sight).await,
        Operation::VerifyBackup(verify) => {
            let verify = VerifyJob {
                all_objects: verify.chains == Some(Chains::All),
                deadline: Some(VERIFY_DEADLINE),
                ..VerifyJob::default()
            };
            verify_backup(pass, etcd, &sight, &verify).await
        }
        Operation::Restore(restore) => {
            let target = match restore.target().map(to_job_target) {
                Ok(Ok(target)) => target,
                Ok(Err((code, words))) => return Ok(failed_outcome(code, words)),
                Err(error) => return Ok(failed_outcome("ERR_INVALID_TASK", error.to_string())),
            };
            if restore.dry_run == Some(true) {
                let verify = VerifyJob {
                    target,
                    all_objects: false,
                    deadline: Some(VERIFY_DEADLINE),
                };
                return verify_backup(pass, etcd, &sight, &verify).await;
            }
            recover::restore(pass, etcd, &sight, target).await
        }
        Operation::RecoverQuorum(how) => recover::recover_quorum(pass, etcd, &sight, how).await,
        Operation::Defragment(how) => members::defragment(pass, etcd, &sight, how).await,
        Operation::MoveLeader(to) => members::move_leader(pass, etcd, &sight, to).await,
        _ => Ok(failed_outcome(
            "ERR_UNSUPPORTED_TASK",
            "this version does not know how",
        )),
    }
}

pub(super) fn failed_outcome(code: &'static str, words: impl Into<String>) -> TaskOutcome {
    TaskOutcome::Report(TaskReport::error(TaskState::Failed, code, words))
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

/// Takes a snapshot.
async fn take_snapshot(
    pass: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
    snapshot: &OnDemandSnapshot,
) -> Result<TaskOutcome, TaskError> {
    if let Err((code, words)) = require_ready(etcd) {
        return Ok(failed_outcome(code, words));
    }
    let path = match (snapshot.type_, snapshot.is_final) {
        (SnapshotType::Full, Some(true)) => "/snapshot/full?final=true",
        (SnapshotType::Full, _) => "/snapshot/full",
        (SnapshotType::Delta, _) => "/snapshot/delta",
    };
    let seconds = u64::try_from(snapshot.timeout_seconds()).unwrap_or(60);
    let limit = Duration::from_secs(seconds);
    let observed = &sight.objects.observation;
    match call_sidecar(&pass.ctx.client, etcd, observed, SidecarRequest { path, timeout: limit }).await {
        Ok(answer) => Ok(TaskOutcome::Report(snapshot_report(&answer))),
        Err(error @ SnapshotError::Refused { .. }) => {
            Ok(failed_outcome("ERR_CREATE_SNAPSHOT", ErrorChain(&error).to_string()))
        }
        // Nobody could be asked, or nobody answered in time: not for ever.
        Err(error) => {
            tracing::warn!(error = %ErrorChain(&error), "the sidecar could not be asked");
            let waited = Timestamp::now()
                .duration_since(pass.started_at())
                .unsigned_abs();
            Ok(if waited > limit {
                failed_outcome("ERR_EXECUTE_HTTP_REQUEST", ErrorChain(&error).to_string())
            } else {
                retry_later()
            })
        }
    }
}

fn snapshot_report(answer: &Value) -> TaskReport {
    let Some(name) = answer["snapName"].as_str() else {
        let words = "nothing has changed since the last snapshot, so none was taken";
        let result = OpsTaskResult {
            summary: words.to_owned(),
            ..OpsTaskResult::default()
        };
        return TaskReport::ok(TaskState::Succeeded, words).with_result(result);
    };
    let words = format!("{name} was taken");
    let result = OpsTaskResult {
        summary: words.clone(),
        revision: answer["lastRevision"].as_i64(),
        snapshot: Some(name.to_owned()),
        safety_snapshot: None,
    };
    TaskReport::ok(TaskState::Succeeded, words).with_result(result)
}

/// What became of the present state before it is given up.
pub(super) enum SafetySnapshot {
    /// It is in this snapshot.
    Taken(String),
    /// It is in the last snapshot: nothing has changed since.
    Unchanged,
    /// There is nobody to ask for one.
    NotServing,
}

/// Takes a snapshot of the present state before it is given up.
pub(super) async fn take_safety_snapshot(
    pass: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
) -> Result<SafetySnapshot, SnapshotError> {
    let observed = &sight.objects.observation;
    if !is_serving(pass, etcd, observed).await {
        return Ok(SafetySnapshot::NotServing);
    }
    let answer = call_sidecar(&pass.ctx.client, etcd, observed, SidecarRequest::full_snapshot(etcd)).await?;
    let name = answer["snapName"].as_str();
    Ok(name.map_or(SafetySnapshot::Unchanged, |name| SafetySnapshot::Taken(name.to_owned())))
}

/// Whether there is a present state: a pod is ready, or etcd answers with a quorum, whatever the status says. Without a pod
/// there is none: nobody could be asked to save it.
async fn is_serving(pass: &OpsTaskReconciler<'_>, etcd: &Etcd, observed: &Observation) -> bool {
    if observed.pods.is_empty() {
        return false;
    }
    let is_ready = observed
        .pods
        .values()
        .any(|pod| pod.is_ready && !pod.is_deleting);
    if is_ready || self::require_ready(etcd).is_ok() {
        return true;
    }
    let dialer = Dialer::new(&pass.ctx.client, etcd);
    let members = observe::query_members(&dialer, etcd, observed).await;
    matches!(members, ObservedMembership::Known(_))
}

/// The Job of the upkeep does it, whoever started it; the condition tells how it ended.
async fn run_compaction(pass: &OpsTaskReconciler<'_>, etcd: &Etcd, sight: &Sight) -> Result<TaskOutcome, TaskError> {
    let told = etcd.status.as_ref().map(crate::status::told_upkeep);
    let told = told.and_then(|told| told.compaction);
    if let Some(telling) = report_compaction(told.as_ref(), pass.started_at()) {
        return Ok(TaskOutcome::Report(telling));
    }
    let is_recovering = sight.objects.observation.recovery.open_incident().is_some();
    if sight.objects.observation.upkeep.compaction.is_none() && !is_recovering {
        let full = sight.objects.observation.full_snapshot.as_ref();
        let from = full.and_then(|full| full.revision).unwrap_or_default();
        crate::act::start_compaction(pass.ctx, sight.work(etcd), from).await?;
    }
    Ok(retry_later())
}

/// A Job reads the backup.
async fn verify_backup(
    pass: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
    verify: &VerifyJob,
) -> Result<TaskOutcome, TaskError> {
    let jobs = Api::<Job>::namespaced(pass.ctx.client.clone(), &pass.namespace);
    let name = Names::new(etcd).verify_job();
    let found = jobs.get_opt(&name).await;
    let found = found.map_err(TaskError::api_error("look for the Job"))?;
    let from = first_pinned_revision(sight, verify);
    renew_pin(pass.ctx, etcd, BackupReader::Verification, from).await?;
    let Some(job) = found else {
        let work = sight.work(etcd);
        let job = jobs::render_verify_job(etcd, &pass.ctx.settings, &build_job_shape(work), verify);
        let mut job = match job {
            Ok(job) => job,
            Err(error) => return Ok(failed_outcome("ERR_INVALID_TASK", error.to_string())),
        };
        let annotations = job.metadata.annotations.get_or_insert_default();
        annotations.insert(INCIDENT.to_owned(), pass.operation_id());
        create_job(pass.ctx, &pass.namespace, &job).await?;
        return Ok(retry_later());
    };
    if job.metadata.deletion_timestamp.is_some() {
        return Ok(retry_later());
    }
    let finished = FinishedJob {
        name,
        uid: job.uid().unwrap_or_default(),
    };
    let is_ours = job.annotations().get(INCIDENT) == Some(&pass.operation_id());
    if !is_ours {
        // Of a task that is gone.
        delete_verify_job(pass, Some(etcd), &finished).await?;
        return Ok(retry_later());
    }
    let pod = find_pod(pass, &job).await?;
    Ok(match report_verification(&job_state(&job, || pod)) {
        Some(telling) => TaskOutcome::Finished(telling, finished),
        None => retry_later(),
    })
}

/// From which revision on the backup is read: everything, unless it is the newest state alone.
fn first_pinned_revision(sight: &Sight, verify: &VerifyJob) -> i64 {
    let full = sight.objects.observation.full_snapshot.as_ref();
    let newest = full.and_then(|full| full.revision);
    match (&verify.target, verify.all_objects) {
        (RestorePoint::Newest, false) => newest.unwrap_or_default(),
        _ => 0,
    }
}

/// Removes the Job that has read the backup, and what kept retention from that.
pub(super) async fn delete_verify_job(
    pass: &OpsTaskReconciler<'_>,
    etcd: Option<&Etcd>,
    finished: &FinishedJob,
) -> Result<(), TaskError> {
    pass.check_leadership()?;
    let jobs = Api::<Job>::namespaced(pass.ctx.client.clone(), &pass.namespace);
    let params = DeleteParams::background().preconditions(Preconditions {
        uid: Some(finished.uid.clone()),
        resource_version: None,
    });
    match jobs.delete(&finished.name, &params).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => return Err(TaskError::api_error("delete the Job")(error)),
    }
    if let Some(etcd) = etcd {
        remove_pin(pass.ctx, etcd, BackupReader::Verification).await;
    }
    Ok(())
}

async fn find_pod(pass: &OpsTaskReconciler<'_>, job: &Job) -> Result<Option<Pod>, TaskError> {
    let pods = Api::<Pod>::namespaced(pass.ctx.client.clone(), &pass.namespace);
    let uid = job.uid().unwrap_or_default();
    let list = ListParams::default().labels(&format!("controller-uid={uid}"));
    let found = pods.list(&list).await;
    let found = found.map_err(TaskError::api_error("look for the pod of the Job"))?;
    Ok(found.items.into_iter().next())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_delta_that_was_not_needed_is_a_success() {
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

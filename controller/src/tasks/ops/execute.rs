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
use mainstay_manifests::jobs::{self, Target, VerifyJob};
use mainstay_telemetry::Chain;
use serde_json::Value;

use super::decide::{Telling, full, is_ready, of_check, of_compaction};
use super::{Finished, Outcome, Pass, etcd as members, recover, wait};
use crate::act::marks::INCIDENT;
use crate::act::recovery::{create, shape};
use crate::act::snapshots::{Ask, SnapshotError, ask};
use crate::act::upkeep::{Reader, keep_pin, unpin};
use crate::act::{ActError, Work};
use crate::observe::jobs::state;
use crate::observe::{self, Dialer, Membership, Objects, Observation, Ordinal};
use crate::tasks::TaskError;
use crate::validate::{self, Wanted};

/// How long reading a backup may take.
const VERIFY_DEADLINE: Duration = Duration::from_hours(6);

/// The Etcd as a pass over it would see it, without asking etcd.
pub(super) struct Sight {
    pub(super) wanted: Wanted,
    pub(super) objects: Objects,
}

impl Sight {
    pub(super) fn work<'a>(&'a self, etcd: &'a Etcd) -> Work<'a> {
        Work {
            etcd,
            wanted: &self.wanted,
            objects: &self.objects,
        }
    }
}

pub(super) async fn execute(pass: &Pass<'_>, etcd: &Etcd) -> Result<Outcome, TaskError> {
    let operation = match pass.task.spec.config.operation() {
        Ok(operation) => operation,
        Err(error) => return Ok(failed("ERR_UNSUPPORTED_TASK", error.to_string())),
    };
    let wanted = match validate::etcd(etcd, &pass.ctx.settings.images.etcd) {
        Ok(wanted) => wanted,
        Err(problem) => return Ok(failed("ERR_GET_ETCD", problem.to_string())),
    };
    let mut objects = observe::objects(&pass.ctx.stores, etcd);
    observe::confirm_claims(
        &pass.ctx.client,
        etcd,
        &mut objects.observation,
        [Ordinal(0)],
    )
    .await;
    let root = observe::local_store_root(&pass.ctx.client, etcd).await;
    objects.local_store_root = root.map_err(|source| ActError::Etcd {
        step: "look at the store",
        source,
    })?;
    let sight = Sight { wanted, objects };
    match operation {
        Operation::OnDemandSnapshot(snapshot) => take(pass, etcd, &sight, snapshot).await,
        Operation::Compact(_) => compact(pass, etcd, &sight).await,
        Operation::VerifyBackup(verify) => {
            let verify = VerifyJob {
                all: verify.chains == Some(Chains::All),
                deadline: Some(VERIFY_DEADLINE),
                ..VerifyJob::default()
            };
            check(pass, etcd, &sight, &verify).await
        }
        Operation::Restore(restore) => {
            let target = match restore.target().map(target) {
                Ok(Ok(target)) => target,
                Ok(Err((code, words))) => return Ok(failed(code, words)),
                Err(error) => return Ok(failed("ERR_INVALID_TASK", error.to_string())),
            };
            if restore.dry_run == Some(true) {
                let verify = VerifyJob {
                    target,
                    all: false,
                    deadline: Some(VERIFY_DEADLINE),
                };
                return check(pass, etcd, &sight, &verify).await;
            }
            recover::restore(pass, etcd, &sight, target).await
        }
        Operation::RecoverQuorum(how) => recover::quorum(pass, etcd, &sight, how).await,
        Operation::Defragment(how) => members::defragment(pass, etcd, &sight, how).await,
        Operation::MoveLeader(to) => members::move_leader(pass, etcd, &sight, to).await,
        _ => Ok(failed(
            "ERR_UNSUPPORTED_TASK",
            "this version does not know how",
        )),
    }
}

pub(super) fn failed(code: &'static str, words: impl Into<String>) -> Outcome {
    Outcome::Told(Telling::ill(TaskState::Failed, code, words))
}

fn target(target: RestoreTarget<'_>) -> Result<Target, (&'static str, String)> {
    Ok(match target {
        RestoreTarget::Newest => Target::Newest,
        RestoreTarget::Revision(revision) => Target::Revision(revision),
        RestoreTarget::Time(time) => Target::Time(time.0.to_string()),
        RestoreTarget::Full(name) => Target::Full {
            name: name.to_owned(),
            revision: full(name)?,
        },
    })
}

/// Takes a snapshot.
async fn take(
    pass: &Pass<'_>,
    etcd: &Etcd,
    sight: &Sight,
    snapshot: &OnDemandSnapshot,
) -> Result<Outcome, TaskError> {
    if let Err((code, words)) = is_ready(etcd) {
        return Ok(failed(code, words));
    }
    let path = match (snapshot.type_, snapshot.is_final) {
        (SnapshotType::Full, Some(true)) => "/snapshot/full?final=true",
        (SnapshotType::Full, _) => "/snapshot/full",
        (SnapshotType::Delta, _) => "/snapshot/delta",
    };
    let seconds = u64::try_from(snapshot.timeout_seconds()).unwrap_or(60);
    let limit = Duration::from_secs(seconds);
    let seen = &sight.objects.observation;
    match ask(&pass.ctx.client, etcd, seen, Ask { path, limit }).await {
        Ok(answer) => Ok(Outcome::Told(taken(&answer))),
        Err(error @ SnapshotError::Refused { .. }) => {
            Ok(failed("ERR_CREATE_SNAPSHOT", Chain(&error).to_string()))
        }
        // Nobody could be asked, or nobody answered in time: not for ever.
        Err(error) => {
            tracing::warn!(error = %Chain(&error), "the sidecar could not be asked");
            let waited = Timestamp::now()
                .duration_since(pass.started())
                .unsigned_abs();
            Ok(if waited > limit {
                failed("ERR_EXECUTE_HTTP_REQUEST", Chain(&error).to_string())
            } else {
                wait()
            })
        }
    }
}

fn taken(answer: &Value) -> Telling {
    let Some(name) = answer["snapName"].as_str() else {
        let words = "nothing has changed since the last snapshot, so none was taken";
        let result = OpsTaskResult {
            summary: words.to_owned(),
            ..OpsTaskResult::default()
        };
        return Telling::well(TaskState::Succeeded, words).with(result);
    };
    let words = format!("{name} was taken");
    let result = OpsTaskResult {
        summary: words.clone(),
        revision: answer["lastRevision"].as_i64(),
        snapshot: Some(name.to_owned()),
        safety_snapshot: None,
    };
    Telling::well(TaskState::Succeeded, words).with(result)
}

/// What became of the present state before it is given up.
pub(super) enum Safety {
    /// It is in this snapshot.
    Taken(String),
    /// It is in the last snapshot: nothing has changed since.
    Unchanged,
    /// There is nobody to ask for one.
    Silent,
}

/// Takes a snapshot of the present state before it is given up.
pub(super) async fn safety(
    pass: &Pass<'_>,
    etcd: &Etcd,
    sight: &Sight,
) -> Result<Safety, SnapshotError> {
    let seen = &sight.objects.observation;
    if !serves(pass, etcd, seen).await {
        return Ok(Safety::Silent);
    }
    let answer = ask(&pass.ctx.client, etcd, seen, Ask::full(etcd)).await?;
    let name = answer["snapName"].as_str();
    Ok(name.map_or(Safety::Unchanged, |name| Safety::Taken(name.to_owned())))
}

/// Whether there is a present state: a pod is ready, or etcd answers with a quorum, whatever the status says. Without a pod
/// there is none: nobody could be asked to save it.
async fn serves(pass: &Pass<'_>, etcd: &Etcd, seen: &Observation) -> bool {
    if seen.pods.is_empty() {
        return false;
    }
    let is_ready = seen
        .pods
        .values()
        .any(|pod| pod.is_ready && !pod.is_deleting);
    if is_ready || self::is_ready(etcd).is_ok() {
        return true;
    }
    let dialer = Dialer::new(&pass.ctx.client, etcd);
    let members = observe::members(&dialer, etcd, seen).await;
    matches!(members, Membership::Known(_))
}

/// The Job of the upkeep does it, whoever started it; the condition tells how it ended.
async fn compact(pass: &Pass<'_>, etcd: &Etcd, sight: &Sight) -> Result<Outcome, TaskError> {
    let told = etcd.status.as_ref().map(crate::status::told_upkeep);
    let told = told.and_then(|told| told.compaction);
    if let Some(telling) = of_compaction(told.as_ref(), pass.started()) {
        return Ok(Outcome::Told(telling));
    }
    let is_recovering = sight.objects.observation.recovery.open().is_some();
    if sight.objects.observation.upkeep.compaction.is_none() && !is_recovering {
        let full = sight.objects.observation.full_snapshot.as_ref();
        let from = full.and_then(|full| full.revision).unwrap_or_default();
        crate::act::compact(pass.ctx, sight.work(etcd), from).await?;
    }
    Ok(wait())
}

/// A Job reads the backup.
async fn check(
    pass: &Pass<'_>,
    etcd: &Etcd,
    sight: &Sight,
    verify: &VerifyJob,
) -> Result<Outcome, TaskError> {
    let jobs = Api::<Job>::namespaced(pass.ctx.client.clone(), &pass.namespace);
    let name = Names::of(etcd).verify_job();
    let found = jobs.get_opt(&name).await;
    let found = found.map_err(TaskError::api("look for the Job"))?;
    let from = pinned_from(sight, verify);
    keep_pin(pass.ctx, etcd, Reader::Verification, from).await?;
    let Some(job) = found else {
        let work = sight.work(etcd);
        let job = jobs::verify_job(etcd, &pass.ctx.settings, &shape(work), verify);
        let mut job = match job {
            Ok(job) => job,
            Err(error) => return Ok(failed("ERR_INVALID_TASK", error.to_string())),
        };
        let annotations = job.metadata.annotations.get_or_insert_default();
        annotations.insert(INCIDENT.to_owned(), pass.id());
        create(pass.ctx, &pass.namespace, &job).await?;
        return Ok(wait());
    };
    if job.metadata.deletion_timestamp.is_some() {
        return Ok(wait());
    }
    let finished = Finished {
        name,
        uid: job.uid().unwrap_or_default(),
    };
    let is_ours = job.annotations().get(INCIDENT) == Some(&pass.id());
    if !is_ours {
        // Of a task that is gone.
        remove(pass, Some(etcd), &finished).await?;
        return Ok(wait());
    }
    let pod = pod(pass, &job).await?;
    Ok(match of_check(&state(&job, || pod)) {
        Some(telling) => Outcome::Over(telling, finished),
        None => wait(),
    })
}

/// From which revision on the backup is read: everything, unless it is the newest state alone.
fn pinned_from(sight: &Sight, verify: &VerifyJob) -> i64 {
    let full = sight.objects.observation.full_snapshot.as_ref();
    let newest = full.and_then(|full| full.revision);
    match (&verify.target, verify.all) {
        (Target::Newest, false) => newest.unwrap_or_default(),
        _ => 0,
    }
}

/// Removes the Job that has read the backup, and what kept retention from that.
pub(super) async fn remove(
    pass: &Pass<'_>,
    etcd: Option<&Etcd>,
    finished: &Finished,
) -> Result<(), TaskError> {
    pass.may()?;
    let jobs = Api::<Job>::namespaced(pass.ctx.client.clone(), &pass.namespace);
    let params = DeleteParams::background().preconditions(Preconditions {
        uid: Some(finished.uid.clone()),
        resource_version: None,
    });
    match jobs.delete(&finished.name, &params).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => return Err(TaskError::api("delete the Job")(error)),
    }
    if let Some(etcd) = etcd {
        unpin(pass.ctx, etcd, Reader::Verification).await;
    }
    Ok(())
}

async fn pod(pass: &Pass<'_>, job: &Job) -> Result<Option<Pod>, TaskError> {
    let pods = Api::<Pod>::namespaced(pass.ctx.client.clone(), &pass.namespace);
    let uid = job.uid().unwrap_or_default();
    let list = ListParams::default().labels(&format!("controller-uid={uid}"));
    let found = pods.list(&list).await;
    let found = found.map_err(TaskError::api("look for the pod of the Job"))?;
    Ok(found.items.into_iter().next())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_delta_that_was_not_needed_is_a_success() {
        let skipped = taken(&Value::Null);
        assert_eq!(skipped.state, TaskState::Succeeded);
        let taken = taken(&json!({ "snapName": "Full-1", "lastRevision": 7 }));
        let result = taken.result.unwrap();
        assert_eq!(
            (result.revision, result.snapshot.as_deref()),
            (Some(7), Some("Full-1"))
        );
    }
}

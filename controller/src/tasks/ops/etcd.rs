//! Operations that call etcd directly: defragmentation and transfer of leadership.

use std::time::Duration;

use mainstay_crds::Etcd;
use mainstay_crds::ops::{Defragment, MoveLeader, OpsTaskResult, TaskState};
use mainstay_telemetry::ErrorChain;

use super::decide::{TaskReport, require_ready};
use super::execute::{Sight, failed_outcome};
use super::{OpsTaskReconciler, TaskOutcome, retry_later};
use crate::model::{ObservedEtcdMember, ObservedMembership, QuorumMembers};
use crate::observe::dial::call_with_timeout;
use crate::observe::{self, DialError, Dialer, EtcdEndpoint, list_targets};
use crate::tasks::TaskError;

/// Timeout of defragmenting one member when the spec sets none.
const DEFRAGMENT_TIMEOUT: Duration = Duration::from_mins(15);
const MOVE_LEADER_TIMEOUT: Duration = Duration::from_secs(15);

/// The members confirmed by a quorum, with the dialer to reach them.
struct QueriedMembers {
    dialer: Dialer,
    members: QuorumMembers,
}

async fn query_members(
    reconciler: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
) -> Result<QueriedMembers, String> {
    let dialer = Dialer::new(&reconciler.ctx.client, etcd);
    match observe::query_members(&dialer, etcd, &sight.objects.observation).await {
        ObservedMembership::Known(members) => Ok(QueriedMembers { dialer, members }),
        ObservedMembership::NoQuorum { reason: cause, .. } => Err(cause),
        ObservedMembership::NotQueried => Err("Members not queried".to_owned()),
    }
}

fn find_endpoint(etcd: &Etcd, sight: &Sight, member: &ObservedEtcdMember) -> Option<EtcdEndpoint> {
    let all = list_targets(etcd, &sight.objects.observation);
    let found = all
        .into_iter()
        .find(|target| target.ordinal == member.ordinal);
    found.map(|target| target.endpoint)
}

/// Defragments one member after another.
pub(super) async fn defragment(
    reconciler: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
    how: &Defragment,
) -> Result<TaskOutcome, TaskError> {
    if let Err((code, message)) = require_ready(etcd) {
        return Ok(failed_outcome(code, message));
    }
    let QueriedMembers { dialer, members } = match query_members(reconciler, etcd, sight).await {
        Ok(requested) => requested,
        Err(cause) => return Ok(failed_outcome("ERR_ETCD_NOT_READY", cause)),
    };
    let selected = how.members.as_deref();
    let is_known = |name: &&String| members.list.iter().any(|member| member.name == **name);
    if let Some(name) = selected.into_iter().flatten().find(|name| !is_known(name)) {
        let message = format!("Member {name:?} not found in the cluster");
        return Ok(failed_outcome("ERR_INVALID_TASK", message));
    }
    let mut chosen: Vec<&ObservedEtcdMember> = members
        .list
        .iter()
        .filter(|member| selected.is_none_or(|names| names.contains(&member.name)))
        .collect();
    // The leader last: a member serves no requests while it defragments.
    chosen.sort_by_key(|member| member.is_leader());
    let limit = etcd.spec.etcd.etcd_defrag_timeout.as_ref();
    let limit = limit
        .and_then(|span| span.to_duration().ok())
        .unwrap_or(DEFRAGMENT_TIMEOUT);
    for member in &chosen {
        reconciler.ctx.writer.check_leadership()?;
        let Some(endpoint) = find_endpoint(etcd, sight, member) else {
            continue; // no pod of this Etcd
        };
        if let Err(error) = defragment_member(&dialer, &endpoint, limit).await {
            let message = format!(
                "Failed to defragment member {}: {}",
                member.name,
                ErrorChain(&error)
            );
            return Ok(failed_outcome("ERR_DEFRAGMENT", message));
        }
    }
    let message = format!("Defragmented {} members", chosen.len());
    Ok(TaskOutcome::Report(success_report(message)))
}

async fn defragment_member(
    dialer: &Dialer,
    endpoint: &EtcdEndpoint,
    limit: Duration,
) -> Result<(), DialError> {
    let mut client = dialer.connect_with_timeout(endpoint, limit).await?;
    call_with_timeout("Defragment", endpoint, limit, client.defragment())
        .await
        .map(drop)
}

/// Transfers leadership to another member.
pub(super) async fn move_leader(
    reconciler: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
    how: &MoveLeader,
) -> Result<TaskOutcome, TaskError> {
    if let Err((code, message)) = require_ready(etcd) {
        return Ok(failed_outcome(code, message));
    }
    let QueriedMembers { dialer, members } = match query_members(reconciler, etcd, sight).await {
        Ok(requested) => requested,
        Err(cause) => return Ok(failed_outcome("ERR_ETCD_NOT_READY", cause)),
    };
    let Some(leader) = members.list.iter().find(|member| member.is_leader()) else {
        return Ok(retry_later());
    };
    // A learner cannot lead, and an unhealthy member would leave the cluster without a leader.
    let is_candidate = |member: &&ObservedEtcdMember| {
        member.id != leader.id && !member.is_learner && member.is_healthy()
    };
    let candidate = match &how.to {
        Some(name) if *name == leader.name => {
            return Ok(TaskOutcome::Report(success_report(format!(
                "Member {name} is already the leader"
            ))));
        }
        Some(name) => members
            .list
            .iter()
            .filter(is_candidate)
            .find(|member| member.name == *name),
        None => members.list.iter().find(is_candidate),
    };
    let (Some(candidate), Some(endpoint)) = (candidate, find_endpoint(etcd, sight, leader)) else {
        return Ok(failed_outcome(
            "ERR_INVALID_TASK",
            "No healthy voting member to transfer leadership to",
        ));
    };
    reconciler.ctx.writer.check_leadership()?;
    let moved = async {
        let mut client = dialer.connect(&endpoint).await?;
        call_with_timeout(
            "MoveLeader",
            &endpoint,
            MOVE_LEADER_TIMEOUT,
            client.move_leader(candidate.id.0),
        )
        .await
    };
    match moved.await {
        Ok(_) => Ok(TaskOutcome::Report(success_report(format!(
            "Leadership transferred to member {}",
            candidate.name
        )))),
        Err(error) => Ok(failed_outcome(
            "ERR_MOVE_LEADER",
            ErrorChain(&error).to_string(),
        )),
    }
}

fn success_report(message: String) -> TaskReport {
    let result = OpsTaskResult {
        summary: message.clone(),
        ..OpsTaskResult::default()
    };
    TaskReport::ok(TaskState::Succeeded, message).with_result(result)
}

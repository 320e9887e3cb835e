//! What is asked of etcd itself: to defragment, and to let another member lead.

use std::time::Duration;

use mainstay_crds::Etcd;
use mainstay_crds::ops::{Defragment, MoveLeader, OpsTaskResult, TaskState};
use mainstay_telemetry::ErrorChain;

use super::decide::{TaskReport, require_ready};
use super::execute::{Sight, failed_outcome};
use super::{TaskOutcome, OpsTaskReconciler, retry_later};
use crate::observe::dial::call_with_timeout;
use crate::observe::{self, DialError, Dialer, QuorumMembers, ObservedMembership, EtcdEndpoint, ObservedEtcdMember, list_targets};
use crate::tasks::TaskError;

/// How long one member may take to defragment when the resource does not say.
const DEFRAGMENT_TIMEOUT: Duration = Duration::from_mins(15);
/// How long moving leadership may take.
const MOVE_LEADER_TIMEOUT: Duration = Duration::from_secs(15);

/// The members, as a quorum knows them.
struct QueriedMembers {
    dialer: Dialer,
    members: QuorumMembers,
}

async fn query_members(pass: &OpsTaskReconciler<'_>, etcd: &Etcd, sight: &Sight) -> Result<QueriedMembers, String> {
    let dialer = Dialer::new(&pass.ctx.client, etcd);
    match observe::query_members(&dialer, etcd, &sight.objects.observation).await {
        ObservedMembership::Known(members) => Ok(QueriedMembers { dialer, members }),
        ObservedMembership::NoQuorum { reason: why, .. } => Err(why),
        ObservedMembership::NotQueried => Err("nobody was asked".to_owned()),
    }
}

fn find_endpoint(etcd: &Etcd, sight: &Sight, member: &ObservedEtcdMember) -> Option<EtcdEndpoint> {
    let all = list_targets(etcd, &sight.objects.observation);
    let found = all
        .into_iter()
        .find(|target| target.ordinal == member.ordinal);
    found.map(|target| target.endpoint)
}

/// One member after another, the leader last: while it works, a member does not answer.
pub(super) async fn defragment(
    pass: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
    how: &Defragment,
) -> Result<TaskOutcome, TaskError> {
    if let Err((code, words)) = require_ready(etcd) {
        return Ok(failed_outcome(code, words));
    }
    let QueriedMembers { dialer, members } = match query_members(pass, etcd, sight).await {
        Ok(requested) => requested,
        Err(why) => return Ok(failed_outcome("ERR_ETCD_NOT_READY", why)),
    };
    let wanted = how.members.as_deref();
    let is_known = |name: &&String| members.list.iter().any(|member| member.name == **name);
    if let Some(name) = wanted.into_iter().flatten().find(|name| !is_known(name)) {
        let words = format!("{name:?} is no member of this cluster");
        return Ok(failed_outcome("ERR_INVALID_TASK", words));
    }
    let mut chosen: Vec<&ObservedEtcdMember> = members
        .list
        .iter()
        .filter(|member| wanted.is_none_or(|names| names.contains(&member.name)))
        .collect();
    chosen.sort_by_key(|member| member.is_leader());
    let limit = etcd.spec.etcd.etcd_defrag_timeout.as_ref();
    let limit = limit
        .and_then(|span| span.to_duration().ok())
        .unwrap_or(DEFRAGMENT_TIMEOUT);
    for member in &chosen {
        pass.check_leadership()?;
        let Some(reach) = find_endpoint(etcd, sight, member) else {
            continue; // a member of somebody else
        };
        if let Err(error) = defragment_member(&dialer, &reach, limit).await {
            let words = format!("{}: {}", member.name, ErrorChain(&error));
            return Ok(failed_outcome("ERR_DEFRAGMENT", words));
        }
    }
    let words = format!("{} members were defragmented", chosen.len());
    Ok(TaskOutcome::Report(success_report(words)))
}

async fn defragment_member(dialer: &Dialer, reach: &EtcdEndpoint, limit: Duration) -> Result<(), DialError> {
    let mut client = dialer.connect_with_timeout(reach, limit).await?;
    call_with_timeout("defragment", reach, limit, client.defragment())
        .await
        .map(drop)
}

/// Makes another member lead.
pub(super) async fn move_leader(
    pass: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
    how: &MoveLeader,
) -> Result<TaskOutcome, TaskError> {
    if let Err((code, words)) = require_ready(etcd) {
        return Ok(failed_outcome(code, words));
    }
    let QueriedMembers { dialer, members } = match query_members(pass, etcd, sight).await {
        Ok(requested) => requested,
        Err(why) => return Ok(failed_outcome("ERR_ETCD_NOT_READY", why)),
    };
    let Some(leader) = members.list.iter().find(|member| member.is_leader()) else {
        return Ok(retry_later());
    };
    let is_heir =
        |member: &&ObservedEtcdMember| member.id != leader.id && !member.is_learner && member.is_healthy();
    let heir = match &how.to {
        Some(name) if *name == leader.name => {
            return Ok(TaskOutcome::Report(success_report(format!("{name} leads already"))));
        }
        Some(name) => members
            .list
            .iter()
            .filter(is_heir)
            .find(|member| member.name == *name),
        None => members.list.iter().find(is_heir),
    };
    let (Some(heir), Some(reach)) = (heir, find_endpoint(etcd, sight, leader)) else {
        return Ok(failed_outcome(
            "ERR_INVALID_TASK",
            "there is no healthy member of that name to lead",
        ));
    };
    pass.check_leadership()?;
    let moved = async {
        let mut client = dialer.connect(&reach).await?;
        call_with_timeout(
            "move leadership",
            &reach,
            MOVE_LEADER_TIMEOUT,
            client.move_leader(heir.id.0),
        )
        .await
    };
    match moved.await {
        Ok(_) => Ok(TaskOutcome::Report(success_report(format!("{} leads", heir.name)))),
        Err(error) => Ok(failed_outcome("ERR_MOVE_LEADER", ErrorChain(&error).to_string())),
    }
}

fn success_report(words: String) -> TaskReport {
    let result = OpsTaskResult {
        summary: words.clone(),
        ..OpsTaskResult::default()
    };
    TaskReport::ok(TaskState::Succeeded, words).with_result(result)
}

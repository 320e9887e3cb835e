//! What is asked of etcd itself: to defragment, and to let another member lead.

use std::time::Duration;

use mainstay_crds::Etcd;
use mainstay_crds::ops::{Defragment, MoveLeader, OpsTaskResult, TaskState};
use mainstay_telemetry::Chain;

use super::decide::{Telling, is_ready};
use super::execute::{Sight, failed};
use super::{Outcome, Pass, wait};
use crate::observe::dial::ask;
use crate::observe::{self, DialError, Dialer, Members, Membership, Reach, SeenMember, targets};
use crate::tasks::TaskError;

/// How long one member may take to defragment when the resource does not say.
const DEFRAGMENT: Duration = Duration::from_mins(15);
/// How long moving leadership may take.
const MOVE: Duration = Duration::from_secs(15);

/// The members, as a quorum knows them.
struct Asked {
    dialer: Dialer,
    members: Members,
}

async fn members(pass: &Pass<'_>, etcd: &Etcd, sight: &Sight) -> Result<Asked, String> {
    let dialer = Dialer::new(&pass.ctx.client, etcd);
    match observe::members(&dialer, etcd, &sight.objects.observation).await {
        Membership::Known(members) => Ok(Asked { dialer, members }),
        Membership::Silent { why, .. } => Err(why),
        Membership::Unasked => Err("nobody was asked".to_owned()),
    }
}

fn reach(etcd: &Etcd, sight: &Sight, member: &SeenMember) -> Option<Reach> {
    let all = targets(etcd, &sight.objects.observation);
    let found = all
        .into_iter()
        .find(|target| target.ordinal == member.ordinal);
    found.map(|target| target.reach)
}

/// One member after another, the leader last: while it works, a member does not answer.
pub(super) async fn defragment(
    pass: &Pass<'_>,
    etcd: &Etcd,
    sight: &Sight,
    how: &Defragment,
) -> Result<Outcome, TaskError> {
    if let Err((code, words)) = is_ready(etcd) {
        return Ok(failed(code, words));
    }
    let Asked { dialer, members } = match members(pass, etcd, sight).await {
        Ok(asked) => asked,
        Err(why) => return Ok(failed("ERR_ETCD_NOT_READY", why)),
    };
    let wanted = how.members.as_deref();
    let is_known = |name: &&String| members.list.iter().any(|member| member.name == **name);
    if let Some(name) = wanted.into_iter().flatten().find(|name| !is_known(name)) {
        let words = format!("{name:?} is no member of this cluster");
        return Ok(failed("ERR_INVALID_TASK", words));
    }
    let mut chosen: Vec<&SeenMember> = members
        .list
        .iter()
        .filter(|member| wanted.is_none_or(|names| names.contains(&member.name)))
        .collect();
    chosen.sort_by_key(|member| member.is_leader());
    let limit = etcd.spec.etcd.etcd_defrag_timeout.as_ref();
    let limit = limit
        .and_then(|span| span.to_duration().ok())
        .unwrap_or(DEFRAGMENT);
    for member in &chosen {
        pass.may()?;
        let Some(reach) = reach(etcd, sight, member) else {
            continue; // a member of somebody else
        };
        if let Err(error) = defragment_one(&dialer, &reach, limit).await {
            let words = format!("{}: {}", member.name, Chain(&error));
            return Ok(failed("ERR_DEFRAGMENT", words));
        }
    }
    let words = format!("{} members were defragmented", chosen.len());
    Ok(Outcome::Told(done(words)))
}

async fn defragment_one(dialer: &Dialer, reach: &Reach, limit: Duration) -> Result<(), DialError> {
    let mut client = dialer.connect_for(reach, limit).await?;
    ask("defragment", reach, limit, client.defragment())
        .await
        .map(drop)
}

/// Makes another member lead.
pub(super) async fn move_leader(
    pass: &Pass<'_>,
    etcd: &Etcd,
    sight: &Sight,
    how: &MoveLeader,
) -> Result<Outcome, TaskError> {
    if let Err((code, words)) = is_ready(etcd) {
        return Ok(failed(code, words));
    }
    let Asked { dialer, members } = match members(pass, etcd, sight).await {
        Ok(asked) => asked,
        Err(why) => return Ok(failed("ERR_ETCD_NOT_READY", why)),
    };
    let Some(leader) = members.list.iter().find(|member| member.is_leader()) else {
        return Ok(wait());
    };
    let is_heir =
        |member: &&SeenMember| member.id != leader.id && !member.is_learner && member.is_healthy();
    let heir = match &how.to {
        Some(name) if *name == leader.name => {
            return Ok(Outcome::Told(done(format!("{name} leads already"))));
        }
        Some(name) => members
            .list
            .iter()
            .filter(is_heir)
            .find(|member| member.name == *name),
        None => members.list.iter().find(is_heir),
    };
    let (Some(heir), Some(reach)) = (heir, reach(etcd, sight, leader)) else {
        return Ok(failed(
            "ERR_INVALID_TASK",
            "there is no healthy member of that name to lead",
        ));
    };
    pass.may()?;
    let moved = async {
        let mut client = dialer.connect(&reach).await?;
        ask(
            "move leadership",
            &reach,
            MOVE,
            client.move_leader(heir.id.0),
        )
        .await
    };
    match moved.await {
        Ok(_) => Ok(Outcome::Told(done(format!("{} leads", heir.name)))),
        Err(error) => Ok(failed("ERR_MOVE_LEADER", Chain(&error).to_string())),
    }
}

fn done(words: String) -> Telling {
    let result = OpsTaskResult {
        summary: words.clone(),
        ..OpsTaskResult::default()
    };
    Telling::well(TaskState::Succeeded, words).with(result)
}

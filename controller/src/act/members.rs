//! Changes of the membership, asked of whoever leads.

use std::time::Duration;

use etcd_client::{Client, MemberAddOptions};
use mainstay_ids::MemberId;

use super::{ActError, Work};
use crate::context::Context;
use crate::decide::Step;
use crate::observe::dial::ask;
use crate::observe::{DialError, Dialer, Membership, Reach, targets};

/// How long a change of the membership may take: a quorum agrees on it.
const PATIENCE: Duration = Duration::from_secs(15);
/// etcd's words for what is done already, or has to wait. None of them is wrong.
const HARMLESS: [&str; 5] = [
    "etcdserver: Peer URLs already exists",
    "etcdserver: member not found",
    "etcdserver: can only promote a learner member",
    "etcdserver: can only promote a learner member which is in sync with leader",
    "etcdserver: too many learner members in cluster",
];

pub(super) async fn change(ctx: &Context, work: Work<'_>, step: &Step) -> Result<(), ActError> {
    let name = step.word();
    let failed = |source| ActError::Etcd { step: name, source };
    let reach = leader(work).ok_or(ActError::NoLeader { step: name })?;
    let dialer = Dialer::new(&ctx.client, work.etcd);
    let mut client = dialer.connect(&reach).await.map_err(failed)?;
    ctx.leadership
        .check()
        .map_err(|source| ActError::Fenced { source })?;
    match call(&mut client, &reach, work, step).await {
        Ok(()) => Ok(()),
        Err(error) if is_harmless(&error) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

async fn call(
    client: &mut Client,
    reach: &Reach,
    work: Work<'_>,
    step: &Step,
) -> Result<(), DialError> {
    let name = step.word();
    let stage = work
        .objects
        .observation
        .set
        .as_ref()
        .map(|set| set.peer_stage)
        .unwrap_or_default();
    match step {
        Step::AddLearner { ordinal } => {
            let urls = work.wanted.peer_urls(*ordinal, stage);
            let options = MemberAddOptions::new().with_is_learner();
            let add = client.member_add(urls, Some(options));
            ask(name, reach, PATIENCE, add).await.map(drop)
        }
        Step::Promote { member, .. } => ask(name, reach, PATIENCE, client.member_promote(member.0))
            .await
            .map(drop),
        Step::RemoveMember { member, .. } => {
            ask(name, reach, PATIENCE, client.member_remove(member.0))
                .await
                .map(drop)
        }
        Step::MoveLeader { to, .. } => ask(name, reach, PATIENCE, client.move_leader(to.0))
            .await
            .map(drop),
        Step::UpdatePeerUrls { member, ordinal } => {
            let urls = work.wanted.peer_urls(*ordinal, stage);
            ask(name, reach, PATIENCE, client.member_update(member.0, urls))
                .await
                .map(drop)
        }
        _ => Ok(()),
    }
}

fn is_harmless(error: &DialError) -> bool {
    let DialError::Ask {
        source: etcd_client::Error::GRpcStatus(status),
        ..
    } = error
    else {
        return false;
    };
    HARMLESS.contains(&status.message())
}

/// Where the leader is that the last answers named.
fn leader(work: Work<'_>) -> Option<Reach> {
    let Membership::Known(members) = &work.objects.observation.membership else {
        return None;
    };
    let leader: MemberId = members.list.iter().find(|member| member.is_leader())?.id;
    let ordinal = members
        .list
        .iter()
        .find(|member| member.id == leader)?
        .ordinal;
    let all = targets(work.etcd, &work.objects.observation);
    // A leader that is none of our pods is behind one of the endpoints of the cluster that is joined; any of
    // them passes membership changes on, and only moving leadership is the leader's own.
    all.into_iter()
        .find(|target| target.ordinal == ordinal)
        .map(|target| target.reach)
}

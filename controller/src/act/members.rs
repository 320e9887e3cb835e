//! Membership changes, sent to the etcd leader.

use std::time::Duration;

use etcd_client::{Client, MemberAddOptions};
use mainstay_ids::MemberId;

use super::{ActError, Work};
use crate::context::Context;
use crate::model::{ObservedMembership, ReconcileStep};
use crate::observe::dial::call_with_timeout;
use crate::observe::{DialError, Dialer, EtcdEndpoint, list_targets};

/// Timeout of a membership change, which needs agreement of a quorum.
const MEMBERSHIP_TIMEOUT: Duration = Duration::from_secs(15);
/// Error messages of etcd for a change that is already done, or must wait. The next reconcile decides again.
const IGNORED_ERRORS: [&str; 5] = [
    "etcdserver: Peer URLs already exists",
    "etcdserver: member not found",
    "etcdserver: can only promote a learner member",
    "etcdserver: can only promote a learner member which is in sync with leader",
    "etcdserver: too many learner members in cluster",
];

pub(super) async fn change_membership(
    ctx: &Context,
    work: Work<'_>,
    step: &ReconcileStep,
) -> Result<(), ActError> {
    let name = step.label();
    let failed = |source| ActError::Etcd { step: name, source };
    let endpoint = find_leader(work).ok_or(ActError::NoLeader { step: name })?;
    let dialer = Dialer::new(&ctx.client, work.etcd);
    let mut client = dialer.connect(&endpoint).await.map_err(failed)?;
    // Checked after connecting, which takes long enough to lose leadership.
    ctx.writer.check_leadership()?;
    match call_etcd(&mut client, &endpoint, work, step).await {
        Ok(()) => Ok(()),
        Err(error) if is_ignorable(&error) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

async fn call_etcd(
    client: &mut Client,
    endpoint: &EtcdEndpoint,
    work: Work<'_>,
    step: &ReconcileStep,
) -> Result<(), DialError> {
    let name = step.label();
    let stage = work
        .objects
        .observation
        .stateful_set
        .as_ref()
        .map(|set| set.peer_tls_stage)
        .unwrap_or_default();
    match step {
        ReconcileStep::AddLearner { ordinal } => {
            let urls = work.desired.peer_urls(*ordinal, stage);
            let options = MemberAddOptions::new().with_is_learner();
            let add = client.member_add(urls, Some(options));
            call_with_timeout(name, endpoint, MEMBERSHIP_TIMEOUT, add)
                .await
                .map(drop)
        }
        ReconcileStep::Promote { member, .. } => call_with_timeout(
            name,
            endpoint,
            MEMBERSHIP_TIMEOUT,
            client.member_promote(member.0),
        )
        .await
        .map(drop),
        ReconcileStep::RemoveMember { member, .. } => call_with_timeout(
            name,
            endpoint,
            MEMBERSHIP_TIMEOUT,
            client.member_remove(member.0),
        )
        .await
        .map(drop),
        ReconcileStep::MoveLeader { to, .. } => {
            call_with_timeout(name, endpoint, MEMBERSHIP_TIMEOUT, client.move_leader(to.0))
                .await
                .map(drop)
        }
        ReconcileStep::UpdatePeerUrls { member, ordinal } => {
            let urls = work.desired.peer_urls(*ordinal, stage);
            call_with_timeout(
                name,
                endpoint,
                MEMBERSHIP_TIMEOUT,
                client.member_update(member.0, urls),
            )
            .await
            .map(drop)
        }
        _ => Ok(()),
    }
}

fn is_ignorable(error: &DialError) -> bool {
    let DialError::Request {
        source: etcd_client::Error::GRpcStatus(status),
        ..
    } = error
    else {
        return false;
    };
    IGNORED_ERRORS.contains(&status.message())
}

/// Endpoint of the leader according to the observed membership.
fn find_leader(work: Work<'_>) -> Option<EtcdEndpoint> {
    let ObservedMembership::Known(members) = &work.objects.observation.membership else {
        return None;
    };
    let leader: MemberId = members.list.iter().find(|member| member.is_leader())?.id;
    let ordinal = members
        .list
        .iter()
        .find(|member| member.id == leader)?
        .ordinal;
    let all = list_targets(work.etcd, &work.objects.observation);
    // A leader outside this Etcd has no ordinal: use an endpoint of the joined cluster. Any member forwards membership
    // changes to the leader; only MoveLeader must reach the leader itself.
    all.into_iter()
        .find(|target| target.ordinal == ordinal)
        .map(|target| target.endpoint)
}

//! Reads etcd's own hash of its keys at a revision. A restore drill compares the backup with it.

use std::time::Duration;

use mainstay_ids::{HashKv, Revision};
use mainstay_telemetry::ErrorChain;
use tracing::warn;

use super::Work;
use crate::context::Context;
use crate::model::Observation;
use crate::observe::dial::call_with_timeout;
use crate::observe::{DialError, Dialer, EtcdEndpoint, MemberTarget, list_targets};

/// Timeout of one HashKV request: the member reads its whole key space.
const HASH_TIMEOUT: Duration = Duration::from_secs(15);
/// Members to query before the drill runs without a hash.
const MAX_MEMBERS_QUERIED: usize = 2;

/// Requests the hash at `revision`. `None` when no queried member answers, or etcd has compacted the revision.
pub(super) async fn query_hash(
    ctx: &Context,
    work: Work<'_>,
    revision: Revision,
) -> Option<HashKv> {
    let dialer = Dialer::new(&ctx.client, work.etcd);
    let mut targets = list_targets(work.etcd, &work.objects.observation);
    // The leader last: HashKV delays writes on the member that computes it.
    targets.sort_by_key(|target| is_leader(&work.objects.observation, target));
    for target in targets.iter().take(MAX_MEMBERS_QUERIED) {
        match request_hash(&dialer, &target.endpoint, revision).await {
            Ok(hash) => return Some(hash),
            Err(error) => {
                warn!(error = %ErrorChain(&error), %revision, "failed to read hash from member");
            }
        }
    }
    None
}

fn is_leader(observed: &Observation, target: &MemberTarget) -> bool {
    let lease = target
        .ordinal
        .and_then(|ordinal| observed.leases.get(&ordinal));
    let holder = lease.and_then(|lease| lease.holder.as_ref());
    holder.is_some_and(|holder| holder.is_leader)
}

async fn request_hash(
    dialer: &Dialer,
    endpoint: &EtcdEndpoint,
    revision: Revision,
) -> Result<HashKv, DialError> {
    let mut client = dialer.connect_with_timeout(endpoint, HASH_TIMEOUT).await?;
    let response =
        call_with_timeout("HashKV", endpoint, HASH_TIMEOUT, client.hash_kv(revision.0)).await?;
    let compacted = response.compact_version();
    Ok(HashKv {
        hash: response.hash(),
        revision,
        compact_revision: (compacted > 0).then_some(Revision(compacted)),
    })
}

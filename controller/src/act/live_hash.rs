//! What etcd holds at a revision, as its own hash: what a rehearsal has to find in the backup.

use std::time::Duration;

use mainstay_ids::{HashKv, Revision};
use mainstay_telemetry::ErrorChain;
use tracing::warn;

use super::Work;
use crate::context::Context;
use crate::observe::dial::call_with_timeout;
use crate::observe::{DialError, Dialer, Observation, EtcdEndpoint, MemberTarget, list_targets};

/// How long a member may compute: it reads its whole key space once.
const HASH_TIMEOUT: Duration = Duration::from_secs(15);
/// How many members are asked before it is done without.
const MAX_MEMBERS_QUERIED: usize = 2;

/// Asks the members, the one that leads last: whoever computes keeps its writes waiting meanwhile. `None` when nobody answers, or
/// etcd does not have the revision any more.
pub(super) async fn query_hash(ctx: &Context, work: Work<'_>, revision: Revision) -> Option<HashKv> {
    let dialer = Dialer::new(&ctx.client, work.etcd);
    let mut targets = list_targets(work.etcd, &work.objects.observation);
    targets.sort_by_key(|target| is_leader(&work.objects.observation, target));
    for target in targets.iter().take(MAX_MEMBERS_QUERIED) {
        match request_hash(&dialer, &target.endpoint, revision).await {
            Ok(hash) => return Some(hash),
            Err(error) => {
                warn!(error = %ErrorChain(&error), %revision, "a member has no hash to compare the backup with");
            }
        }
    }
    None
}

fn is_leader(observed: &Observation, target: &MemberTarget) -> bool {
    let lease = target.ordinal.and_then(|ordinal| observed.leases.get(&ordinal));
    let held = lease.and_then(|lease| lease.holder.as_ref());
    held.is_some_and(|held| held.is_leader)
}

async fn request_hash(dialer: &Dialer, reach: &EtcdEndpoint, revision: Revision) -> Result<HashKv, DialError> {
    let mut client = dialer.connect_with_timeout(reach, HASH_TIMEOUT).await?;
    let answer = call_with_timeout("HashKV", reach, HASH_TIMEOUT, client.hash_kv(revision.0)).await?;
    let compacted = answer.compact_version();
    Ok(HashKv {
        hash: answer.hash(),
        revision,
        compact_revision: (compacted > 0).then_some(Revision(compacted)),
    })
}

//! What etcd holds at a revision, as its own hash: what a rehearsal has to find in the backup.

use std::time::Duration;

use mainstay_ids::{HashKv, Revision};
use mainstay_telemetry::Chain;
use tracing::warn;

use super::Work;
use crate::context::Context;
use crate::observe::dial::ask;
use crate::observe::{DialError, Dialer, Observation, Reach, Target, targets};

/// How long a member may compute: it reads its whole key space once.
const PATIENCE: Duration = Duration::from_secs(15);
/// How many members are asked before it is done without.
const ASKED: usize = 2;

/// Asks the members, the one that leads last: whoever computes keeps its writes waiting meanwhile. `None` when nobody answers, or
/// etcd does not have the revision any more.
pub(super) async fn at(ctx: &Context, work: Work<'_>, revision: Revision) -> Option<HashKv> {
    let dialer = Dialer::new(&ctx.client, work.etcd);
    let mut targets = targets(work.etcd, &work.objects.observation);
    targets.sort_by_key(|target| leads(&work.objects.observation, target));
    for target in targets.iter().take(ASKED) {
        match hash(&dialer, &target.reach, revision).await {
            Ok(hash) => return Some(hash),
            Err(error) => {
                warn!(error = %Chain(&error), %revision, "a member has no hash to compare the backup with");
            }
        }
    }
    None
}

fn leads(seen: &Observation, target: &Target) -> bool {
    let lease = target.ordinal.and_then(|ordinal| seen.leases.get(&ordinal));
    let held = lease.and_then(|lease| lease.held.as_ref());
    held.is_some_and(|held| held.is_leader)
}

async fn hash(dialer: &Dialer, reach: &Reach, revision: Revision) -> Result<HashKv, DialError> {
    let mut client = dialer.connect_for(reach, PATIENCE).await?;
    let answer = ask("HashKV", reach, PATIENCE, client.hash_kv(revision.0)).await?;
    let compacted = answer.compact_version();
    Ok(HashKv {
        hash: answer.hash(),
        revision,
        compact_revision: (compacted > 0).then_some(Revision(compacted)),
    })
}

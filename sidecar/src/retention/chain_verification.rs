//! Finds the newest intact chain; reads each object at most once per process.

use mainstay_archive::catalogue::{Catalogue, SnapshotObject};
use mainstay_archive::chain::{ChainRequest, ChainTarget, ChooseError, SnapshotChain, choose};
use mainstay_backup::ReadObjectError;
use mainstay_backup::prove::prove_in_store;
use mainstay_store::SnapStore;
use mainstay_telemetry::ErrorChain as Causes;
use tracing::error;

use super::cache::{ObjectHealth, RetentionCache};

/// Returns the key of the base of the newest chain whose objects are all intact; `None` if there is no such chain.
///
/// A damaged object is excluded and another chain chosen: with an overlapping delta, an older base, or an end before the
/// damage. The content of a base may be newer than its name and fill a gap right after it, but its hash does not prove
/// that; such a chain counts up to the gap.
pub(super) async fn find_newest_intact(
    store: &SnapStore,
    catalogue: &Catalogue,
    memory: &RetentionCache,
) -> Result<Option<String>, ReadObjectError> {
    let mut request = ChainRequest::new(ChainTarget::Latest);
    loop {
        let chain = match choose(catalogue, &request) {
            Ok(chain) => chain,
            Err(ChooseError::MissingRevisions {
                newest_restorable, ..
            }) if request.target == ChainTarget::Latest => {
                // Revisions before the newest object are missing: verify the newest chain without a gap instead.
                request.target = ChainTarget::Revision(newest_restorable);
                continue;
            }
            Err(_) => return Ok(None),
        };
        if let Some(damaged) = find_first_damaged(store, &chain, memory).await? {
            request.excluded.insert(damaged);
            // Without the damaged object another chain may reach further than the previous target.
            request.target = ChainTarget::Latest;
        } else if chain.gap_after_base.is_some() && request.target == ChainTarget::Latest {
            request.target = ChainTarget::Revision(chain.base.name.last);
        } else {
            return Ok(Some(chain.base.key));
        }
    }
}

/// Returns the key of the first damaged object of a chain.
async fn find_first_damaged(
    store: &SnapStore,
    chain: &SnapshotChain,
    memory: &RetentionCache,
) -> Result<Option<String>, ReadObjectError> {
    let deltas = chain.deltas.iter().map(|link| &link.object);
    for object in std::iter::once(&chain.base).chain(deltas) {
        let verdict = match memory.lookup_health(object) {
            Some(verdict) => verdict,
            None => verify_and_record(store, object, memory).await?,
        };
        if verdict == ObjectHealth::Damaged {
            return Ok(Some(object.key.clone()));
        }
    }
    Ok(None)
}

async fn verify_and_record(
    store: &SnapStore,
    object: &SnapshotObject,
    memory: &RetentionCache,
) -> Result<ObjectHealth, ReadObjectError> {
    let verdict = match prove_in_store(store, object).await? {
        Ok(()) => ObjectHealth::Intact,
        Err(damage) => {
            error!(object_key = %object.key, error = %Causes(&damage), "snapshot is damaged");
            ObjectHealth::Damaged
        }
    };
    memory.record_health(object, verdict);
    Ok(verdict)
}

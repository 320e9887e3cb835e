//! Upload parts: deletes leftovers and keeps the parts of running uploads.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{
    DeletionGuard, DeletionReason, GarbageKind, KeepReason, RetentionClock, RetentionPlan,
    UploadParts,
};
use crate::catalogue::{Catalogue, Chunk};

/// Time since the last part was written after which an upload counts as abandoned.
const ABANDONED_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// Plans every part. All parts of one object get the same decision, unless a guard protects some.
pub(super) fn plan_chunks(
    catalogue: &Catalogue,
    guard: &DeletionGuard,
    clock: RetentionClock,
    plan: &mut RetentionPlan,
) {
    let mut uploads: BTreeMap<&str, Vec<&Chunk>> = BTreeMap::new();
    for chunk in &catalogue.chunks {
        uploads.entry(parent_key(chunk)).or_default().push(chunk);
    }
    let objects = catalogue.fulls.iter().chain(&catalogue.deltas);
    let sizes: BTreeMap<&str, u64> = objects
        .filter(|_| !uploads.is_empty())
        .map(|object| (object.key.as_str(), object.size))
        .collect();
    for (key, chunks) in uploads {
        let fate = decide_chunks(
            &chunks,
            sizes.get(key).copied(),
            guard.parts,
            clock.store_now(),
        );
        for chunk in chunks {
            let object = &chunk.object;
            match (fate, guard.locked_until(object, clock.now())) {
                (Err(keep), _) => plan.keep(object, keep),
                _ if !guard.owned.includes(object) => {
                    plan.keep(object, KeepReason::UnverifiedHistory);
                }
                _ if guard.pinned.contains(&object.key) => plan.keep(object, KeepReason::Pinned),
                (Ok(_), Some(until)) => plan.keep(object, KeepReason::LockedUntil(until)),
                (Ok(reason), None) => plan.delete(object, GarbageKind::Chunk, reason),
            }
        }
    }
}

/// Decision for the parts of one object. `size` is the size of the whole object, `None` when it does not exist.
fn decide_chunks(
    chunks: &[&Chunk],
    size: Option<u64>,
    parts: UploadParts,
    now: Timestamp,
) -> Result<DeletionReason, KeepReason> {
    if parts == UploadParts::Data {
        return Err(KeepReason::PartIsData);
    }
    if let Some(size) = size {
        let bytes = chunks
            .iter()
            .fold(0_u64, |sum, chunk| sum.saturating_add(chunk.object.size));
        // An object smaller than its parts may be a manifest that points at them, as Swift exposes
        // large objects through its S3 API.
        return if size >= bytes {
            Ok(DeletionReason::UploadComplete)
        } else {
            Err(KeepReason::PartIsData)
        };
    }
    let latest = chunks.iter().map(|chunk| chunk.object.modified).max();
    let is_old = latest.is_some_and(|at| now.duration_since(at) > ABANDONED_AFTER);
    if is_old {
        Ok(DeletionReason::UploadAbandoned)
    } else {
        Err(KeepReason::UploadInProgress)
    }
}

/// The key of the object a part belongs to.
fn parent_key(chunk: &Chunk) -> &str {
    let key = chunk.object.key.as_str();
    key.rsplit_once('/').map_or(key, |(whole, _)| whole)
}

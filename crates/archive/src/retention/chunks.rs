//! Parts of uploads: leftovers go, uploads under way are left alone.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{Garbage, Guard, Keep, Parts, Plan, Reason};
use crate::catalogue::{Catalogue, Chunk};

/// An upload no part of which was written for this long is not under way.
const ABANDONED_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// Plans every part. All parts of an object share one fate, unless a guard protects some.
pub(super) fn sweep(catalogue: &Catalogue, guard: &Guard, now: Timestamp, plan: &mut Plan) {
    let mut uploads: BTreeMap<&str, Vec<&Chunk>> = BTreeMap::new();
    for chunk in &catalogue.chunks {
        uploads.entry(whole(chunk)).or_default().push(chunk);
    }
    let objects = catalogue.fulls.iter().chain(&catalogue.deltas);
    let sizes: BTreeMap<&str, u64> = objects
        .filter(|_| !uploads.is_empty())
        .map(|object| (object.key.as_str(), object.size))
        .collect();
    for (key, chunks) in uploads {
        let fate = fate(&chunks, sizes.get(key).copied(), guard.parts, now);
        for chunk in chunks {
            let object = &chunk.object;
            match (fate, guard.lock(object, now)) {
                (Err(keep), _) => plan.keep(object, keep),
                _ if guard.pinned.contains(&object.key) => plan.keep(object, Keep::Pinned),
                (Ok(_), Some(until)) => plan.keep(object, Keep::LockedUntil(until)),
                (Ok(reason), None) => plan.delete(object, Garbage::Chunk, reason),
            }
        }
    }
}

/// `size` is that of the whole object, if it is there.
fn fate(
    chunks: &[&Chunk],
    size: Option<u64>,
    parts: Parts,
    now: Timestamp,
) -> Result<Reason, Keep> {
    if parts == Parts::Data {
        return Err(Keep::IsData);
    }
    if let Some(size) = size {
        let bytes = chunks
            .iter()
            .fold(0_u64, |sum, chunk| sum.saturating_add(chunk.object.size));
        // An object smaller than its parts was not made of them: it may be a manifest that points at them, as
        // Swift shows when it is asked by the S3 API.
        return if size >= bytes {
            Ok(Reason::PartOfComplete)
        } else {
            Err(Keep::IsData)
        };
    }
    let latest = chunks.iter().map(|chunk| chunk.object.modified).max();
    let is_old = latest.is_some_and(|at| now.duration_since(at) > ABANDONED_AFTER);
    if is_old {
        Ok(Reason::Abandoned)
    } else {
        Err(Keep::UnderWay)
    }
}

/// The key of the object a part belongs to.
fn whole(chunk: &Chunk) -> &str {
    let key = chunk.object.key.as_str();
    key.rsplit_once('/').map_or(key, |(whole, _)| whole)
}

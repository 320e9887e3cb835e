//! Reads and verifies objects on several threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use mainstay_archive::catalogue::SnapshotObject;
use mainstay_backup::prove::prove_object;
use mainstay_backup::{ObjectProof, ObjectSource, ProofError, ReadOptions};
use mainstay_verdict::Verdict;

use crate::failure::Classify;

/// Limit of objects read in parallel: each one holds download buffers and a decompressed chunk in memory.
const MAX_WORKERS: usize = 4;

/// An object and the result of verifying it.
#[derive(Debug)]
pub(super) struct ObjectCheck {
    pub(super) object: SnapshotObject,
    pub(super) contents: Result<ObjectProof, ProofError>,
}

/// Verifies all objects and returns the findings in the order given. Damage does not stop the others. An unavailable
/// store does: objects not read by then are missing from the result.
pub(super) fn check_all_objects(
    objects: &[SnapshotObject],
    sources: &dyn ObjectSource,
    options: &ReadOptions,
) -> Vec<ObjectCheck> {
    let next = AtomicUsize::new(0);
    let is_unavailable = AtomicBool::new(false);
    let found: Mutex<Vec<(usize, Result<ObjectProof, ProofError>)>> = Mutex::new(Vec::new());
    let work = || {
        while !is_unavailable.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(object) = objects.get(at) else { break };
            let contents = prove_object(object, sources, options);
            if matches!(&contents, Err(error) if error.verdict() == Verdict::StoreUnavailable) {
                // The other objects would fail as well, each after its own retries.
                is_unavailable.store(true, Ordering::Relaxed);
            }
            found
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((at, contents));
        }
    };
    thread::scope(|scope| {
        for _ in 0..options
            .threads
            .get()
            .clamp(1, MAX_WORKERS)
            .min(objects.len())
        {
            scope.spawn(work);
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(at, _)| *at);
    let finding = |(at, contents): (usize, _)| {
        let object = objects.get(at)?.clone();
        Some(ObjectCheck { object, contents })
    };
    found.into_iter().filter_map(finding).collect()
}

//! Reads objects on several threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use mainstay_archive::catalogue::SnapshotObject;
use mainstay_archive::name::SnapshotKind;
use mainstay_mvcc::DatabaseStatus;

use crate::examine::{ObjectReadOptions, DeltaSpan, check_delta, check_full_with_facts};
use crate::failure::{Classify, ExitVerdict};
use crate::rebuild::{RebuildError, ObjectSource};

/// Objects read at the same time: each holds its share of a download and an inflated piece.
const MAX_WORKERS: usize = 4;

/// What an object proved to hold.
#[derive(Debug)]
pub(super) enum ObjectContents {
    /// A full snapshot.
    Full {
        /// Where its database stands.
        facts: Box<DatabaseStatus>,
        /// Bytes of the database.
        bytes: u64,
        /// A hash was there, and right.
        is_hashed: bool,
    },
    /// A delta.
    Delta(DeltaSpan),
}

/// An object that was read, to its end or to the damage.
#[derive(Debug)]
pub(super) struct ObjectCheck {
    pub(super) object: SnapshotObject,
    pub(super) contents: Result<ObjectContents, RebuildError>,
}

/// Reads all objects and returns them in the order given. Damage does not stop the others; a store
/// that cannot be read does, and what was not read then is missing from the answer.
pub(super) fn check_all_objects(objects: &[SnapshotObject], sources: &dyn ObjectSource, options: &ObjectReadOptions) -> Vec<ObjectCheck> {
    let next = AtomicUsize::new(0);
    let is_unavailable = AtomicBool::new(false);
    let found: Mutex<Vec<(usize, Result<ObjectContents, RebuildError>)>> = Mutex::new(Vec::new());
    let work = || {
        while !is_unavailable.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(object) = objects.get(at) else { break };
            let proof = check_object(object, sources, options);
            if matches!(&proof, Err(error) if error.verdict() == ExitVerdict::StoreUnavailable) {
                is_unavailable.store(true, Ordering::Relaxed);
            }
            found
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((at, proof));
        }
    };
    thread::scope(|scope| {
        for _ in 0..options.threads.get().clamp(1, MAX_WORKERS).min(objects.len()) {
            scope.spawn(work);
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(at, _)| *at);
    let finding = |(at, proof): (usize, _)| {
        let object = objects.get(at)?.clone();
        Some(ObjectCheck { object, contents: proof })
    };
    found.into_iter().filter_map(finding).collect()
}

fn check_object(object: &SnapshotObject, sources: &dyn ObjectSource, options: &ObjectReadOptions) -> Result<ObjectContents, RebuildError> {
    match object.name.kind {
        SnapshotKind::Full => {
            let (full, facts) = check_full_with_facts(object, sources, options)?;
            let facts = Box::new(facts);
            Ok(ObjectContents::Full {
                facts,
                bytes: full.bytes,
                is_hashed: full.is_hashed,
            })
        }
        SnapshotKind::Delta => {
            let stored = sources.open(object).map_err(|source| RebuildError::Open {
                object: object.name.to_string(),
                source,
            })?;
            check_delta(object, stored, options).map(ObjectContents::Delta)
        }
    }
}

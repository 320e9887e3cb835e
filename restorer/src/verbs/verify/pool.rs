//! Reads objects on several threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use mainstay_archive::catalogue::Object;
use mainstay_archive::name::Kind;
use mainstay_mvcc::Facts;

use crate::examine::{How, Span, delta, full_with_facts};
use crate::failure::{Classify, Verdict};
use crate::rebuild::{RebuildError, Sources};

/// Objects read at the same time: each holds its share of a download and an inflated piece.
const MAX_WORKERS: usize = 4;

/// What an object proved to hold.
#[derive(Debug)]
pub(super) enum Proof {
    /// A full snapshot.
    Full {
        /// Where its database stands.
        facts: Box<Facts>,
        /// Bytes of the database.
        bytes: u64,
        /// A hash was there, and right.
        is_hashed: bool,
    },
    /// A delta.
    Delta(Span),
}

/// An object that was read, to its end or to the damage.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) object: Object,
    pub(super) proof: Result<Proof, RebuildError>,
}

/// Reads all objects and returns them in the order given. Damage does not stop the others; a store
/// that cannot be read does, and what was not read then is missing from the answer.
pub(super) fn examine_all(objects: &[Object], sources: &dyn Sources, how: &How) -> Vec<Finding> {
    let next = AtomicUsize::new(0);
    let is_unavailable = AtomicBool::new(false);
    let found: Mutex<Vec<(usize, Result<Proof, RebuildError>)>> = Mutex::new(Vec::new());
    let work = || {
        while !is_unavailable.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(object) = objects.get(at) else { break };
            let proof = examine(object, sources, how);
            if matches!(&proof, Err(error) if error.verdict() == Verdict::StoreUnavailable) {
                is_unavailable.store(true, Ordering::Relaxed);
            }
            found
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((at, proof));
        }
    };
    thread::scope(|scope| {
        for _ in 0..how.threads.get().clamp(1, MAX_WORKERS).min(objects.len()) {
            scope.spawn(work);
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(at, _)| *at);
    let finding = |(at, proof): (usize, _)| {
        let object = objects.get(at)?.clone();
        Some(Finding { object, proof })
    };
    found.into_iter().filter_map(finding).collect()
}

fn examine(object: &Object, sources: &dyn Sources, how: &How) -> Result<Proof, RebuildError> {
    match object.name.kind {
        Kind::Full => {
            let (full, facts) = full_with_facts(object, sources, how)?;
            let facts = Box::new(facts);
            Ok(Proof::Full {
                facts,
                bytes: full.bytes,
                is_hashed: full.is_hashed,
            })
        }
        Kind::Delta => {
            let stored = sources.open(object).map_err(|source| RebuildError::Open {
                object: object.name.to_string(),
                source,
            })?;
            delta(object, stored, how).map(Proof::Delta)
        }
    }
}

//! Plans which objects retention deletes and which it keeps, with reasons: a pure function of names, time and guard.
//!
//! ```text
//! catalogue ─► floor: the newest restorable chain ───► below it: ┬ deltas by age
//!   guard ───► pins, locks, proof                                 ├ fulls by policy
//!                                                      chunks ────┴► Plan: deletions in order, and the kept
//! ```
//!
//! **Input**: a [`Catalogue`], [`RetentionRules`], the time, a [`DeletionGuard`]. **Output**: a [`RetentionPlan`].
//!
//! **Invariants**: the newest chain that is restorable by its names, the chain proven by reading it, and every newer
//! object are kept: a broken newest snapshot never thins out older ones. Pinned and locked objects are kept, and so is
//! everything that is not known to belong to the history that is backed up. An object expires only when it is expired
//! both by the time in its name and by the store's clock; a time in the future keeps it.
//! Deletions may stop at any point: a kept delta never loses its base or the deltas before it, so what remains of a
//! chain is restorable. Applying a plan and planning again at the same time deletes nothing more.
//!
//! The rules are those of etcd-backup-restore, in UTC. Where upstream would orphan deltas by deleting their base, the
//! base and the deltas between are kept until the last delta is past its retention. A delta is never used as a base.

mod chunks;
mod clock;
mod floor;
mod time_bucket;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

pub use clock::RetentionClock;
pub use time_bucket::TimeBucket;

use crate::catalogue::{Catalogue, SnapshotObject};
use crate::chain::{ChainInfo, list_chains};
use crate::name::SnapshotName;
use floor::RetentionFloor;

/// Which full snapshots to keep. The newest is always kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionPolicy {
    /// All of the current hour, then the last one of each earlier hour of today, of each of the seven days before,
    /// and of each of the four weeks before those.
    Exponential,
    /// The newest `most` full snapshots.
    LimitBased {
        /// Number to keep; 0 counts as 1.
        limit: usize,
    },
}

/// Retention settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionRules {
    /// Policy for full snapshots.
    pub policy: RetentionPolicy,
    /// Minimum age before a delta outside the newest chain is deleted.
    pub delta_retention: SignedDuration,
}

/// Evidence that the newest chain is restorable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ChainProof {
    /// None: no snapshot is deleted.
    #[default]
    Unproven,
    /// Object names are trusted.
    NamesOnly,
    /// The chain starting with this full snapshot was read completely and is intact.
    VerifiedBase {
        /// Key of the full snapshot.
        key: String,
    },
}

/// Which snapshots are known to belong to the history of the etcd that is backed up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OwnedHistory {
    /// None: nothing is deleted, upload parts included.
    #[default]
    Nothing,
    /// This full snapshot and everything after it. What is older may belong to another etcd.
    Since(SnapshotName),
    /// The whole backup.
    All,
}

impl OwnedHistory {
    fn includes(&self, object: &SnapshotObject) -> bool {
        match self {
            Self::Nothing => false,
            Self::Since(full) => object.name.sort_key() >= full.sort_key(),
            Self::All => true,
        }
    }
}

/// Meaning of upload parts in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UploadParts {
    /// Leftovers once the object is complete.
    #[default]
    Leftovers,
    /// The data itself (Swift): never deleted.
    Data,
}

/// Objects that must not be deleted whatever the rules are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletionGuard {
    /// Objects in use (a restore, a copy), by key or by name.
    pub pinned: BTreeSet<String>,
    /// Objects under a retention lock of the store: key and end of the lock.
    pub locked: BTreeMap<String, Timestamp>,
    /// Keys of full snapshots that were read and found damaged. They never replace another one.
    pub damaged: BTreeSet<String>,
    /// Evidence that the newest chain is restorable.
    pub proof: ChainProof,
    /// Meaning of upload parts in the store.
    pub parts: UploadParts,
    /// Which snapshots may be deleted at all.
    pub owned: OwnedHistory,
}

impl DeletionGuard {
    fn is_pinned(&self, object: &SnapshotObject) -> bool {
        !self.pinned.is_empty()
            && (self.pinned.contains(&object.key) || self.pinned.contains(&object.name.to_string()))
    }

    fn locked_until(&self, object: &SnapshotObject, now: Timestamp) -> Option<Timestamp> {
        self.locked
            .get(&object.key)
            .copied()
            .filter(|until| *until > now)
    }
}

/// Kinds of objects that retention deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GarbageKind {
    /// A full snapshot.
    Full,
    /// A delta.
    Delta,
    /// An upload part.
    Chunk,
}

impl GarbageKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Full, Self::Delta, Self::Chunk];

    /// Metric label value, as in etcd-backup-restore.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "Full",
            Self::Delta => "Incr",
            Self::Chunk => "Chunk",
        }
    }
}

/// Why an object is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeletionReason {
    /// A newer full snapshot is kept for the same hour, day or week.
    Thinned(TimeBucket),
    /// Older than every period of the policy.
    Expired,
    /// More than the limit of newer full snapshots exist.
    OverLimit,
    /// Read and found damaged; intact ones replace it.
    Damaged,
    /// A delta outside the newest chain, past its retention.
    PastRetention,
    /// Like `PastRetention`, for a delta without a full snapshot before it.
    NoBase,
    /// An upload part of a complete object.
    UploadComplete,
    /// An upload part of an object that was never completed.
    UploadAbandoned,
}

/// Why an object is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepReason {
    /// In the newest restorable chain, or newer.
    NewestChain,
    /// No chain is known to be restorable, so nothing is deleted.
    NoProvenChain,
    /// Not known to belong to the history that is backed up.
    UnverifiedHistory,
    /// Expired by the time in its name, not by the store's clock.
    NotExpiredInStore,
    /// Its name has a time in the future.
    FutureTime,
    /// In use.
    Pinned,
    /// Locked by the store until this time.
    LockedUntil(Timestamp),
    /// The newest of this hour, day or week.
    LatestInBucket(TimeBucket),
    /// Among the newest ones within the limit.
    WithinLimit,
    /// A delta younger than its retention.
    WithinRetention,
    /// A delta that a kept delta builds on.
    PrecedesKeptDelta,
    /// A full snapshot that a kept delta builds on.
    BaseOfKeptDelta,
    /// An upload part of an object whose upload may still be running.
    UploadInProgress,
    /// An upload part that holds the data itself.
    PartIsData,
}

/// An object to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// The object to delete.
    pub object: SnapshotObject,
    /// Kind of the object.
    pub kind: GarbageKind,
    /// Why it is deleted.
    pub reason: DeletionReason,
    /// For a delta, the key of its base: when deleting the delta fails, the base must be kept.
    pub base: Option<String>,
}

/// An object to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptObject {
    /// Full object key.
    pub key: String,
    /// Why it is kept.
    pub reason: KeepReason,
}

/// Deletions in the order to carry them out, and kept objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionPlan {
    /// Upload parts first, then the deltas of old chains, newest first, then full snapshots, oldest first.
    pub deletions: Vec<Deletion>,
    /// All other objects, oldest first.
    pub kept: Vec<KeptObject>,
}

impl RetentionPlan {
    /// Returns true when the plan deletes a snapshot, not only upload parts.
    pub fn deletes_snapshots(&self) -> bool {
        self.deletions.iter().any(|d| d.kind != GarbageKind::Chunk)
    }

    fn keep(&mut self, object: &SnapshotObject, reason: KeepReason) {
        let key = object.key.clone();
        self.kept.push(KeptObject { key, reason });
    }

    fn delete(&mut self, object: &SnapshotObject, kind: GarbageKind, reason: DeletionReason) {
        self.deletions.push(Deletion {
            object: object.clone(),
            kind,
            reason,
            base: None,
        });
    }
}

/// Computes what to delete and what to keep.
pub fn plan_retention(
    catalogue: &Catalogue,
    rules: &RetentionRules,
    clock: RetentionClock,
    guard: &DeletionGuard,
) -> RetentionPlan {
    let mut plan = RetentionPlan::default();
    chunks::plan_chunks(catalogue, guard, clock, &mut plan);
    let streams = list_chains(catalogue);
    let Some(floor) = RetentionFloor::find(catalogue, guard) else {
        // Without evidence of a restorable chain every snapshot may be the only good one.
        for object in catalogue.fulls.iter().chain(&catalogue.deltas) {
            plan.keep(object, KeepReason::NoProvenChain);
        }
        return plan;
    };
    let planner = ChainPlanner {
        rules,
        clock,
        guard,
        decisions: time_bucket::apply_policy(&catalogue.fulls, rules.policy, clock, guard),
    };
    let mut deletable = Vec::new();
    for stream in &streams {
        if stream.base.as_ref().is_some_and(|base| floor.covers(base)) {
            let members = stream.base.iter().chain(&stream.deltas);
            members.for_each(|object| plan.keep(object, KeepReason::NewestChain));
        } else {
            deletable.extend(planner.plan_old_chain(stream, &mut plan));
        }
    }
    // Bases after all deltas: an interrupted deletion must not leave deltas without their base.
    plan.deletions.extend(deletable);
    plan
}

/// Inputs for planning a chain below the floor.
struct ChainPlanner<'a> {
    rules: &'a RetentionRules,
    clock: RetentionClock,
    guard: &'a DeletionGuard,
    decisions: BTreeMap<&'a str, Result<KeepReason, DeletionReason>>,
}

impl ChainPlanner<'_> {
    /// Plans the deltas of a chain and returns the deletion of its base, if any, for later.
    fn plan_old_chain(&self, stream: &ChainInfo, plan: &mut RetentionPlan) -> Option<Deletion> {
        let last_kept = stream
            .deltas
            .iter()
            .rposition(|delta| self.delta_keep_reason(delta).is_some());
        let has_kept_delta = last_kept.is_some();
        let deletable = stream
            .base
            .as_ref()
            .and_then(|base| self.plan_base(base, has_kept_delta, plan));
        let needed = last_kept.map_or(0, |position| position.saturating_add(1));
        let (needed, rest) = stream
            .deltas
            .split_at_checked(needed)
            .unwrap_or((&stream.deltas, &[]));
        for delta in needed {
            plan.keep(
                delta,
                self.delta_keep_reason(delta)
                    .unwrap_or(KeepReason::PrecedesKeptDelta),
            );
        }
        // Newest first: an interrupted deletion leaves a shorter chain without a gap.
        for delta in rest.iter().rev() {
            let reason = if stream.base.is_some() {
                DeletionReason::PastRetention
            } else {
                DeletionReason::NoBase
            };
            plan.deletions.push(Deletion {
                object: delta.clone(),
                kind: GarbageKind::Delta,
                reason,
                base: stream.base.as_ref().map(|base| base.key.clone()),
            });
        }
        deletable
    }

    /// Why a delta of an old chain is kept for its own sake; `None` when it is past its retention.
    fn delta_keep_reason(&self, delta: &SnapshotObject) -> Option<KeepReason> {
        if !self.guard.owned.includes(delta) {
            Some(KeepReason::UnverifiedHistory)
        } else if self.guard.is_pinned(delta) {
            Some(KeepReason::Pinned)
        } else if let Some(until) = self.guard.locked_until(delta, self.clock.now()) {
            Some(KeepReason::LockedUntil(until))
        } else if self.clock.is_in_future(delta) {
            Some(KeepReason::FutureTime)
        } else if self
            .clock
            .is_younger_than(self.rules.delta_retention, delta)
        {
            Some(KeepReason::WithinRetention)
        } else {
            None
        }
    }

    /// Keeps the base of an old chain, or returns its deletion.
    fn plan_base(
        &self,
        base: &SnapshotObject,
        has_kept_delta: bool,
        plan: &mut RetentionPlan,
    ) -> Option<Deletion> {
        let slot = self
            .decisions
            .get(base.key.as_str())
            .copied()
            .unwrap_or(Ok(KeepReason::NoProvenChain));
        let lock = self.guard.locked_until(base, self.clock.now());
        let reason = match (slot, lock) {
            _ if !self.guard.owned.includes(base) => KeepReason::UnverifiedHistory,
            _ if self.guard.is_pinned(base) => KeepReason::Pinned,
            (Ok(keep), _) => keep,
            _ if has_kept_delta => KeepReason::BaseOfKeptDelta,
            (Err(_), Some(until)) => KeepReason::LockedUntil(until),
            (Err(reason), None) => {
                return Some(Deletion {
                    object: base.clone(),
                    kind: GarbageKind::Full,
                    reason,
                    base: None,
                });
            }
        };
        plan.keep(base, reason);
        None
    }
}

#[cfg(test)]
mod tests;

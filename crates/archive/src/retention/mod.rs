//! What may be deleted, what stays, and why: a pure function of names, a clock and a guard.
//!
//! ```text
//! catalogue ─► floor: the newest chain that restores ─► below it: ┬ deltas by age
//!   guard ───► pins, locks, proof                                 ├ fulls by policy
//!                                                      chunks ────┴► Plan: deletions in order, and the kept
//! ```
//!
//! **Comes in**: a [`Catalogue`], [`Rules`], the time, a [`Guard`]. **Goes out**: a [`Plan`].
//!
//! **Holds**: the newest chain that restores by its names, and the one proven by reading it, lose nothing, and
//! neither does anything newer: a broken newest snapshot never makes those before it thinner. Pinned and locked
//! objects stay. Deletions may stop anywhere: a delta that stays never loses its base or the deltas before it, so
//! whatever is left of a chain restores. Applying a plan and planning again at the same time deletes nothing more.
//!
//! The rules are those of the peer, counted in UTC. Where it would leave deltas that no base leads to, the base and
//! the deltas between stay until the last of them is past its retention. A leading delta is a delta, not a base.

mod bucket;
mod chunks;
mod floor;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

pub use bucket::TimeBucket;

use crate::catalogue::{Catalogue, SnapshotObject};
use crate::chain::{ChainInfo, list_chains};
use floor::RetentionFloor;

/// Which full snapshots are worth keeping. The newest always is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionPolicy {
    /// All of this hour, the last of each hour of today, of each of the seven days before, of each of the
    /// four weeks before those.
    Exponential,
    /// The newest ones.
    LimitBased {
        /// How many.
        limit: usize,
    },
}

/// What to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionRules {
    /// Which full snapshots.
    pub policy: RetentionPolicy,
    /// How long deltas stay that the newest chain does not need.
    pub delta_retention: SignedDuration,
}

/// What is known of the newest chain beyond its names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ChainProof {
    /// Nothing: no snapshot is deleted.
    #[default]
    Unproven,
    /// Names are believed.
    NamesOnly,
    /// The chain that begins with this full snapshot was read and is whole.
    VerifiedBase {
        /// Key of the full snapshot.
        key: String,
    },
}

/// What parts of uploads are to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UploadParts {
    /// Left over once the object is complete.
    #[default]
    Leftovers,
    /// The data itself (Swift): never touched.
    Data,
}

/// What must not be deleted whatever the rules say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletionGuard {
    /// Objects somebody is using, by key or by name.
    pub pinned: BTreeSet<String>,
    /// Objects the store does not let go before a time, by key.
    pub locked: BTreeMap<String, Timestamp>,
    /// Full snapshots that were read and found damaged, by key. They stand in for no other.
    pub damaged: BTreeSet<String>,
    /// What is known of the newest chain.
    pub proof: ChainProof,
    /// What parts of uploads are.
    pub parts: UploadParts,
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

/// The kinds of objects that are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GarbageKind {
    /// A full snapshot.
    Full,
    /// A delta.
    Delta,
    /// A part of an upload.
    Chunk,
}

impl GarbageKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Full, Self::Delta, Self::Chunk];

    /// The word metrics use, the peer's.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "Full",
            Self::Delta => "Incr",
            Self::Chunk => "Chunk",
        }
    }
}

/// Why an object goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeletionReason {
    /// A newer full snapshot stands for the same hour, day or week.
    Thinned(TimeBucket),
    /// Older than everything the policy keeps.
    Expired,
    /// There are enough newer ones.
    OverLimit,
    /// Read, and found damaged; sound ones take its place.
    Damaged,
    /// A delta the newest chain does not need, older than its retention.
    PastRetention,
    /// The same, and no full snapshot comes before it.
    NoBase,
    /// A part of an object that is complete.
    UploadComplete,
    /// A part of an object that never came to be.
    UploadAbandoned,
}

/// Why an object stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepReason {
    /// It belongs to the newest chain that restores, or is newer.
    NewestChain,
    /// No chain is known to restore, so nothing goes.
    NoProvenChain,
    /// Somebody is using it.
    Pinned,
    /// The store does not let it go before this time.
    LockedUntil(Timestamp),
    /// It stands for this hour, day or week.
    LatestInBucket(TimeBucket),
    /// It is among the newest.
    WithinLimit,
    /// A delta younger than its retention.
    WithinRetention,
    /// A delta that leads to one that stays.
    PrecedesKeptDelta,
    /// A full snapshot with deltas that stay.
    BaseOfKeptDelta,
    /// A part of an object that may still be on its way.
    UploadInProgress,
    /// A part that is the data.
    PartIsData,
}

/// An object that goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// The object.
    pub object: SnapshotObject,
    /// What it is.
    pub kind: GarbageKind,
    /// Why it goes.
    pub reason: DeletionReason,
    /// For a delta, the key of its base: when the delta cannot be deleted, the base has to stay.
    pub base: Option<String>,
}

/// An object that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptObject {
    /// Its key.
    pub key: String,
    /// Why it stays.
    pub reason: KeepReason,
}

/// What goes, in the order to delete it, and what stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionPlan {
    /// Parts first, then the deltas of old chains, newest first, then full snapshots, oldest first.
    pub deletions: Vec<Deletion>,
    /// The rest, oldest first.
    pub kept: Vec<KeptObject>,
}

impl RetentionPlan {
    /// Whether a snapshot goes, not only parts of uploads.
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

/// Says what may go.
pub fn plan_retention(catalogue: &Catalogue, rules: &RetentionRules, now: Timestamp, guard: &DeletionGuard) -> RetentionPlan {
    let mut plan = RetentionPlan::default();
    chunks::plan_chunks(catalogue, guard, now, &mut plan);
    let streams = list_chains(catalogue);
    let Some(floor) = RetentionFloor::find(catalogue, guard) else {
        for object in catalogue.fulls.iter().chain(&catalogue.deltas) {
            plan.keep(object, KeepReason::NoProvenChain);
        }
        return plan;
    };
    let desk = ChainPlanner {
        rules,
        now,
        guard,
        decisions: bucket::apply_policy(&catalogue.fulls, rules.policy, now, guard),
    };
    let mut doomed = Vec::new();
    for stream in &streams {
        if stream.base.as_ref().is_some_and(|base| floor.covers(base)) {
            let members = stream.base.iter().chain(&stream.deltas);
            members.for_each(|object| plan.keep(object, KeepReason::NewestChain));
        } else {
            doomed.extend(desk.plan_old_chain(stream, &mut plan));
        }
    }
    plan.deletions.extend(doomed);
    plan
}

/// What every old stream is judged by.
struct ChainPlanner<'a> {
    rules: &'a RetentionRules,
    now: Timestamp,
    guard: &'a DeletionGuard,
    decisions: BTreeMap<&'a str, Result<KeepReason, DeletionReason>>,
}

impl ChainPlanner<'_> {
    /// Plans the deltas of a stream at once and returns its base if that goes, to be deleted later.
    fn plan_old_chain(&self, stream: &ChainInfo, plan: &mut RetentionPlan) -> Option<Deletion> {
        let wanted = stream
            .deltas
            .iter()
            .rposition(|delta| self.delta_keep_reason(delta).is_some());
        let is_wanted = wanted.is_some();
        let doomed = stream
            .base
            .as_ref()
            .and_then(|base| self.plan_base(base, is_wanted, plan));
        let needed = wanted.map_or(0, |position| position.saturating_add(1));
        let (needed, rest) = stream
            .deltas
            .split_at_checked(needed)
            .unwrap_or((&stream.deltas, &[]));
        for delta in needed {
            plan.keep(delta, self.delta_keep_reason(delta).unwrap_or(KeepReason::PrecedesKeptDelta));
        }
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
        doomed
    }

    /// Why a delta of an old stream stays for itself.
    fn delta_keep_reason(&self, delta: &SnapshotObject) -> Option<KeepReason> {
        let cutoff = self
            .now
            .checked_sub(self.rules.delta_retention)
            .unwrap_or(Timestamp::MIN);
        if self.guard.is_pinned(delta) {
            Some(KeepReason::Pinned)
        } else if let Some(until) = self.guard.locked_until(delta, self.now) {
            Some(KeepReason::LockedUntil(until))
        } else if delta.name.created_at() >= cutoff {
            Some(KeepReason::WithinRetention)
        } else {
            None
        }
    }

    /// Keeps the base of an old stream, or says why it goes.
    fn plan_base(&self, base: &SnapshotObject, has_wanted: bool, plan: &mut RetentionPlan) -> Option<Deletion> {
        let slot = self
            .decisions
            .get(base.key.as_str())
            .copied()
            .unwrap_or(Ok(KeepReason::NoProvenChain));
        let lock = self.guard.locked_until(base, self.now);
        let reason = match (slot, lock) {
            _ if self.guard.is_pinned(base) => KeepReason::Pinned,
            (Ok(keep), _) => keep,
            _ if has_wanted => KeepReason::BaseOfKeptDelta,
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

//! The time by which retention judges: never the node's clock alone.

use jiff::{SignedDuration, Timestamp};

use super::TimeBucket;
use crate::catalogue::{Catalogue, SnapshotObject};

/// Clocks of node and store differ by seconds even when both are right.
const TOLERATED_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Two readings of the present. An object expires only when it is expired by both.
///
/// * The time in an object's name comes from the clock of the node that wrote it.
/// * `modified` comes from the clock of the store. After a copy it is the time of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionClock {
    /// The present for names: the earlier one of the node's clock and the store's.
    now: Timestamp,
    /// The present for modification times.
    store: Timestamp,
}

impl RetentionClock {
    /// Reads the store's clock from a listing: its newest modification time is a lower bound that grows with every
    /// snapshot. A node whose clock is ahead therefore expires nothing early.
    pub fn from_listing(node: Timestamp, catalogue: &Catalogue) -> Self {
        let snapshots = catalogue.fulls.iter().chain(&catalogue.deltas);
        let parts = catalogue.chunks.iter().map(|chunk| &chunk.object);
        let newest = snapshots.chain(parts).map(|object| object.modified).max();
        Self::new(node, newest.unwrap_or(node))
    }

    /// Combines both clocks.
    pub fn new(node: Timestamp, store: Timestamp) -> Self {
        let now = node.min(store);
        Self { now, store }
    }

    /// The present for names, pins and locks.
    pub fn now(self) -> Timestamp {
        self.now
    }

    /// The present for modification times.
    pub fn store_now(self) -> Timestamp {
        self.store
    }

    /// Period of a full snapshot by the time in its name.
    pub(super) fn bucket_by_name(self, full: &SnapshotObject) -> TimeBucket {
        TimeBucket::of(full.name.created, self.now)
    }

    /// Whether the store's clock agrees that the object has reached a period of this kind.
    pub(super) fn confirms(self, bucket: TimeBucket, object: &SnapshotObject) -> bool {
        TimeBucket::of(object.modified.as_second(), self.store).rank() >= bucket.rank()
    }

    /// Whether the object is younger than `age` by either clock.
    pub(super) fn is_younger_than(self, age: SignedDuration, object: &SnapshotObject) -> bool {
        let cutoff = |now: Timestamp| now.checked_sub(age).unwrap_or(Timestamp::MIN);
        // Stores report whole seconds: with an age of zero the newest modification time is not younger than itself.
        object.name.created_at() >= cutoff(self.now) || object.modified > cutoff(self.store)
    }

    /// Whether the name claims a time after the present: written by a node whose clock was ahead.
    pub(super) fn is_in_future(self, object: &SnapshotObject) -> bool {
        let latest = self.store.checked_add(TOLERATED_SKEW);
        object.name.created_at() > latest.unwrap_or(Timestamp::MAX)
    }
}

//! Tracks the leases of live keys through the deltas, so that keys still expire after a restore.
//!
//! Deltas contain the lease id of each put, and its TTL only if mainstay-sidecar wrote them. A lease that the base does
//! not have is created again: with its own TTL if an object contains it, otherwise with the default.

use std::collections::{BTreeMap, HashMap};

use mainstay_archive::delta::{Event, EventKind};
use mainstay_ids::LeaseId;
use mainstay_mvcc::{KeyDigest, KeyDigester};

/// A lease to create again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewLease {
    pub(crate) id: LeaseId,
    pub ttl_seconds: i64,
    /// Whether an object contains the TTL; otherwise it is the default.
    pub is_ttl_known: bool,
}

/// Tracks which keys are attached to leases. Memory: one entry per key that is attached at the moment.
#[derive(Debug, Default)]
pub(crate) struct LeaseTracker {
    digester: KeyDigester,
    attached: HashMap<KeyDigest, LeaseId>,
    ttls: HashMap<LeaseId, i64>,
}

impl LeaseTracker {
    /// Applies the next event.
    pub(crate) fn track_event(&mut self, event: &Event<'_>) {
        let is_attached = event.kind == EventKind::Put && event.lease != LeaseId::NONE;
        if is_attached {
            self.attached
                .insert(self.digester.digest(event.key), event.lease);
            if let Some(seconds) = event.lease_ttl.filter(|seconds| *seconds > 0) {
                self.ttls.insert(event.lease, seconds);
            }
        } else if !self.attached.is_empty() {
            // A put without a lease detaches the key, and so does a delete.
            self.attached.remove(&self.digester.digest(event.key));
        }
    }

    /// Returns the leases of live keys, with their TTL or the default.
    pub(crate) fn into_leases(self, default_seconds: i64) -> BTreeMap<LeaseId, NewLease> {
        let lives = self.ttls;
        self.attached
            .into_values()
            .map(|id| (id, new_lease(id, lives.get(&id).copied(), default_seconds)))
            .collect()
    }
}

/// Creates a lease with its known TTL, or the default.
pub(crate) fn new_lease(id: LeaseId, known: Option<i64>, default_seconds: i64) -> NewLease {
    NewLease {
        id,
        ttl_seconds: known.unwrap_or(default_seconds),
        is_ttl_known: known.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use mainstay_ids::Revision;

    use super::*;

    fn event(kind: EventKind, key: &str, lease: u64, lease_ttl: Option<i64>) -> Event<'_> {
        Event {
            kind,
            key: key.as_bytes(),
            value: b"",
            create_revision: Revision(2),
            mod_revision: Revision(2),
            version: 1,
            lease: LeaseId(lease),
            lease_ttl,
            time: "",
        }
    }

    #[test]
    fn only_leases_of_live_keys_are_recreated() {
        let mut tracker = LeaseTracker::default();
        for step in [
            event(EventKind::Put, "kept", 1, None),
            event(EventKind::Put, "deleted", 2, None),
            event(EventKind::Delete, "deleted", 0, None),
            event(EventKind::Put, "detached", 3, None),
            event(EventKind::Put, "detached", 0, None),
            event(EventKind::Put, "moved", 4, None),
            event(EventKind::Put, "moved", 5, Some(60)),
        ] {
            tracker.track_event(&step);
        }
        let leases: Vec<_> = tracker.into_leases(3600).into_values().collect();
        let kept = NewLease {
            id: LeaseId(1),
            ttl_seconds: 3600,
            is_ttl_known: false,
        };
        let moved = NewLease {
            id: LeaseId(5),
            ttl_seconds: 60,
            is_ttl_known: true,
        };
        assert_eq!(leases, [kept, moved]);
    }
}

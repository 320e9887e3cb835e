//! Which leases live keys hang on after the deltas, so that keys expire after a restore too.
//!
//! Deltas tell a lease's id with each put, and its life only when our sidecar wrote them. A lease the
//! base does not know is made again: with its own life when an object tells it, else with the
//! default.

use std::collections::{BTreeMap, HashMap};

use mainstay_archive::delta::{Event, EventKind};
use mainstay_ids::LeaseId;
use mainstay_mvcc::{KeyDigest, KeyDigester};

/// A lease to be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewLease {
    /// Its id.
    pub id: LeaseId,
    /// Its life.
    pub ttl_seconds: i64,
    /// An object told its life; else it is the default.
    pub is_ttl_known: bool,
}

/// Follows the attachments made by events. Memory: for keys that hang on a lease just now.
#[derive(Debug, Default)]
pub(crate) struct LeaseTracker {
    digester: KeyDigester,
    attached: HashMap<KeyDigest, LeaseId>,
    ttls: HashMap<LeaseId, i64>,
}

impl LeaseTracker {
    /// Takes the next event into account.
    pub(crate) fn track_event(&mut self, event: &Event<'_>) {
        let is_attached = event.kind == EventKind::Put && event.lease != LeaseId::NONE;
        if is_attached {
            self.attached
                .insert(self.digester.digest(event.key), event.lease);
            if let Some(seconds) = event.lease_ttl.filter(|seconds| *seconds > 0) {
                self.ttls.insert(event.lease, seconds);
            }
        } else if !self.attached.is_empty() {
            self.attached.remove(&self.digester.digest(event.key));
        }
    }

    /// The leases that live keys hang on, with what is known of their lives.
    pub(crate) fn into_leases(self, default_seconds: i64) -> BTreeMap<LeaseId, NewLease> {
        let lives = self.ttls;
        self.attached
            .into_values()
            .map(|id| (id, new_lease(id, lives.get(&id).copied(), default_seconds)))
            .collect()
    }
}

/// A lease with its known life, or the default.
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
    fn only_leases_of_live_keys_are_made_again() {
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

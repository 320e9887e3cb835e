//! Announces changes to watches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use mainstay_ids::Revision;
use tokio::sync::Notify;

use crate::request::KeyRange;

/// Number of a watch within its hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlotId(u64);

/// Where a watch is in the history.
///
/// It has events to deliver while `dirty_to` is not below `cursor`. Otherwise it is synced: no revision up to the
/// visible one concerns it.
#[derive(Debug)]
struct Slot {
    range: KeyRange,
    /// First revision that is not delivered.
    cursor: Revision,
    /// Newest revision that has, or may have, an event for it.
    dirty_to: Revision,
    wake: Arc<Notify>,
}

/// What a watch has to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) from: Revision,
    pub(crate) upto: Revision,
}

#[derive(Debug)]
struct Slots {
    visible: Revision,
    next: u64,
    by_id: HashMap<SlotId, Slot>,
}

/// Announces visible revisions to the watches of one engine.
///
/// It holds no events: a watch that is woken reads them from the history. So the memory of a watch is constant, and a
/// slow one delays no other.
#[derive(Debug)]
pub struct Hub {
    slots: Mutex<Slots>,
}

impl Hub {
    /// Creates a hub for a store at this revision.
    pub fn new(visible: Revision) -> Self {
        Self {
            slots: Mutex::new(Slots {
                visible,
                next: 0,
                by_id: HashMap::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces that the history reaches `visible`, with the keys that changed, in the order of revisions. Readers
    /// must observe the revision before this is called.
    pub fn publish(&self, visible: Revision, changes: &[(Bytes, Revision)]) {
        let mut slots = self.lock();
        slots.visible = slots.visible.max(visible);
        for slot in slots.by_id.values_mut() {
            for (key, revision) in changes {
                if *revision < slot.cursor || !slot.range.contains(key) {
                    continue;
                }
                if slot.dirty_to < slot.cursor {
                    slot.cursor = *revision; // nothing before concerns it: the history need not be scanned
                    slot.wake.notify_one();
                }
                slot.dirty_to = slot.dirty_to.max(*revision);
            }
        }
    }

    /// Registers a watch from `start`; from the next revision when `None`. Returns the visible revision.
    pub(crate) fn register(
        &self,
        range: KeyRange,
        start: Option<Revision>,
        wake: Arc<Notify>,
    ) -> (SlotId, Revision) {
        let mut slots = self.lock();
        let visible = slots.visible;
        let cursor = start.unwrap_or(visible.next());
        let id = SlotId(slots.next);
        slots.next += 1;
        wake.notify_one();
        let slot = Slot {
            range,
            cursor,
            dirty_to: visible, // a start in the past may have events up to here
            wake,
        };
        slots.by_id.insert(id, slot);
        (id, visible)
    }

    pub(crate) fn unregister(&self, id: SlotId) {
        self.lock().by_id.remove(&id);
    }

    /// Returns what a watch has to read; `None` when it is synced.
    pub(crate) fn due(&self, id: SlotId) -> Option<Due> {
        let slots = self.lock();
        let slot = slots.by_id.get(&id)?;
        (slot.dirty_to >= slot.cursor).then_some(Due {
            from: slot.cursor,
            upto: slot.dirty_to.min(slots.visible),
        })
    }

    /// Records that a watch has delivered everything up to `reached`.
    pub(crate) fn delivered(&self, id: SlotId, reached: Revision) {
        if let Some(slot) = self.lock().by_id.get_mut(&id) {
            slot.cursor = slot.cursor.max(reached.next());
        }
    }

    /// Returns the visible revision if all of these watches are synced to it.
    pub(crate) fn synced(&self, ids: impl IntoIterator<Item = SlotId>) -> Option<Revision> {
        let slots = self.lock();
        let is_synced = |id: SlotId| {
            slots
                .by_id
                .get(&id)
                .is_none_or(|slot| slot.dirty_to < slot.cursor)
        };
        ids.into_iter().all(is_synced).then_some(slots.visible)
    }

    /// Returns the visible revision.
    pub fn visible(&self) -> Revision {
        self.lock().visible
    }
}

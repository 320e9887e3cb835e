//! Watch instances: the watches of one stream, read in turns.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstay_ids::Revision;
use tokio::sync::Notify;

use crate::answer::ChangeEvent;
use crate::engine::{Engine, SharedEngine};
use crate::error::EngineError;
use crate::hub::SlotId;
use crate::request::{HistoryQuery, KeyRange};

/// Bytes of events in one message. A stream holds a few of them at most.
const PAGE_BYTES: usize = 512 * 1024;

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchOptions {
    /// The keys.
    pub range: KeyRange,
    /// First revision; the next one when `None`.
    pub start: Option<Revision>,
    /// Report the version before each change.
    pub wants_previous: bool,
}

/// Why a watch is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchRefusal {
    /// The instance has a watch with this ID.
    #[error("mvcc: duplicate watch ID provided on the WatchStream")]
    DuplicateId,
    /// No key can be in the range.
    #[error("mvcc: watcher range is empty")]
    EmptyRange,
}

/// What a watch reports.
#[derive(Debug)]
pub enum WatchMessage {
    /// Events, whole revisions, in order.
    Events {
        /// The watch.
        id: i64,
        /// Every event of the watch up to this revision is delivered with this message.
        reached: Revision,
        /// The events.
        events: Vec<ChangeEvent>,
    },
    /// A part of the history without events for the watch is read: it may be synced now.
    Advanced {
        /// The watch.
        id: i64,
    },
    /// The watch starts, or was so slow that it now is, before the retained history. It is cancelled.
    Compacted {
        /// The watch.
        id: i64,
        /// Oldest revision a watch can start at.
        oldest: Revision,
    },
    /// The history cannot be read. The watch is cancelled.
    Failed {
        /// The watch.
        id: i64,
        /// Why.
        error: EngineError,
    },
}

#[derive(Debug)]
struct KeyWatch {
    slot: SlotId,
    options: WatchOptions,
}

/// The watches of one stream (seed names: create-watch-instance, register-key-watch, cancel-key-watch,
/// register-watch-listener; dropping it is delete-watch-instance).
///
/// Each watch is a cursor into the history. [`WatchInstance::next`] serves the watches that have events in turns, so a
/// watch that replays a long history does not hold up the others of its stream.
pub struct WatchInstance {
    engine: SharedEngine,
    wake: Arc<Notify>,
    watches: BTreeMap<i64, KeyWatch>,
    /// ID of the watch that was served last.
    last_served: i64,
    next_id: i64,
}

impl std::fmt::Debug for WatchInstance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchInstance")
            .field("watches", &self.watches)
            .finish_non_exhaustive()
    }
}

impl WatchInstance {
    /// Creates an instance without watches.
    pub fn create(engine: Arc<dyn Engine>) -> Self {
        Self {
            engine,
            wake: Arc::new(Notify::new()),
            watches: BTreeMap::new(),
            last_served: -1,
            next_id: 0,
        }
    }

    /// Registers a watch. An ID of 0 lets the instance choose one. Returns the ID and the visible revision.
    pub fn register_key_watch(
        &mut self,
        id: i64,
        options: WatchOptions,
    ) -> Result<(i64, Revision), WatchRefusal> {
        if options.range.is_empty() {
            return Err(WatchRefusal::EmptyRange);
        }
        let id = match id {
            0 => self.free_id(),
            id if self.watches.contains_key(&id) => return Err(WatchRefusal::DuplicateId),
            id => id,
        };
        let (slot, visible) = self.engine.hub().register(
            options.range.clone(),
            options.start,
            Arc::clone(&self.wake),
        );
        self.watches.insert(id, KeyWatch { slot, options });
        Ok((id, visible))
    }

    fn free_id(&mut self) -> i64 {
        while self.watches.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    /// Ends a watch. Returns false when there is none with this ID.
    pub fn cancel_key_watch(&mut self, id: i64) -> bool {
        match self.watches.remove(&id) {
            Some(watch) => {
                self.engine.hub().unregister(watch.slot);
                true
            }
            None => false,
        }
    }

    /// Returns the number of watches.
    pub fn len(&self) -> usize {
        self.watches.len()
    }

    /// Returns true when there is no watch.
    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// Returns the visible revision if every watch has delivered all its events up to it.
    pub fn synced(&self) -> Option<Revision> {
        self.engine
            .hub()
            .synced(self.watches.values().map(|watch| watch.slot))
    }

    /// The same for one watch.
    pub fn synced_key_watch(&self, id: i64) -> Option<Revision> {
        let watch = self.watches.get(&id)?;
        self.engine.hub().synced([watch.slot])
    }

    /// Waits for the next message. Dropping the future loses nothing.
    pub async fn next(&mut self) -> WatchMessage {
        loop {
            match self.next_due() {
                Some(id) => {
                    if let Some(message) = self.serve(id).await {
                        return message;
                    }
                }
                None => self.wake.notified().await,
            }
        }
    }

    /// The next watch with events after the one served last.
    fn next_due(&self) -> Option<i64> {
        let hub = self.engine.hub();
        let later = self.watches.range(self.last_served.saturating_add(1)..);
        later
            .chain(self.watches.range(..=self.last_served))
            .find(|(_, watch)| hub.due(watch.slot).is_some())
            .map(|(id, _)| *id)
    }

    async fn serve(&mut self, id: i64) -> Option<WatchMessage> {
        let watch = self.watches.get(&id)?;
        let slot = watch.slot;
        let due = self.engine.hub().due(slot)?;
        let query = HistoryQuery {
            range: watch.options.range.clone(),
            from: due.from,
            upto: due.upto,
            wants_previous: watch.options.wants_previous,
            max_bytes: PAGE_BYTES,
        };
        let page = self.engine.history(query).await;
        // No await below: a future dropped above has delivered nothing.
        self.last_served = id;
        match page {
            Ok(page) => {
                self.engine.hub().delivered(slot, page.reached);
                Some(if page.events.is_empty() {
                    WatchMessage::Advanced { id }
                } else {
                    WatchMessage::Events {
                        id,
                        reached: page.reached,
                        events: page.events,
                    }
                })
            }
            Err(EngineError::Compacted { oldest }) => {
                self.cancel_key_watch(id);
                Some(WatchMessage::Compacted { id, oldest })
            }
            Err(error) => {
                self.cancel_key_watch(id);
                Some(WatchMessage::Failed { id, error })
            }
        }
    }
}

impl Drop for WatchInstance {
    fn drop(&mut self) {
        for watch in self.watches.values() {
            self.engine.hub().unregister(watch.slot);
        }
    }
}

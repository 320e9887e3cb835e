//! One at a time, a few in line, the rest turned away.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The line for one thing.
#[derive(Clone, Debug)]
pub(super) struct RequestQueue {
    /// Places in line, the first of which is being served.
    slots: Arc<Semaphore>,
    /// Whose turn it is.
    active: Arc<Semaphore>,
}

/// It is the holder's turn until this is dropped.
#[derive(Debug)]
pub(super) struct QueuePermit {
    _slot: OwnedSemaphorePermit,
    _active: OwnedSemaphorePermit,
}

/// There is no place in line, or the wait was too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueFull;

impl RequestQueue {
    /// A line in which so many wait.
    pub(super) fn new(waiting: usize) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(waiting.saturating_add(1))),
            active: Arc::new(Semaphore::new(1)),
        }
    }

    /// Waits for a turn, no longer than `patience`.
    pub(super) async fn acquire(&self, patience: Duration) -> Result<QueuePermit, QueueFull> {
        let place = Arc::clone(&self.slots).try_acquire_owned();
        let place = place.map_err(|_| QueueFull)?;
        let turn = timeout(patience, Arc::clone(&self.active).acquire_owned()).await;
        let turn = turn.map_err(|_| QueueFull)?.map_err(|_| QueueFull)?;
        Ok(QueuePermit {
            _slot: place,
            _active: turn,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE_TIMEOUT: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn the_second_waits_and_the_third_is_turned_away() {
        let lane = RequestQueue::new(1);
        let first = lane.acquire(QUEUE_TIMEOUT).await.unwrap();
        let second = tokio::spawn({
            let lane = lane.clone();
            async move { lane.acquire(QUEUE_TIMEOUT).await.is_ok() }
        });
        tokio::task::yield_now().await;
        assert_eq!(lane.acquire(QUEUE_TIMEOUT).await.unwrap_err(), QueueFull);
        drop(first);
        assert!(second.await.unwrap());
        assert!(lane.acquire(QUEUE_TIMEOUT).await.is_ok(), "a place was lost");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let lane = RequestQueue::new(1);
        let _first = lane.acquire(QUEUE_TIMEOUT).await.unwrap();
        assert_eq!(lane.acquire(QUEUE_TIMEOUT).await.unwrap_err(), QueueFull);
    }
}

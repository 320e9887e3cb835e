//! A bounded queue: one caller runs, a few wait, the others are rejected.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The queue of one operation.
#[derive(Clone, Debug)]
pub(super) struct RequestQueue {
    /// Slots of the running caller and of those that wait.
    slots: Arc<Semaphore>,
    /// Held by the running caller.
    active: Arc<Semaphore>,
}

/// The turn of a caller; dropping it lets the next one run.
#[derive(Debug)]
pub(super) struct QueuePermit {
    _slot: OwnedSemaphorePermit,
    _active: OwnedSemaphorePermit,
}

/// The queue is full, or the wait timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueFull;

impl RequestQueue {
    /// A queue with `waiting` slots besides the running caller.
    pub(super) fn new(waiting: usize) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(waiting.saturating_add(1))),
            active: Arc::new(Semaphore::new(1)),
        }
    }

    /// Waits for a turn, at most `limit`. Fails at once if the queue is full.
    pub(super) async fn acquire(&self, limit: Duration) -> Result<QueuePermit, QueueFull> {
        let slot = Arc::clone(&self.slots).try_acquire_owned();
        let slot = slot.map_err(|_| QueueFull)?;
        let active = timeout(limit, Arc::clone(&self.active).acquire_owned()).await;
        let active = active.map_err(|_| QueueFull)?.map_err(|_| QueueFull)?;
        Ok(QueuePermit {
            _slot: slot,
            _active: active,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE_TIMEOUT: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn second_request_waits_and_third_is_refused() {
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
        assert!(lane.acquire(QUEUE_TIMEOUT).await.is_ok(), "a slot leaked");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_request_times_out() {
        let lane = RequestQueue::new(1);
        let _first = lane.acquire(QUEUE_TIMEOUT).await.unwrap();
        assert_eq!(lane.acquire(QUEUE_TIMEOUT).await.unwrap_err(), QueueFull);
    }
}

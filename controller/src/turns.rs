//! Whose turn it is at the API server: what is done for one cluster comes before what is told of another.
//!
//! A status costs the API server more than the object it tells of. When many specs change at once, statuses would keep
//! the last of them waiting; so they give way, for a moment and never for long.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, watch};

/// How many statuses are written at the same time.
const MAX_STATUS_WRITES: usize = 4;
/// The longest a status gives way.
const MAX_STATUS_DELAY: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug)]
pub struct WriteScheduler {
    object_writes: watch::Sender<usize>,
    status_permits: Semaphore,
}

impl Default for WriteScheduler {
    fn default() -> Self {
        Self {
            object_writes: watch::Sender::new(0),
            status_permits: Semaphore::new(MAX_STATUS_WRITES),
        }
    }
}

/// An object is being written until this is dropped.
#[derive(Debug)]
pub struct ObjectWriteGuard<'a>(&'a WriteScheduler);

impl WriteScheduler {
    /// An object is written at once.
    pub fn begin_object_write(&self) -> ObjectWriteGuard<'_> {
        self.object_writes.send_modify(|acting| *acting += 1);
        ObjectWriteGuard(self)
    }

    /// Waits for the turn of a status; it lasts until the answer is dropped.
    pub async fn acquire_status_write(&self) -> Option<SemaphorePermit<'_>> {
        let mut acting = self.object_writes.subscribe();
        let quiet = acting.wait_for(|acting| *acting == 0);
        drop(tokio::time::timeout(MAX_STATUS_DELAY, quiet).await); // quiet or not, it is told now
        self.status_permits.acquire().await.ok() // nobody closes it
    }
}

impl Drop for ObjectWriteGuard<'_> {
    fn drop(&mut self) {
        self.0.object_writes.send_modify(|acting| *acting -= 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_status_waits_for_what_is_being_done() {
        let turns = WriteScheduler::default();
        let acting = turns.begin_object_write();
        let mut told = Box::pin(turns.acquire_status_write());
        let early = timeout(MAX_STATUS_DELAY / 2, &mut told).await;
        assert!(early.is_err(), "told while an object is being written");
        drop(acting);
        let now = Instant::now();
        drop(told.await.unwrap());
        assert_eq!(now.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn and_not_for_long() {
        let turns = WriteScheduler::default();
        let _acting = turns.begin_object_write();
        let begun = Instant::now();
        drop(turns.acquire_status_write().await.unwrap());
        assert_eq!(begun.elapsed(), MAX_STATUS_DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn few_are_told_at_a_time() {
        let turns = WriteScheduler::default();
        let mut told = Vec::new();
        for _ in 0..MAX_STATUS_WRITES {
            told.push(turns.acquire_status_write().await.unwrap());
        }
        assert!(timeout(MAX_STATUS_DELAY * 10, turns.acquire_status_write()).await.is_err());
        told.pop();
        drop(turns.acquire_status_write().await.unwrap());
    }
}

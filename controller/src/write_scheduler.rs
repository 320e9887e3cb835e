//! Priority of writes to the API server: objects of one cluster before the status of another.
//!
//! A status write costs the API server more than an object write. When many specs change at once, status writes would
//! delay the last spec; so they are delayed instead, briefly and with a limit.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, watch};

/// Concurrent status writes.
const MAX_STATUS_WRITES: usize = 4;
/// Maximum delay of a status write.
const MAX_STATUS_DELAY: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct WriteScheduler {
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

/// An object write is in progress until this is dropped.
#[derive(Debug)]
pub(crate) struct ObjectWriteGuard<'a>(&'a WriteScheduler);

impl WriteScheduler {
    /// Registers an object write; never blocks.
    pub(crate) fn begin_object_write(&self) -> ObjectWriteGuard<'_> {
        self.object_writes.send_modify(|active| *active += 1);
        ObjectWriteGuard(self)
    }

    /// Waits until a status may be written. Hold the permit during the write.
    pub(crate) async fn acquire_status_write(&self) -> Option<SemaphorePermit<'_>> {
        let mut active = self.object_writes.subscribe();
        let quiet = active.wait_for(|active| *active == 0);
        drop(tokio::time::timeout(MAX_STATUS_DELAY, quiet).await); // after the timeout the status is written in any case
        self.status_permits.acquire().await.ok() // the semaphore is never closed
    }
}

impl Drop for ObjectWriteGuard<'_> {
    fn drop(&mut self) {
        self.0.object_writes.send_modify(|active| *active -= 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn status_write_waits_for_running_object_writes() {
        let scheduler = WriteScheduler::default();
        let active = scheduler.begin_object_write();
        let mut permits = Box::pin(scheduler.acquire_status_write());
        let early = timeout(MAX_STATUS_DELAY / 2, &mut permits).await;
        assert!(early.is_err(), "status written during an object write");
        drop(active);
        let now = Instant::now();
        drop(permits.await.unwrap());
        assert_eq!(now.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn status_write_waits_no_longer_than_the_maximum_delay() {
        let scheduler = WriteScheduler::default();
        let _acting = scheduler.begin_object_write();
        let begun = Instant::now();
        drop(scheduler.acquire_status_write().await.unwrap());
        assert_eq!(begun.elapsed(), MAX_STATUS_DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_status_writes_are_limited() {
        let scheduler = WriteScheduler::default();
        let mut permits = Vec::new();
        for _ in 0..MAX_STATUS_WRITES {
            permits.push(scheduler.acquire_status_write().await.unwrap());
        }
        assert!(
            timeout(MAX_STATUS_DELAY * 10, scheduler.acquire_status_write())
                .await
                .is_err()
        );
        permits.pop();
        drop(scheduler.acquire_status_write().await.unwrap());
    }
}

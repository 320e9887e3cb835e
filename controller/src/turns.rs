//! Whose turn it is at the API server: what is done for one cluster comes before what is told of another.
//!
//! A status costs the API server more than the object it tells of. When many specs change at once, statuses would keep
//! the last of them waiting; so they give way, for a moment and never for long.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, watch};

/// How many statuses are written at the same time.
const TELLING: usize = 4;
/// The longest a status gives way.
const LONGEST: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug)]
pub struct Turns {
    acting: watch::Sender<usize>,
    telling: Semaphore,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            acting: watch::Sender::new(0),
            telling: Semaphore::new(TELLING),
        }
    }
}

/// An object is being written until this is dropped.
#[derive(Debug)]
pub struct Acting<'a>(&'a Turns);

impl Turns {
    /// An object is written at once.
    pub fn act(&self) -> Acting<'_> {
        self.acting.send_modify(|acting| *acting += 1);
        Acting(self)
    }

    /// Waits for the turn of a status; it lasts until the answer is dropped.
    pub async fn tell(&self) -> Option<SemaphorePermit<'_>> {
        let mut acting = self.acting.subscribe();
        let quiet = acting.wait_for(|acting| *acting == 0);
        drop(tokio::time::timeout(LONGEST, quiet).await); // quiet or not, it is told now
        self.telling.acquire().await.ok() // nobody closes it
    }
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        self.0.acting.send_modify(|acting| *acting -= 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_status_waits_for_what_is_being_done() {
        let turns = Turns::default();
        let acting = turns.act();
        let mut told = Box::pin(turns.tell());
        let early = timeout(LONGEST / 2, &mut told).await;
        assert!(early.is_err(), "told while an object is being written");
        drop(acting);
        let now = Instant::now();
        drop(told.await.unwrap());
        assert_eq!(now.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn and_not_for_long() {
        let turns = Turns::default();
        let _acting = turns.act();
        let begun = Instant::now();
        drop(turns.tell().await.unwrap());
        assert_eq!(begun.elapsed(), LONGEST);
    }

    #[tokio::test(start_paused = true)]
    async fn few_are_told_at_a_time() {
        let turns = Turns::default();
        let mut told = Vec::new();
        for _ in 0..TELLING {
            told.push(turns.tell().await.unwrap());
        }
        assert!(timeout(LONGEST * 10, turns.tell()).await.is_err());
        told.pop();
        drop(turns.tell().await.unwrap());
    }
}

//! One at a time, a few in line, the rest turned away.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The line for one thing.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    /// Places in line, the first of which is being served.
    places: Arc<Semaphore>,
    /// Whose turn it is.
    turn: Arc<Semaphore>,
}

/// It is the holder's turn until this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _place: OwnedSemaphorePermit,
    _turn: OwnedSemaphorePermit,
}

/// There is no place in line, or the wait was too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Busy;

impl Lane {
    /// A line in which so many wait.
    pub(super) fn new(waiting: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(waiting.saturating_add(1))),
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// Waits for a turn, no longer than `patience`.
    pub(super) async fn enter(&self, patience: Duration) -> Result<Turn, Busy> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| Busy)?;
        let turn = timeout(patience, Arc::clone(&self.turn).acquire_owned()).await;
        let turn = turn.map_err(|_| Busy)?.map_err(|_| Busy)?;
        Ok(Turn {
            _place: place,
            _turn: turn,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn the_second_waits_and_the_third_is_turned_away() {
        let lane = Lane::new(1);
        let first = lane.enter(PATIENCE).await.unwrap();
        let second = tokio::spawn({
            let lane = lane.clone();
            async move { lane.enter(PATIENCE).await.is_ok() }
        });
        tokio::task::yield_now().await;
        assert_eq!(lane.enter(PATIENCE).await.unwrap_err(), Busy);
        drop(first);
        assert!(second.await.unwrap());
        assert!(lane.enter(PATIENCE).await.is_ok(), "a place was lost");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let lane = Lane::new(1);
        let _first = lane.enter(PATIENCE).await.unwrap();
        assert_eq!(lane.enter(PATIENCE).await.unwrap_err(), Busy);
    }
}

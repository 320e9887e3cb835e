//! Trying again: exponential backoff with jitter, until a deadline that progress pushes out.
//!
//! ```text
//! attempt → fault → transient? ──no──► give up
//!    ▲                  │ yes
//!    └── jittered wait ─┴── no progress for retry_timeout? ──► give up
//! ```
//!
//! **Holds**: an operation that makes no progress ends within the retry timeout: each attempt is cut
//! to what remains of it. A transfer that does make progress, however slowly, is never given up.

use std::future::Future;
use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

use crate::config::Effort;
use crate::error::{Class, Fault, Place, Step, StoreError};

/// The first pause; short, because most faults are one lost connection.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause, so that recovery is noticed soon after an outage ends.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long to wait for an answer without a body, or for the next bytes of one.
const STALL: Duration = Duration::from_secs(30);

/// Deadlines shared by all operations of a store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    request_timeout: Duration,
    retry_timeout: Duration,
}

impl From<&Effort> for Patience {
    fn from(effort: &Effort) -> Self {
        Self {
            request_timeout: effort.request_timeout,
            retry_timeout: effort.retry_timeout,
        }
    }
}

impl Patience {
    /// Runs a small request until it succeeds, fails for good, or the deadline passes.
    ///
    /// `attempt` is told how many attempts were made before it.
    pub(crate) async fn run<T, A, F>(self, mut attempt: A) -> Result<T, GaveUp>
    where
        A: FnMut(u32) -> F,
        F: Future<Output = Result<T, Fault>>,
    {
        let mut attempts = Attempts::new(self);
        loop {
            let count = attempts.count;
            match attempts.briefly(attempt(count)).await {
                Ok(value) => return Ok(value),
                Err(fault) => attempts.pause(fault).await?,
            }
        }
    }
}

/// The state of one operation that is being tried.
#[derive(Debug)]
pub(crate) struct Attempts {
    patience: Patience,
    started: Instant,
    progressed: Instant,
    count: u32,
    pause: Duration,
}

impl Attempts {
    pub(crate) fn new(patience: Patience) -> Self {
        let now = Instant::now();
        Self {
            patience,
            started: now,
            progressed: now,
            count: 0,
            pause: FIRST_PAUSE,
        }
    }

    /// Bytes arrived: the deadline moves and the next pause is short again.
    pub(crate) fn progress(&mut self) {
        self.progressed = Instant::now();
        self.pause = FIRST_PAUSE;
    }

    /// Waits for an answer or the next bytes, as long as silence can still mean that they come.
    pub(crate) async fn briefly<T>(
        &self,
        future: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        tokio::time::timeout(STALL, self.within(future))
            .await
            .unwrap_or(Err(Fault::Stalled { after: STALL }))
    }

    /// Waits no longer than one request with a body may take and the deadline allows.
    pub(crate) async fn within<T>(
        &self,
        future: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let after = self.patience.request_timeout.min(self.remaining());
        match tokio::time::timeout(after, future).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Fault::Stalled { after }),
        }
    }

    /// Counts a failed attempt and waits before the next, or says that there is none.
    pub(crate) async fn pause(&mut self, fault: Fault) -> Result<(), GaveUp> {
        let pause = self.pause.mul_f64(rand::rng().random_range(0.5..=1.0));
        if fault.class() != Class::Transient || self.remaining() <= pause {
            return Err(self.give_up(fault));
        }
        self.count += 1;
        tokio::time::sleep(pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    /// Ends the operation with its last fault.
    pub(crate) fn give_up(&self, fault: Fault) -> GaveUp {
        GaveUp {
            attempts: self.count + 1,
            elapsed: self.started.elapsed(),
            fault,
        }
    }

    fn remaining(&self) -> Duration {
        self.patience
            .retry_timeout
            .saturating_sub(self.progressed.elapsed())
    }
}

/// The last fault of an operation, and what was tried before.
#[derive(Debug)]
pub(crate) struct GaveUp {
    pub(crate) attempts: u32,
    pub(crate) elapsed: Duration,
    pub(crate) fault: Fault,
}

impl GaveUp {
    pub(crate) fn at(self, step: Step, place: Place) -> StoreError {
        let Self {
            attempts,
            elapsed,
            fault,
        } = self;
        StoreError::Request {
            step,
            place,
            attempts,
            elapsed,
            source: Box::new(fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        request_timeout: Duration::from_secs(5),
        retry_timeout: Duration::from_secs(20),
    };

    fn short() -> Fault {
        Fault::Short {
            expected: 2,
            found: 1,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_transient_fault_is_tried_again_until_it_passes() {
        let outcome =
            PATIENCE.run(|count| async move { if count < 4 { Err(short()) } else { Ok(count) } });
        assert_eq!(outcome.await.unwrap(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lasting_fault_ends_before_the_deadline() {
        let started = Instant::now();
        let gave_up = PATIENCE
            .run(|_| async { Err::<(), _>(short()) })
            .await
            .unwrap_err();
        assert!(gave_up.attempts > 5, "{gave_up:?}");
        assert!(started.elapsed() <= PATIENCE.retry_timeout);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_cut_into_requests_and_ends_at_the_deadline() {
        let started = Instant::now();
        let gave_up = PATIENCE
            .run(|_| std::future::pending::<Result<(), _>>())
            .await
            .unwrap_err();
        assert!(
            matches!(gave_up.fault, Fault::Stalled { .. }),
            "{gave_up:?}"
        );
        assert!((3..=4).contains(&gave_up.attempts), "{gave_up:?}");
        assert!(started.elapsed() <= PATIENCE.retry_timeout + Duration::from_millis(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_permanent_fault_is_tried_once() {
        let gave_up = PATIENCE
            .run(|_| async { Err::<(), _>(Fault::Long { expected: 1 }) })
            .await
            .unwrap_err();
        assert_eq!(gave_up.attempts, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn progress_moves_the_deadline() {
        let mut attempts = Attempts::new(PATIENCE);
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_secs(19)).await;
            attempts.progress();
            attempts.pause(short()).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(attempts.pause(short()).await.is_err());
    }
}

//! Retries with exponential backoff and jitter, until a deadline that progress extends.
//!
//! ```text
//! attempt → fault → transient? ──no──► fail
//!    ▲                  │ yes
//!    └── jittered wait ─┴── no progress for retry_timeout? ──► fail
//! ```
//!
//! **Invariants**: an operation without progress ends within the retry timeout, because each attempt is
//! limited to the time that remains. A transfer that makes progress, however slow, continues.

use std::future::Future;
use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

use crate::config::TransferConfig;
use crate::error::{AttemptError, ErrorClass, ObjectLocation, StoreError, StoreOperation};

/// Initial backoff; short, because most faults are a single lost connection.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum backoff; bounds the delay after an outage ends.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Timeout for a response without a body, or for the next bytes of a body.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeouts shared by all operations of a store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryPolicy {
    request_timeout: Duration,
    retry_timeout: Duration,
}

impl From<&TransferConfig> for RetryPolicy {
    fn from(effort: &TransferConfig) -> Self {
        Self {
            request_timeout: effort.request_timeout,
            retry_timeout: effort.retry_timeout,
        }
    }
}

impl RetryPolicy {
    /// Runs a small request until it succeeds, fails permanently, or the deadline passes.
    ///
    /// `attempt` receives the number of previous attempts.
    pub(crate) async fn run<T, A, F>(self, mut attempt: A) -> Result<T, RetriesExhausted>
    where
        A: FnMut(u32) -> F,
        F: Future<Output = Result<T, AttemptError>>,
    {
        let mut attempts = RetryState::new(self);
        loop {
            let count = attempts.failed_attempts;
            match attempts.with_stall_timeout(attempt(count)).await {
                Ok(value) => return Ok(value),
                Err(fault) => attempts.wait_before_retry(fault).await?,
            }
        }
    }
}

/// Retry state of one operation.
#[derive(Debug)]
pub(crate) struct RetryState {
    policy: RetryPolicy,
    started: Instant,
    last_progress: Instant,
    failed_attempts: u32,
    backoff: Duration,
}

impl RetryState {
    pub(crate) fn new(policy: RetryPolicy) -> Self {
        let now = Instant::now();
        Self {
            policy,
            started: now,
            last_progress: now,
            failed_attempts: 0,
            backoff: INITIAL_BACKOFF,
        }
    }

    /// Records received data: extends the deadline and resets the backoff.
    pub(crate) fn record_progress(&mut self) {
        self.last_progress = Instant::now();
        self.backoff = INITIAL_BACKOFF;
    }

    /// Waits for a response or the next bytes, at most [`STALL_TIMEOUT`].
    pub(crate) async fn with_stall_timeout<T>(
        &self,
        future: impl Future<Output = Result<T, AttemptError>>,
    ) -> Result<T, AttemptError> {
        tokio::time::timeout(STALL_TIMEOUT, self.with_request_timeout(future))
            .await
            .unwrap_or(Err(AttemptError::Stalled {
                after: STALL_TIMEOUT,
            }))
    }

    /// Waits at most the request timeout, or until the deadline if that is earlier.
    pub(crate) async fn with_request_timeout<T>(
        &self,
        future: impl Future<Output = Result<T, AttemptError>>,
    ) -> Result<T, AttemptError> {
        let after = self.policy.request_timeout.min(self.remaining_time());
        match tokio::time::timeout(after, future).await {
            Ok(outcome) => outcome,
            Err(_) => Err(AttemptError::Stalled { after }),
        }
    }

    /// Counts a failed attempt and waits before the next; fails if no retry is allowed.
    pub(crate) async fn wait_before_retry(
        &mut self,
        fault: AttemptError,
    ) -> Result<(), RetriesExhausted> {
        // Jitter spreads the retries of parallel parts after a common outage.
        let pause = self.backoff.mul_f64(rand::rng().random_range(0.5..=1.0));
        // A pause beyond the deadline would only delay the error.
        if fault.class() != ErrorClass::Transient || self.remaining_time() <= pause {
            return Err(self.give_up(fault));
        }
        self.failed_attempts += 1;
        tokio::time::sleep(pause).await;
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        Ok(())
    }

    /// Fails the operation with its last fault.
    pub(crate) fn give_up(&self, last_error: AttemptError) -> RetriesExhausted {
        RetriesExhausted {
            attempts: self.failed_attempts + 1,
            elapsed: self.started.elapsed(),
            last_error,
        }
    }

    fn remaining_time(&self) -> Duration {
        self.policy
            .retry_timeout
            .saturating_sub(self.last_progress.elapsed())
    }
}

/// The last fault of a failed operation, with its attempts and duration.
#[derive(Debug)]
pub(crate) struct RetriesExhausted {
    pub(crate) attempts: u32,
    pub(crate) elapsed: Duration,
    pub(crate) last_error: AttemptError,
}

impl RetriesExhausted {
    pub(crate) fn into_store_error(
        self,
        step: StoreOperation,
        place: ObjectLocation,
    ) -> StoreError {
        let Self {
            attempts,
            elapsed,
            last_error,
        } = self;
        StoreError::Request {
            step,
            place,
            attempts,
            elapsed,
            source: Box::new(last_error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy = RetryPolicy {
        request_timeout: Duration::from_secs(5),
        retry_timeout: Duration::from_secs(20),
    };

    fn short_body_error() -> AttemptError {
        AttemptError::BodyTooShort {
            expected: 2,
            found: 1,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn transient_fault_is_retried_until_it_passes() {
        let outcome = POLICY.run(|count| async move {
            if count < 4 {
                Err(short_body_error())
            } else {
                Ok(count)
            }
        });
        assert_eq!(outcome.await.unwrap(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn persistent_fault_ends_before_the_deadline() {
        let started = Instant::now();
        let exhausted = POLICY
            .run(|_| async { Err::<(), _>(short_body_error()) })
            .await
            .unwrap_err();
        assert!(exhausted.attempts > 5, "{exhausted:?}");
        assert!(started.elapsed() <= POLICY.retry_timeout);
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_requests_time_out_and_retries_end_at_the_deadline() {
        let started = Instant::now();
        let exhausted = POLICY
            .run(|_| std::future::pending::<Result<(), _>>())
            .await
            .unwrap_err();
        assert!(
            matches!(exhausted.last_error, AttemptError::Stalled { .. }),
            "{exhausted:?}"
        );
        assert!((3..=4).contains(&exhausted.attempts), "{exhausted:?}");
        assert!(started.elapsed() <= POLICY.retry_timeout + Duration::from_millis(1));
    }

    #[tokio::test(start_paused = true)]
    async fn permanent_fault_is_not_retried() {
        let exhausted = POLICY
            .run(|_| async { Err::<(), _>(AttemptError::BodyTooLong { expected: 1 }) })
            .await
            .unwrap_err();
        assert_eq!(exhausted.attempts, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn progress_extends_the_deadline() {
        let mut attempts = RetryState::new(POLICY);
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_secs(19)).await;
            attempts.record_progress();
            attempts
                .wait_before_retry(short_body_error())
                .await
                .unwrap();
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(
            attempts
                .wait_before_retry(short_body_error())
                .await
                .is_err()
        );
    }
}

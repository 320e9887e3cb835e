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

use crate::config::TransferConfig;
use crate::error::{ErrorClass, AttemptError, ObjectLocation, StoreOperation, StoreError};

/// The first pause; short, because most faults are one lost connection.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
/// The longest pause, so that recovery is noticed soon after an outage ends.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// How long to wait for an answer without a body, or for the next bytes of one.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Deadlines shared by all operations of a store.
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
    /// Runs a small request until it succeeds, fails for good, or the deadline passes.
    ///
    /// `attempt` is told how many attempts were made before it.
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

/// The state of one operation that is being tried.
#[derive(Debug)]
pub(crate) struct RetryState {
    policy: RetryPolicy,
    started: Instant,
    last_progress: Instant,
    failed_attempts: u32,
    backoff: Duration,
}

impl RetryState {
    pub(crate) fn new(patience: RetryPolicy) -> Self {
        let now = Instant::now();
        Self {
            policy: patience,
            started: now,
            last_progress: now,
            failed_attempts: 0,
            backoff: INITIAL_BACKOFF,
        }
    }

    /// Bytes arrived: the deadline moves and the next pause is short again.
    pub(crate) fn record_progress(&mut self) {
        self.last_progress = Instant::now();
        self.backoff = INITIAL_BACKOFF;
    }

    /// Waits for an answer or the next bytes, as long as silence can still mean that they come.
    pub(crate) async fn with_stall_timeout<T>(
        &self,
        future: impl Future<Output = Result<T, AttemptError>>,
    ) -> Result<T, AttemptError> {
        tokio::time::timeout(STALL_TIMEOUT, self.with_request_timeout(future))
            .await
            .unwrap_or(Err(AttemptError::Stalled { after: STALL_TIMEOUT }))
    }

    /// Waits no longer than one request with a body may take and the deadline allows.
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

    /// Counts a failed attempt and waits before the next, or says that there is none.
    pub(crate) async fn wait_before_retry(&mut self, fault: AttemptError) -> Result<(), RetriesExhausted> {
        let pause = self.backoff.mul_f64(rand::rng().random_range(0.5..=1.0));
        if fault.class() != ErrorClass::Transient || self.remaining_time() <= pause {
            return Err(self.give_up(fault));
        }
        self.failed_attempts += 1;
        tokio::time::sleep(pause).await;
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        Ok(())
    }

    /// Ends the operation with its last fault.
    pub(crate) fn give_up(&self, fault: AttemptError) -> RetriesExhausted {
        RetriesExhausted {
            attempts: self.failed_attempts + 1,
            elapsed: self.started.elapsed(),
            last_error: fault,
        }
    }

    fn remaining_time(&self) -> Duration {
        self.policy
            .retry_timeout
            .saturating_sub(self.last_progress.elapsed())
    }
}

/// The last fault of an operation, and what was tried before.
#[derive(Debug)]
pub(crate) struct RetriesExhausted {
    pub(crate) attempts: u32,
    pub(crate) elapsed: Duration,
    pub(crate) last_error: AttemptError,
}

impl RetriesExhausted {
    pub(crate) fn into_store_error(self, step: StoreOperation, place: ObjectLocation) -> StoreError {
        let Self {
            attempts,
            elapsed,
            last_error: fault,
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
    async fn a_transient_fault_is_tried_again_until_it_passes() {
        let outcome =
            POLICY.run(|count| async move { if count < 4 { Err(short_body_error()) } else { Ok(count) } });
        assert_eq!(outcome.await.unwrap(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lasting_fault_ends_before_the_deadline() {
        let started = Instant::now();
        let gave_up = POLICY
            .run(|_| async { Err::<(), _>(short_body_error()) })
            .await
            .unwrap_err();
        assert!(gave_up.attempts > 5, "{gave_up:?}");
        assert!(started.elapsed() <= POLICY.retry_timeout);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_cut_into_requests_and_ends_at_the_deadline() {
        let started = Instant::now();
        let gave_up = POLICY
            .run(|_| std::future::pending::<Result<(), _>>())
            .await
            .unwrap_err();
        assert!(
            matches!(gave_up.last_error, AttemptError::Stalled { .. }),
            "{gave_up:?}"
        );
        assert!((3..=4).contains(&gave_up.attempts), "{gave_up:?}");
        assert!(started.elapsed() <= POLICY.retry_timeout + Duration::from_millis(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_permanent_fault_is_tried_once() {
        let gave_up = POLICY
            .run(|_| async { Err::<(), _>(AttemptError::BodyTooLong { expected: 1 }) })
            .await
            .unwrap_err();
        assert_eq!(gave_up.attempts, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn progress_moves_the_deadline() {
        let mut attempts = RetryState::new(POLICY);
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_secs(19)).await;
            attempts.record_progress();
            attempts.wait_before_retry(short_body_error()).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(attempts.wait_before_retry(short_body_error()).await.is_err());
    }
}

//! Waits for a state by checking again and again. No test fails because a state took long: the deadline only detects a wait
//! that never ends.

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// Longer than a healthy cluster needs for anything on a loaded machine.
pub const WAIT_TIMEOUT: Duration = Duration::from_mins(8);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The state did not come. [`super::diagnose()`] shows the state of the cluster.
#[derive(thiserror::Error)]
#[error("waited {} s for {what}", waited.as_secs())]
pub struct WaitTimeout {
    what: String,
    waited: Duration,
}

/// In the same words: this is what a test prints that fails.
impl fmt::Debug for WaitTimeout {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

/// Checks until there is an answer. A check that hangs ends with the wait.
pub async fn eventually<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> Result<T, WaitTimeout> {
    wait_within(WAIT_TIMEOUT, what, ask).await
}

async fn wait_within<T>(
    limit: Duration,
    what: &str,
    ask: impl AsyncFn() -> Option<T>,
) -> Result<T, WaitTimeout> {
    let start = Instant::now();
    let deadline = start + limit;
    loop {
        if let Ok(Some(answer)) = timeout_at(deadline, ask()).await {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            return Err(WaitTimeout {
                what: what.to_owned(),
                waited: start.elapsed(),
            });
        }
        sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn a_wait_that_fails_names_the_state_and_the_time_it_waited() {
        let failed = wait_within(SHORT, "three members", async || None::<()>).await;
        let failed = WaitTimeout {
            waited: Duration::from_mins(8),
            ..failed.unwrap_err()
        };
        assert_eq!(failed.to_string(), "waited 480 s for three members");
        assert_eq!(format!("{failed:?}"), failed.to_string());
    }

    #[tokio::test]
    async fn a_check_that_hangs_ends_with_the_wait() {
        let hangs = async || pending::<Option<()>>().await;
        assert!(wait_within(SHORT, "an answer", hangs).await.is_err());
    }
}

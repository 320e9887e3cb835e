//! Waits for a state by polling. No test fails because a state took long: the deadline only detects a hang.

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// Deadline of a wait: longer than a healthy cluster needs for anything on a loaded machine.
pub const WAIT_TIMEOUT: Duration = Duration::from_mins(8);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The state was not reached in time. [`super::diagnose()`] describes the state of the cluster.
#[derive(thiserror::Error)]
#[error("timed out after {} s waiting for {what}", waited.as_secs())]
pub struct WaitTimeout {
    what: String,
    waited: Duration,
}

/// Same text as Display, because a failing test prints the Debug form.
impl fmt::Debug for WaitTimeout {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

/// Polls until `ask` returns a value. A call that hangs is cancelled at the deadline.
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
    async fn timeout_error_names_the_awaited_state_and_the_time() {
        let failed = wait_within(SHORT, "three members", async || None::<()>).await;
        let failed = WaitTimeout {
            waited: Duration::from_mins(8),
            ..failed.unwrap_err()
        };
        assert_eq!(
            failed.to_string(),
            "timed out after 480 s waiting for three members"
        );
        assert_eq!(format!("{failed:?}"), failed.to_string());
    }

    #[tokio::test]
    async fn hanging_check_ends_at_the_timeout() {
        let hangs = async || pending::<Option<()>>().await;
        assert!(wait_within(SHORT, "an answer", hangs).await.is_err());
    }
}

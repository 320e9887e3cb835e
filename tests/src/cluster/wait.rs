//! Waiting for something to become so, by asking again and again.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Longer than a healthy cluster needs for anything on a loaded machine.
pub const PATIENCE: Duration = Duration::from_mins(8);
const POLL: Duration = Duration::from_millis(250);

/// It did not become so.
#[derive(Debug, thiserror::Error)]
#[error("{what}: not within {PATIENCE:?}")]
pub struct NotYet {
    what: String,
}

/// Asks until there is an answer.
pub async fn eventually<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> Result<T, NotYet> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return Ok(answer);
        }
        if Instant::now() > deadline {
            return Err(NotYet {
                what: what.to_owned(),
            });
        }
        sleep(POLL).await;
    }
}

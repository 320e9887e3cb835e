//! How long a watch that was interrupted waits before it asks again.
//!
//! An API server that comes back after a restart must not be noticed half a minute late: what users change meanwhile waits for
//! it. A process has a dozen watches, so that asking every few seconds is no burden.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use rand::Rng;
use tokio::time::Instant;

/// The first pause.
const INITIAL_DELAY: Duration = Duration::from_millis(400);
/// The longest.
pub const MAX_DELAY: Duration = Duration::from_secs(4);

/// An interruption this long after the last pause is another one: longer than the API server takes to give up on a question.
const RESET_AFTER: Duration = Duration::from_secs(90);

/// Pauses that double up to [`LONGEST`], each shortened by chance so that watches do not come all at once. They begin anew
/// with an interruption that comes long after the last: a watch announces each list it is about to ask for, so that a
/// word of it does not mean that the server answers.
#[derive(Debug)]
pub struct WatchBackoff {
    next_delay: Duration,
    /// When the last pause was over, at the latest.
    last_delay_end: Option<Instant>,
}

impl Default for WatchBackoff {
    fn default() -> Self {
        Self {
            next_delay: INITIAL_DELAY,
            last_delay_end: None,
        }
    }
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let pause = match self.last_delay_end {
            Some(last) if now.saturating_duration_since(last) < RESET_AFTER => self.next_delay,
            _ => INITIAL_DELAY,
        };
        (self.next_delay, self.last_delay_end) = ((pause * 2).min(MAX_DELAY), Some(now + pause));
        Some(pause.mul_f64(rand::rng().random_range(0.5..=1.0)))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {} // see above
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};
    use kube::runtime::utils::StreamBackoff;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watch_whose_every_list_fails_asks_less_and_less_often() {
        let begins_and_fails = stream::repeat(["a list begins", "it fails"]).flat_map(stream::iter);
        let words = begins_and_fails.map(|word| match word {
            "it fails" => Err(word),
            _ => Ok(word),
        });
        let watch = StreamBackoff::new(words, WatchBackoff::default());
        let begun = Instant::now();
        watch.take(2 * 20).for_each(async |_| {}).await;
        let pauses = begun.elapsed();
        assert!(pauses >= MAX_DELAY / 2 * 15, "{pauses:?}");
        assert!(
            pauses <= MAX_DELAY * 19,
            "{pauses:?}: it never asks so rarely"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_interruption_long_after_the_last_begins_anew() {
        let mut pauses = WatchBackoff::default();
        pauses.nth(10);
        assert!(pauses.next().unwrap() >= MAX_DELAY / 2);
        sleep(MAX_DELAY + RESET_AFTER).await;
        assert!(pauses.next().unwrap() <= INITIAL_DELAY);
    }
}

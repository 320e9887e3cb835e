//! Backoff of interrupted watches.
//!
//! kube's default backs off to half a minute, and changes by users would wait that long after a restart of the API server.
//! A process has a dozen watches, so a retry every few seconds is cheap.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use rand::Rng;
use tokio::time::Instant;

const INITIAL_DELAY: Duration = Duration::from_millis(400);
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(4);

/// An error this long after the last delay starts the backoff anew. Longer than the API server's request timeout.
const RESET_AFTER: Duration = Duration::from_secs(90);

/// Delays that double up to the maximum, each with random jitter. Only time resets them: kube's watcher emits an event
/// before each list request, so an event does not prove that the API server responds.
#[derive(Debug)]
pub(crate) struct WatchBackoff {
    next_delay: Duration,
    /// Latest end of the last delay.
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
        // Jitter: a dozen watches would otherwise retry at the same moment.
        Some(pause.mul_f64(rand::rng().random_range(0.5..=1.0)))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {} // called for each event, see the type
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};
    use kube::runtime::utils::StreamBackoff;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn watch_whose_lists_keep_failing_backs_off() {
        let begins_and_fails = stream::repeat(["a list begins", "it fails"]).flat_map(stream::iter);
        let events = begins_and_fails.map(|event| match event {
            "it fails" => Err(event),
            _ => Ok(event),
        });
        let watch = StreamBackoff::new(events, WatchBackoff::default());
        let begun = Instant::now();
        watch.take(2 * 20).for_each(async |_| {}).await;
        let pauses = begun.elapsed();
        assert!(pauses >= MAX_DELAY / 2 * 15, "{pauses:?}");
        assert!(pauses <= MAX_DELAY * 19, "{pauses:?}: retries are too rare");
    }

    #[tokio::test(start_paused = true)]
    async fn backoff_resets_after_a_long_time_without_failures() {
        let mut pauses = WatchBackoff::default();
        pauses.nth(10);
        assert!(pauses.next().unwrap() >= MAX_DELAY / 2);
        sleep(MAX_DELAY + RESET_AFTER).await;
        assert!(pauses.next().unwrap() <= INITIAL_DELAY);
    }
}

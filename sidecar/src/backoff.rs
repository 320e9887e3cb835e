//! Delay between retries.

use std::time::Duration;

/// Exponential backoff, starting at one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// Factor by which the delay grows; 0 counts as 1.
    pub(crate) factor: u32,
    /// Maximum delay.
    pub(crate) max_delay: Duration,
}

impl Backoff {
    /// Delay after `attempts` failed attempts.
    pub(crate) fn delay(self, attempts: u32) -> Duration {
        let seconds = u64::from(self.factor.max(1)).saturating_pow(attempts.saturating_sub(1));
        Duration::from_secs(seconds).min(self.max_delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_grows_up_to_the_maximum() {
        let backoff = Backoff {
            factor: 2,
            max_delay: Duration::from_mins(1),
        };
        let seconds: Vec<u64> = (1..9).map(|n| backoff.delay(n).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(backoff.delay(u32::MAX).as_secs(), 60);
    }
}

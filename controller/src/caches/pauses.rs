//! How long a watch that was interrupted waits before it asks again.
//!
//! An API server that comes back after a restart must not be noticed half a minute late: what users change meanwhile waits for
//! it. A process has a dozen watches, so that asking every few seconds is no burden.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use rand::Rng;

/// The first pause.
const FIRST: Duration = Duration::from_millis(400);
/// The longest.
pub const LONGEST: Duration = Duration::from_secs(4);

/// Pauses that double up to [`LONGEST`], each shortened by chance so that watches do not come all at once. They begin anew
/// when something was heard.
#[derive(Debug)]
pub struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST);
        Some(pause.mul_f64(rand::rng().random_range(0.5..=1.0)))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_never_end() {
        let pauses: Vec<Duration> = Pauses::default().take(20).collect();
        assert!(pauses[0] <= FIRST && pauses[0] >= FIRST / 2);
        let last = &pauses[10..];
        assert!(
            last.iter()
                .all(|pause| *pause <= LONGEST && *pause >= LONGEST / 2),
            "{last:?}"
        );
    }

    #[test]
    fn after_a_word_of_the_server_they_begin_anew() {
        let mut pauses = Pauses::default();
        pauses.nth(10);
        pauses.reset();
        assert!(pauses.next().unwrap() <= FIRST);
    }
}

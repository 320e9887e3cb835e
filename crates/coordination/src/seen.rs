//! How long something has been seen unchanged. The only judge of expiry: a stranger's timestamp is compared
//! with that stranger's earlier ones, never with a clock here.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Remembers, for each name, what was last seen there, when, and for how long it has been so.
#[derive(Debug)]
pub(crate) struct ChangeTracker<T>(BTreeMap<String, TrackedValue<T>>);

#[derive(Debug)]
struct TrackedValue<T> {
    value: T,
    last_observed: Instant,
    unchanged_for: Duration,
}

impl<T> Default for ChangeTracker<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Clone + PartialEq> ChangeTracker<T> {
    /// Notes what is there now and tells how long it has been so, out of a time to live.
    ///
    /// The time between two looks counts for half the time to live at most. After an outage of the document the first
    /// look comes before the first renewal, perhaps; nobody could have renewed, and nobody is declared dead for it.
    pub(crate) fn observe(
        &mut self,
        name: &str,
        value: &T,
        ttl: Duration,
        now: Instant,
    ) -> Duration {
        match self.0.get_mut(name) {
            Some(sight) if sight.value == *value => {
                sight.unchanged_for += now.saturating_duration_since(sight.last_observed).min(ttl / 2);
                sight.last_observed = now;
                sight.unchanged_for
            }
            _ => {
                let unchanged_for = Duration::ZERO;
                let sight = TrackedValue {
                    value: value.clone(),
                    last_observed: now,
                    unchanged_for,
                };
                self.0.insert(name.to_owned(), sight);
                unchanged_for
            }
        }
    }

    /// Forgets what is no longer there, so that memory follows the document.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| is_there(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn unchanged_after(seconds: &[u64]) -> Duration {
        let (mut seen, start) = (ChangeTracker::default(), Instant::now());
        let mut look = |at: &u64| seen.observe("lock", &1, TTL, start + Duration::from_secs(*at));
        seconds.iter().map(&mut look).last().unwrap()
    }

    #[test]
    fn the_first_look_says_nothing_about_before() {
        assert_eq!(unchanged_after(&[7]), Duration::ZERO);
    }

    #[test]
    fn frequent_looks_add_up_to_the_time_between() {
        assert_eq!(unchanged_after(&[0, 3, 6, 9, 12]), Duration::from_secs(12));
    }

    #[test]
    fn a_long_time_without_a_look_is_no_proof_of_death() {
        assert_eq!(unchanged_after(&[0, 3, 1000]), Duration::from_secs(8));
        assert!(
            unchanged_after(&[0, 1000, 2000]) >= TTL,
            "but it must end some time"
        );
    }

    #[test]
    fn a_change_starts_the_count_again() {
        let (mut seen, start) = (ChangeTracker::default(), Instant::now());
        seen.observe("lock", &1, TTL, start);
        seen.observe("lock", &2, TTL, start + TTL / 2);
        assert_eq!(seen.observe("lock", &2, TTL, start + TTL), TTL / 2);
    }
}

//! Tracks how long entries were observed unchanged. Expiry depends on this only: a timestamp of another
//! process is compared with its earlier ones, never with the local clock.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Per name: the last observed value, the time of observation, and how long the value is unchanged.
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
    /// Records an observation and returns how long the value is unchanged.
    ///
    /// The time between two observations counts at most half the TTL. During an outage of the document no holder
    /// can renew, and the first observation after it may precede the first renewal; the holder must not expire.
    pub(crate) fn observe(
        &mut self,
        name: &str,
        value: &T,
        ttl: Duration,
        now: Instant,
    ) -> Duration {
        match self.0.get_mut(name) {
            Some(observation) if observation.value == *value => {
                observation.unchanged_for += now
                    .saturating_duration_since(observation.last_observed)
                    .min(ttl / 2);
                observation.last_observed = now;
                observation.unchanged_for
            }
            _ => {
                let unchanged_for = Duration::ZERO;
                let observation = TrackedValue {
                    value: value.clone(),
                    last_observed: now,
                    unchanged_for,
                };
                self.0.insert(name.to_owned(), observation);
                unchanged_for
            }
        }
    }

    /// Drops names that left the document, which bounds memory.
    pub(crate) fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| exists(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn unchanged_after(seconds: &[u64]) -> Duration {
        let (mut tracker, start) = (ChangeTracker::default(), Instant::now());
        let mut observe =
            |at: &u64| tracker.observe("lock", &1, TTL, start + Duration::from_secs(*at));
        seconds.iter().map(&mut observe).last().unwrap()
    }

    #[test]
    fn first_observation_counts_no_unchanged_time() {
        assert_eq!(unchanged_after(&[7]), Duration::ZERO);
    }

    #[test]
    fn frequent_observations_add_up_to_the_elapsed_time() {
        assert_eq!(unchanged_after(&[0, 3, 6, 9, 12]), Duration::from_secs(12));
    }

    #[test]
    fn long_gap_between_observations_counts_only_in_part() {
        assert_eq!(unchanged_after(&[0, 3, 1000]), Duration::from_secs(8));
        assert!(
            unchanged_after(&[0, 1000, 2000]) >= TTL,
            "it must expire eventually"
        );
    }

    #[test]
    fn change_restarts_the_unchanged_time() {
        let (mut tracker, start) = (ChangeTracker::default(), Instant::now());
        tracker.observe("lock", &1, TTL, start);
        tracker.observe("lock", &2, TTL, start + TTL / 2);
        assert_eq!(tracker.observe("lock", &2, TTL, start + TTL), TTL / 2);
    }
}

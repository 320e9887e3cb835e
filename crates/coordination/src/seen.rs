//! How long something has been seen unchanged. The only judge of expiry: a stranger's timestamp is compared
//! with that stranger's earlier ones, never with a clock here.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Remembers, for each name, what was last seen there, when, and for how long it has been so.
#[derive(Debug)]
pub(crate) struct Seen<T>(BTreeMap<String, Sight<T>>);

#[derive(Debug)]
struct Sight<T> {
    value: T,
    last_look: Instant,
    unchanged: Duration,
}

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Clone + PartialEq> Seen<T> {
    /// Notes what is there now and tells how long it has been so, out of a time to live.
    ///
    /// The time between two looks counts for half the time to live at most. After an outage of the document the first
    /// look comes before the first renewal, perhaps; nobody could have renewed, and nobody is declared dead for it.
    pub(crate) fn unchanged(
        &mut self,
        name: &str,
        value: &T,
        ttl: Duration,
        now: Instant,
    ) -> Duration {
        match self.0.get_mut(name) {
            Some(sight) if sight.value == *value => {
                sight.unchanged += now.saturating_duration_since(sight.last_look).min(ttl / 2);
                sight.last_look = now;
                sight.unchanged
            }
            _ => {
                let unchanged = Duration::ZERO;
                let sight = Sight {
                    value: value.clone(),
                    last_look: now,
                    unchanged,
                };
                self.0.insert(name.to_owned(), sight);
                unchanged
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

    fn after_looks_at(seconds: &[u64]) -> Duration {
        let (mut seen, start) = (Seen::default(), Instant::now());
        let mut look = |at: &u64| seen.unchanged("lock", &1, TTL, start + Duration::from_secs(*at));
        seconds.iter().map(&mut look).last().unwrap()
    }

    #[test]
    fn the_first_look_says_nothing_about_before() {
        assert_eq!(after_looks_at(&[7]), Duration::ZERO);
    }

    #[test]
    fn frequent_looks_add_up_to_the_time_between() {
        assert_eq!(after_looks_at(&[0, 3, 6, 9, 12]), Duration::from_secs(12));
    }

    #[test]
    fn a_long_time_without_a_look_is_no_proof_of_death() {
        assert_eq!(after_looks_at(&[0, 3, 1000]), Duration::from_secs(8));
        assert!(
            after_looks_at(&[0, 1000, 2000]) >= TTL,
            "but it must end some time"
        );
    }

    #[test]
    fn a_change_starts_the_count_again() {
        let (mut seen, start) = (Seen::default(), Instant::now());
        seen.unchanged("lock", &1, TTL, start);
        seen.unchanged("lock", &2, TTL, start + TTL / 2);
        assert_eq!(seen.unchanged("lock", &2, TTL, start + TTL), TTL / 2);
    }
}

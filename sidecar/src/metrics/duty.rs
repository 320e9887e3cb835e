//! Since when this sidecar has to take the snapshots, and when it last did.
//!
//! An age that stops while nobody leads would be silent when it matters most, so the duty is kept in that
//! case; it ends when another sidecar is known to have it.

use jiff::Timestamp;
use mainstay_archive::name::Kind;

use crate::state::Standing;

/// The duty of one sidecar.
#[derive(Clone, Copy, Debug)]
pub(super) struct Duty {
    since: Option<Timestamp>,
    full: Option<Timestamp>,
    delta: Option<Timestamp>,
}

impl Duty {
    /// Nobody else is known to have it.
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            since: Some(now),
            full: None,
            delta: None,
        }
    }

    pub(super) fn standing(&mut self, standing: Standing, now: Timestamp) {
        match standing {
            Standing::Leader | Standing::Unknown => self.since = self.since.or(Some(now)),
            // What this sidecar knows of successes grows old from here on.
            Standing::Follower | Standing::Learner => {
                *self = Self {
                    since: None,
                    full: None,
                    delta: None,
                }
            }
        }
    }

    pub(super) fn succeeded(&mut self, kind: Kind, at: Timestamp) {
        let last = match kind {
            Kind::Full => &mut self.full,
            Kind::Delta => &mut self.delta,
        };
        *last = (*last).max(Some(at));
    }

    pub(super) fn age_seconds(&self, kind: Kind, now: Timestamp) -> f64 {
        let Some(since) = self.since else {
            return 0.0;
        };
        let last = match kind {
            Kind::Full => self.full,
            Kind::Delta => self.delta,
        };
        let age = now.duration_since(last.unwrap_or(since));
        age.as_secs_f64().max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ages(duty: &Duty, second: i64) -> (f64, f64) {
        let now = at(second);
        let age = |kind| duty.age_seconds(kind, now);
        (age(Kind::Full), age(Kind::Delta))
    }

    #[test]
    fn a_leader_counts_from_its_success_and_before_one_from_its_duty() {
        let mut duty = Duty::new(at(100));
        duty.standing(Standing::Leader, at(110));
        assert_eq!(ages(&duty, 130), (30.0, 30.0));
        duty.succeeded(Kind::Delta, at(125));
        assert_eq!(ages(&duty, 130), (30.0, 5.0));
    }

    #[test]
    fn what_the_store_held_before_counts_as_old_as_it_is() {
        let mut duty = Duty::new(at(100));
        duty.standing(Standing::Follower, at(100));
        duty.standing(Standing::Leader, at(110));
        duty.succeeded(Kind::Full, at(10));
        assert_eq!(ages(&duty, 110), (100.0, 0.0));
        duty.succeeded(Kind::Full, at(5));
        assert_eq!(ages(&duty, 110), (100.0, 0.0), "an older one was taken");
    }

    #[test]
    fn the_age_grows_while_nobody_leads_and_ends_when_another_does() {
        let mut duty = Duty::new(at(0));
        duty.standing(Standing::Leader, at(0));
        duty.succeeded(Kind::Full, at(50));
        duty.standing(Standing::Unknown, at(60));
        assert_eq!(ages(&duty, 90), (40.0, 90.0));
        duty.standing(Standing::Follower, at(100));
        assert_eq!(ages(&duty, 500), (0.0, 0.0));
        duty.standing(Standing::Unknown, at(600));
        assert_eq!(ages(&duty, 610), (10.0, 10.0), "old successes came back");
    }
}

//! Since when this sidecar is responsible for snapshots, and when it last took one.
//!
//! The sidecar stays responsible while no leader is known, so that the snapshot age keeps growing and alerts fire. It
//! stops being responsible only when another sidecar is known to lead.

use jiff::Timestamp;
use mainstay_archive::name::SnapshotKind;

use crate::state::SidecarRole;

/// Times of one sidecar; `since` is `None` while another sidecar is responsible.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotAges {
    responsible_since: Option<Timestamp>,
    last_full: Option<Timestamp>,
    last_delta: Option<Timestamp>,
}

impl SnapshotAges {
    /// Responsible from the start: no other leader is known yet.
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            responsible_since: Some(now),
            last_full: None,
            last_delta: None,
        }
    }

    pub(super) fn set_role(&mut self, standing: SidecarRole, now: Timestamp) {
        match standing {
            SidecarRole::Leader | SidecarRole::Unknown => {
                self.responsible_since = self.responsible_since.or(Some(now));
            }
            // The new leader's successes are not visible here, so the recorded ones would be stale.
            SidecarRole::Follower | SidecarRole::Learner => {
                *self = Self {
                    responsible_since: None,
                    last_full: None,
                    last_delta: None,
                }
            }
        }
    }

    pub(super) fn record_success(&mut self, kind: SnapshotKind, at: Timestamp) {
        let last = match kind {
            SnapshotKind::Full => &mut self.last_full,
            SnapshotKind::Delta => &mut self.last_delta,
        };
        *last = (*last).max(Some(at));
    }

    pub(super) fn age_seconds(&self, kind: SnapshotKind, now: Timestamp) -> f64 {
        let Some(since) = self.responsible_since else {
            return 0.0;
        };
        let last = match kind {
            SnapshotKind::Full => self.last_full,
            SnapshotKind::Delta => self.last_delta,
        };
        let age = now.duration_since(last.unwrap_or(since));
        age.as_secs_f64().max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timestamp(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ages_at(duty: &SnapshotAges, second: i64) -> (f64, f64) {
        let now = timestamp(second);
        let age = |kind| duty.age_seconds(kind, now);
        (age(SnapshotKind::Full), age(SnapshotKind::Delta))
    }

    #[test]
    fn age_counts_from_last_success_or_else_from_the_start() {
        let mut duty = SnapshotAges::new(timestamp(100));
        duty.set_role(SidecarRole::Leader, timestamp(110));
        assert_eq!(ages_at(&duty, 130), (30.0, 30.0));
        duty.record_success(SnapshotKind::Delta, timestamp(125));
        assert_eq!(ages_at(&duty, 130), (30.0, 5.0));
    }

    #[test]
    fn snapshot_found_in_the_store_keeps_its_real_age() {
        let mut duty = SnapshotAges::new(timestamp(100));
        duty.set_role(SidecarRole::Follower, timestamp(100));
        duty.set_role(SidecarRole::Leader, timestamp(110));
        duty.record_success(SnapshotKind::Full, timestamp(10));
        assert_eq!(ages_at(&duty, 110), (100.0, 0.0));
        duty.record_success(SnapshotKind::Full, timestamp(5));
        assert_eq!(
            ages_at(&duty, 110),
            (100.0, 0.0),
            "an older success replaced a newer one"
        );
    }

    #[test]
    fn age_grows_without_a_leader_and_is_reset_on_a_follower() {
        let mut duty = SnapshotAges::new(timestamp(0));
        duty.set_role(SidecarRole::Leader, timestamp(0));
        duty.record_success(SnapshotKind::Full, timestamp(50));
        duty.set_role(SidecarRole::Unknown, timestamp(60));
        assert_eq!(ages_at(&duty, 90), (40.0, 90.0));
        duty.set_role(SidecarRole::Follower, timestamp(100));
        assert_eq!(ages_at(&duty, 500), (0.0, 0.0));
        duty.set_role(SidecarRole::Unknown, timestamp(600));
        assert_eq!(
            ages_at(&duty, 610),
            (10.0, 10.0),
            "stale successes were kept"
        );
    }
}

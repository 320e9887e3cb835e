//! Applies the policy to full snapshots: one per hour, day or week, or only the newest.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{DeletionGuard, DeletionReason, KeepReason, RetentionClock, RetentionPolicy};
use crate::catalogue::SnapshotObject;

const HOUR: i64 = 60 * 60;
const DAY: i64 = 24 * HOUR;
/// Number of days before today that keep one snapshot each.
const DAILY_BUCKETS: i64 = 7;
const DAYS_IN_WEEK: i64 = 7;
/// Number of weeks before those days that keep one snapshot each.
const WEEKLY_BUCKETS: i64 = 4;

/// A period before now, in UTC hours, days and weeks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimeBucket {
    /// The current hour, and the future (clock skew). Every snapshot in it is kept.
    CurrentHour,
    /// An earlier hour of today.
    Hour {
        /// Number of hours ago.
        ago: i64,
    },
    /// One of the seven days before today.
    Day {
        /// Number of days ago, 1 to 7.
        ago: i64,
    },
    /// One of four weeks, the first of which ends eight days ago.
    Week {
        /// Number of the week, 1 to 4.
        ago: i64,
    },
    /// Before all of these.
    Older,
}

impl TimeBucket {
    /// Returns the period of a snapshot created at this unix second.
    pub fn of(created: i64, now: Timestamp) -> Self {
        let now = now.as_second();
        let days = now.div_euclid(DAY).saturating_sub(created.div_euclid(DAY));
        let hours = now
            .div_euclid(HOUR)
            .saturating_sub(created.div_euclid(HOUR));
        // Weeks count back from the end of yesterday: week 0 is the seven single days.
        let weeks = days.saturating_sub(1) / DAYS_IN_WEEK;
        if hours <= 0 {
            Self::CurrentHour
        } else if days <= 0 {
            Self::Hour { ago: hours }
        } else if days <= DAILY_BUCKETS {
            Self::Day { ago: days }
        } else if weeks <= WEEKLY_BUCKETS {
            Self::Week { ago: weeks }
        } else {
            Self::Older
        }
    }

    /// Position of this kind of period, from the present to the past.
    pub(super) fn rank(self) -> u8 {
        match self {
            Self::CurrentHour => 0,
            Self::Hour { .. } => 1,
            Self::Day { .. } => 2,
            Self::Week { .. } => 3,
            Self::Older => 4,
        }
    }
}

/// Decision of the policy for each full snapshot, by key.
pub(super) fn apply_policy<'a>(
    fulls: &'a [SnapshotObject],
    policy: RetentionPolicy,
    clock: RetentionClock,
    guard: &DeletionGuard,
) -> BTreeMap<&'a str, Result<KeepReason, DeletionReason>> {
    // Damaged snapshots come last, so that they never take the slot of an intact one.
    let is_damaged = |full: &&SnapshotObject| guard.damaged.contains(&full.key);
    let newest_first = || fulls.iter().rev();
    let intact = newest_first().filter(|full| !is_damaged(full));
    let candidates = intact.chain(newest_first().filter(is_damaged));
    let mut taken = BTreeSet::new();
    let mut count = 0_usize;
    candidates
        .map(|full| {
            let decision = match policy {
                RetentionPolicy::LimitBased { limit } => {
                    count = count.saturating_add(1);
                    if count <= limit.max(1) {
                        Ok(KeepReason::WithinLimit)
                    } else {
                        Err(DeletionReason::OverLimit)
                    }
                }
                RetentionPolicy::Exponential => match clock.bucket_by_name(full) {
                    // The store's clock refutes the name: a node whose clock was behind wrote it, or it was copied.
                    bucket if !clock.confirms(bucket, full) => Ok(KeepReason::NotExpiredInStore),
                    TimeBucket::Older => Err(DeletionReason::Expired),
                    TimeBucket::CurrentHour => {
                        Ok(KeepReason::LatestInBucket(TimeBucket::CurrentHour))
                    }
                    bucket if taken.insert(bucket) => Ok(KeepReason::LatestInBucket(bucket)),
                    bucket => Err(DeletionReason::Thinned(bucket)),
                },
            };
            let decision = if clock.is_in_future(full) {
                Ok(KeepReason::FutureTime)
            } else {
                decision
            };
            let damaged = guard.damaged.contains(&full.key);
            let decision = decision.map_err(|reason| {
                if damaged {
                    DeletionReason::Damaged
                } else {
                    reason
                }
            });
            (full.key.as_str(), decision)
        })
        .collect()
}

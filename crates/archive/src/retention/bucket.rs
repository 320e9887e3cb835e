//! Which full snapshots the policy keeps: one for each hour, day, week, or simply the newest.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{DeletionGuard, KeepReason, RetentionPolicy, DeletionReason};
use crate::catalogue::SnapshotObject;

const HOUR: i64 = 60 * 60;
const DAY: i64 = 24 * HOUR;
/// Days before today that keep one snapshot each.
const DAILY_BUCKETS: i64 = 7;
const DAYS_IN_WEEK: i64 = 7;
/// Weeks before those days that keep one snapshot each.
const WEEKLY_BUCKETS: i64 = 4;

/// A stretch of time, counted back from now in hours, days and weeks of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimeBucket {
    /// The hour that is running; a clock that is ahead counts as now. Everything in it stays.
    CurrentHour,
    /// An earlier hour of today.
    Hour {
        /// How many hours ago.
        ago: i64,
    },
    /// One of the seven days before today.
    Day {
        /// How many days ago.
        ago: i64,
    },
    /// One of four weeks, the first of which ends eight days ago.
    Week {
        /// From 1.
        ago: i64,
    },
    /// Before all that.
    Older,
}

impl TimeBucket {
    /// Where a snapshot belongs that was created at this second.
    pub fn of(created: i64, now: Timestamp) -> Self {
        let now = now.as_second();
        let days = now.div_euclid(DAY).saturating_sub(created.div_euclid(DAY));
        let hours = now
            .div_euclid(HOUR)
            .saturating_sub(created.div_euclid(HOUR));
        // Weeks are counted back from the end of yesterday: the first one is the seven single days.
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
}

/// What the policy says of each full snapshot, by key. Damaged ones are asked last.
pub(super) fn apply_policy<'a>(
    fulls: &'a [SnapshotObject],
    policy: RetentionPolicy,
    now: Timestamp,
    guard: &DeletionGuard,
) -> BTreeMap<&'a str, Result<KeepReason, DeletionReason>> {
    let is_damaged = |full: &&SnapshotObject| guard.damaged.contains(&full.key);
    let newest_first = || fulls.iter().rev();
    let sound = newest_first().filter(|full| !is_damaged(full));
    let in_turn = sound.chain(newest_first().filter(is_damaged));
    let mut taken = BTreeSet::new();
    let mut count = 0_usize;
    in_turn
        .map(|full| {
            let verdict = match policy {
                RetentionPolicy::LimitBased { limit: most } => {
                    count = count.saturating_add(1);
                    if count <= most.max(1) {
                        Ok(KeepReason::WithinLimit)
                    } else {
                        Err(DeletionReason::OverLimit)
                    }
                }
                RetentionPolicy::Exponential => match TimeBucket::of(full.name.created, now) {
                    TimeBucket::Older => Err(DeletionReason::Expired),
                    TimeBucket::CurrentHour => Ok(KeepReason::LatestInBucket(TimeBucket::CurrentHour)),
                    bucket if taken.insert(bucket) => Ok(KeepReason::LatestInBucket(bucket)),
                    bucket => Err(DeletionReason::Thinned(bucket)),
                },
            };
            let damaged = guard.damaged.contains(&full.key);
            let verdict = verdict.map_err(|reason| if damaged { DeletionReason::Damaged } else { reason });
            (full.key.as_str(), verdict)
        })
        .collect()
}

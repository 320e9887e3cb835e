//! Which full snapshots the policy keeps: one for each hour, day, week, or simply the newest.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{Guard, Keep, Policy, Reason};
use crate::catalogue::Object;

const HOUR: i64 = 60 * 60;
const DAY: i64 = 24 * HOUR;
/// Days before today that keep one snapshot each.
const DAYS: i64 = 7;
const DAYS_IN_WEEK: i64 = 7;
/// Weeks before those days that keep one snapshot each.
const WEEKS: i64 = 4;

/// A stretch of time, counted back from now in hours, days and weeks of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bucket {
    /// The hour that is running; a clock that is ahead counts as now. Everything in it stays.
    ThisHour,
    /// An earlier hour of today.
    Hour {
        /// How many hours ago.
        back: i64,
    },
    /// One of the seven days before today.
    Day {
        /// How many days ago.
        back: i64,
    },
    /// One of four weeks, the first of which ends eight days ago.
    Week {
        /// From 1.
        back: i64,
    },
    /// Before all that.
    Earlier,
}

impl Bucket {
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
            Self::ThisHour
        } else if days <= 0 {
            Self::Hour { back: hours }
        } else if days <= DAYS {
            Self::Day { back: days }
        } else if weeks <= WEEKS {
            Self::Week { back: weeks }
        } else {
            Self::Earlier
        }
    }
}

/// What the policy says of each full snapshot, by key. Damaged ones are asked last.
pub(super) fn slots<'a>(
    fulls: &'a [Object],
    policy: Policy,
    now: Timestamp,
    guard: &Guard,
) -> BTreeMap<&'a str, Result<Keep, Reason>> {
    let is_damaged = |full: &&Object| guard.damaged.contains(&full.key);
    let newest_first = || fulls.iter().rev();
    let sound = newest_first().filter(|full| !is_damaged(full));
    let in_turn = sound.chain(newest_first().filter(is_damaged));
    let mut taken = BTreeSet::new();
    let mut count = 0_usize;
    in_turn
        .map(|full| {
            let verdict = match policy {
                Policy::LimitBased { most } => {
                    count = count.saturating_add(1);
                    if count <= most.max(1) {
                        Ok(Keep::WithinLimit)
                    } else {
                        Err(Reason::OverLimit)
                    }
                }
                Policy::Exponential => match Bucket::of(full.name.created, now) {
                    Bucket::Earlier => Err(Reason::Expired),
                    Bucket::ThisHour => Ok(Keep::LatestOf(Bucket::ThisHour)),
                    bucket if taken.insert(bucket) => Ok(Keep::LatestOf(bucket)),
                    bucket => Err(Reason::Thinned(bucket)),
                },
            };
            let damaged = guard.damaged.contains(&full.key);
            let verdict = verdict.map_err(|reason| if damaged { Reason::Damaged } else { reason });
            (full.key.as_str(), verdict)
        })
        .collect()
}

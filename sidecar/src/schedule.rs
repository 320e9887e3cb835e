//! Cron schedules with five fields, in UTC.

use std::fmt;
use std::str::FromStr;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// An invalid schedule.
#[derive(Debug, thiserror::Error)]
#[error(
    "invalid schedule {text:?}: {reason}; expected five fields: minute, hour, day of month, month, day of week"
)]
#[non_exhaustive]
pub struct ScheduleError {
    pub(crate) text: String,
    pub(crate) reason: String,
}

/// A cron schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    text: String,
    cron: Cron,
}

impl Schedule {
    /// The next time after `now`; `None` for a date that never comes, like 30 February.
    pub(crate) fn next_after(&self, now: Timestamp) -> Option<Timestamp> {
        let now = now.to_zoned(TimeZone::UTC);
        let next = self.cron.find_next_occurrence(&now, false).ok()?;
        Some(next.timestamp())
    }

    /// The last time at or before `now`.
    pub(crate) fn last_before(&self, now: Timestamp) -> Option<Timestamp> {
        let now = now.to_zoned(TimeZone::UTC);
        let last = self.cron.find_previous_occurrence(&now, true).ok()?;
        Some(last.timestamp())
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .build();
        match parser.parse(text) {
            Ok(cron) => Ok(Self {
                text: text.to_owned(),
                cron,
            }),
            Err(error) => Err(ScheduleError {
                text: text.to_owned(),
                reason: error.to_string(),
            }),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The next time of a schedule. Tolerates changes of the system clock.
#[derive(Clone, Debug)]
pub(crate) struct ScheduleTimer {
    schedule: Schedule,
    next: Option<Timestamp>,
}

impl ScheduleTimer {
    /// Waits for the first time after `now`.
    pub(crate) fn new(schedule: Schedule, now: Timestamp) -> Self {
        let next = schedule.next_after(now);
        Self { schedule, next }
    }

    /// The next time; `None` if there is none.
    pub(crate) fn next_at(&self) -> Option<Timestamp> {
        self.next
    }

    /// Whether the time is reached; then moves to the next one.
    pub(crate) fn poll_due(&mut self, now: Timestamp) -> bool {
        let is_due = self.next.is_some_and(|at| at <= now);
        let next = self.schedule.next_after(now);
        self.next = match self.next {
            // If the clock was set back, `at` would be too far away.
            Some(at) if !is_due => next.map(|next| next.min(at)),
            _ => next,
        };
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn hourly_schedule_has_last_and_next_full_hour() {
        let schedule: Schedule = "0 */1 * * *".parse().unwrap();
        let now = parse_time("2026-11-16T06:30:15Z");
        assert_eq!(
            schedule.next_after(now),
            Some(parse_time("2026-11-16T07:00:00Z"))
        );
        assert_eq!(
            schedule.last_before(now),
            Some(parse_time("2026-11-16T06:00:00Z"))
        );
    }

    #[test]
    fn exact_schedule_time_is_the_last_and_not_the_next() {
        let schedule: Schedule = "0 0 */3 * *".parse().unwrap();
        let now = parse_time("2026-11-16T00:00:00Z");
        assert_eq!(schedule.last_before(now), Some(now));
        assert_eq!(
            schedule.next_after(now),
            Some(parse_time("2026-11-19T00:00:00Z"))
        );
    }

    #[test]
    fn schedule_time_is_due_once() {
        let mut upcoming = ScheduleTimer::new(
            "0 * * * *".parse().unwrap(),
            parse_time("2026-11-16T06:30:00Z"),
        );
        assert!(!upcoming.poll_due(parse_time("2026-11-16T06:59:59Z")));
        assert!(upcoming.poll_due(parse_time("2026-11-16T07:00:00Z")));
        assert!(!upcoming.poll_due(parse_time("2026-11-16T07:00:00Z")));
        assert_eq!(upcoming.next_at(), Some(parse_time("2026-11-16T08:00:00Z")));
    }

    #[test]
    fn clock_set_back_does_not_delay_the_schedule() {
        let mut upcoming = ScheduleTimer::new(
            "0 * * * *".parse().unwrap(),
            parse_time("2027-11-16T06:30:00Z"),
        );
        // The clock was a year ahead.
        assert!(!upcoming.poll_due(parse_time("2026-11-16T06:31:00Z")));
        assert_eq!(upcoming.next_at(), Some(parse_time("2026-11-16T07:00:00Z")));
        assert!(upcoming.poll_due(parse_time("2026-11-16T07:00:01Z")));
    }

    #[test]
    fn impossible_date_has_no_next_time() {
        let schedule: Schedule = "0 0 30 2 *".parse().unwrap();
        assert_eq!(
            schedule.next_after(parse_time("2026-11-16T00:00:00Z")),
            None
        );
    }

    #[test]
    fn invalid_schedule_error_names_the_expected_format() {
        for text in ["", "hourly", "0 * * *", "61 * * * *", "0 0 0 * * *"] {
            let error = text.parse::<Schedule>().unwrap_err().to_string();
            assert!(error.contains("five fields"), "{text}: {error}");
        }
    }
}

//! A cron schedule of five fields, in UTC.

use std::fmt;
use std::str::FromStr;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// When something is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule(Cron);

/// Not a schedule.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is no cron schedule of five fields")]
pub struct ScheduleError {
    /// As given.
    pub text: String,
    /// What is wrong with it.
    pub source: croner::errors::CronError,
}

impl Schedule {
    /// The next time after this one; `None` for a schedule that never comes, like the 30th of February.
    pub fn next_after(&self, time: Timestamp) -> Option<Timestamp> {
        let time = time.to_zoned(TimeZone::UTC);
        let next = self.0.find_next_occurrence(&time, false).ok()?;
        Some(next.timestamp())
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .build();
        match parser.parse(text) {
            Ok(cron) => Ok(Self(cron)),
            Err(source) => Err(ScheduleError {
                text: text.to_owned(),
                source,
            }),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str) -> Option<String> {
        let schedule: Schedule = schedule.parse().unwrap();
        let next = schedule.next_after(after.parse().unwrap())?;
        Some(next.to_string())
    }

    #[test]
    fn schedules_of_the_peer_come_when_they_should() {
        let table = [
            (
                "0 0 */3 * *",
                "2026-11-16T10:30:00Z",
                "2026-11-19T00:00:00Z",
            ),
            (
                "0 0 */3 * *",
                "2026-11-28T00:00:00Z",
                "2026-12-01T00:00:00Z",
            ),
            (
                "0 */1 * * *",
                "2026-11-16T10:59:59.9Z",
                "2026-11-16T11:00:00Z",
            ),
            ("30 7 * * 1", "2026-11-16T07:30:00Z", "2026-11-23T07:30:00Z"),
            ("@daily", "2026-11-16T07:30:00Z", "2026-11-17T00:00:00Z"),
        ];
        for (schedule, after, expected) in table {
            assert_eq!(
                next(schedule, after).as_deref(),
                Some(expected),
                "{schedule}"
            );
        }
    }

    #[test]
    fn a_day_that_never_comes_is_no_time() {
        assert_eq!(next("0 0 30 2 *", "2026-11-16T10:30:00Z"), None);
    }

    #[test]
    fn what_is_no_schedule_is_refused_with_its_text() {
        for text in ["", "every day", "0 0 * *", "0 0 0 * * *", "61 * * * *"] {
            let error = text.parse::<Schedule>().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}

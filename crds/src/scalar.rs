//! Strings with a grammar: durations, schedules, URLs.
//!
//! **Comes in**: text the API server has matched against a pattern. **Goes out**: the same text on
//! writing, a typed value on asking. **Holds**: what was read is what is written, so `43200s` never
//! becomes `12h`; a value no machine can hold (`99999999999h`) is an error where it is used, never
//! a resource that cannot be read.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Numbers with units, one or more, no sign: what [`Span`] accepts.
pub const DURATION_PATTERN: &str = r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$";
/// As [`DURATION_PATTERN`], or a bare `0`: what [`RetryPolicy`] accepts.
pub const TIMEOUT_PATTERN: &str = r"^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$";
/// Any five fields: what [`CronSchedule`] accepts.
pub const CRON_PATTERN: &str = r"^\S+(\s+\S+){4}$";

/// One field of a schedule: `*`, `value`, `range`, `start/step` or `*/step`.
macro_rules! field {
    ($value:literal, $range:literal, $start:literal, $step:literal) => {
        concat!(
            r"(\*|", $value, "|", $range, "|(", $start, r")/(", $step, r")|\*/(", $step, "))"
        )
    };
}

/// The five fields a [`Schedule`] has: minute, hour, day, month, weekday.
///
/// This is a part of what cron implementations know: no lists, no names, no `@daily`, no stepped
/// ranges, and Sunday is 7.
pub const SCHEDULE_PATTERN: &str = concat!(
    "^",
    field!(
        "[1-5]?[0-9]",
        "[1-5]?[0-9]-[1-5]?[0-9]",
        "[1-9]|[1-5][0-9]",
        "[1-9]|[1-5][0-9]|60"
    ),
    r"\s+",
    field!(
        "1?[0-9]|2[0-3]",
        "[0-9]-(1?[0-9]|2[0-3])|1[0-9]-(1[0-9]|2[0-3])|2[0-3]-2[0-3]",
        "[1-9]|1[0-9]|2[0-3]",
        "[1-9]|1[0-9]|2[0-4]"
    ),
    r"\s+",
    field!(
        "[1-9]|[12][0-9]|3[01]",
        "[1-9]-([1-9]|[12][0-9]|3[01])|[12][0-9]-([12][0-9]|3[01])|3[01]-3[01]",
        "[1-9]|[12][0-9]|30",
        "[1-9]|[12][0-9]|3[01]"
    ),
    r"\s+",
    field!(
        "[1-9]|1[0-2]",
        "[1-9]-([1-9]|1[0-2])|1[0-2]-1[0-2]",
        "[1-9]|1[0-2]",
        "[1-9]|1[0-2]"
    ),
    r"\s+",
    field!("[1-7]", "[1-6]-[1-7]", "[1-6]", "[1-7]"),
    "$"
);

/// A string type whose schema is a string with the given constraints.
macro_rules! text {
    ($(#[$doc:meta])* $name:ident { $($constraint:tt)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            /// The text as it was written.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", $($constraint)* })
            }
        }
    };
}

text! {
    /// A length of time: `300s`, `1h30m`, `1.5h`. Units are `ns`, `us`, `µs`, `ms`, `s`, `m`, `h`.
    DurationString { "pattern": DURATION_PATTERN }
}

text! {
    /// How long to wait: a [`Span`], or `0` for no limit.
    RetryPolicy { "pattern": TIMEOUT_PATTERN }
}

text! {
    /// When something recurs, in the grammar etcd-druid admits: five fields, each `*`, `n`, `a-b`,
    /// `a/n` or `*/n`.
    Schedule { "pattern": SCHEDULE_PATTERN }
}

text! {
    /// When something recurs, as a cron expression of five fields: lists, names and stepped ranges
    /// are allowed. The controller reports one it cannot read in a condition.
    CronSchedule { "pattern": CRON_PATTERN, "maxLength": 100 }
}

text! {
    /// The address of a server: `http://` or `https://`, a host, optionally a port.
    Url { "maxLength": 2048 }
}

/// Why a piece of text is not a length of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DurationError {
    /// There is no number where one has to be.
    #[error("no number at byte {at} of \"{text}\"")]
    ExpectedNumber {
        /// The whole text.
        text: String,
        /// Where it stops making sense.
        at: usize,
    },
    /// The letters after a number are no unit.
    #[error("no unit of time at byte {at} of \"{text}\"")]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// Where it stops making sense.
        at: usize,
    },
    /// More than some 584 years.
    #[error("\"{text}\" is longer than can be counted")]
    TooLong {
        /// The whole text.
        text: String,
    },
}

impl DurationString {
    /// The length as a number, rounded down to nanoseconds.
    pub fn to_duration(&self) -> Result<Duration, DurationError> {
        parse_duration(&self.0)
    }
}

impl RetryPolicy {
    /// The limit, or `None` when there is none.
    pub fn limit(&self) -> Result<Option<Duration>, DurationError> {
        if self.0 == "0" {
            return Ok(None);
        }
        parse_duration(&self.0).map(|limit| (!limit.is_zero()).then_some(limit))
    }
}

/// Longest first, so that `ms` is not read as `m`.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let overlong = || DurationError::TooLong {
        text: text.to_owned(),
    };
    let mut rest = text;
    let mut total: u128 = 0;
    loop {
        let at = text.len() - rest.len();
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(end);
        let (unit, scale) = UNITS
            .iter()
            .find(|(unit, _)| tail.starts_with(unit))
            .ok_or_else(|| DurationError::UnknownUnit {
                text: text.to_owned(),
                at: at + end,
            })?;
        let number = split_decimal(number).ok_or_else(|| DurationError::ExpectedNumber {
            text: text.to_owned(),
            at,
        })?;
        let part = scale_decimal(number, *scale).ok_or_else(overlong)?;
        total = total.checked_add(part).ok_or_else(overlong)?;
        rest = &tail[unit.len()..];
        if rest.is_empty() {
            return u64::try_from(total)
                .map(Duration::from_nanos)
                .map_err(|_| overlong());
        }
    }
}

/// The digits before and after the point, where there are digits.
fn split_decimal(number: &str) -> Option<(&str, &str)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let all = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (all(whole) && all(fraction)).then_some((whole, fraction))
}

/// A decimal number times `scale`, unless that is too large.
fn scale_decimal((whole, fraction): (&str, &str), scale: u128) -> Option<u128> {
    // Digits past the eighteenth weigh less than a nanosecond of any unit.
    let fraction = &fraction[..fraction.len().min(18)];
    let weight = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let below = fraction.parse::<u128>().ok()? * scale / weight;
    whole
        .parse::<u128>()
        .ok()?
        .checked_mul(scale)?
        .checked_add(below)
}

#[cfg(test)]
mod tests;

//! Strings with a grammar: durations, schedules, URLs.
//!
//! Each type keeps the text that the API server matched against a pattern, and parses it on request.
//!
//! **Invariants**: the text that was read is the text that is written, so `43200s` never becomes `12h`. A value out of
//! range (`99999999999h`) is an error where it is used; the resource that contains it stays readable.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// One or more numbers with units, no sign: the pattern of [`DurationString`].
pub const DURATION_PATTERN: &str = r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$";
/// Like [`DURATION_PATTERN`], or a bare `0`: the pattern of [`RetryPolicy`].
pub const TIMEOUT_PATTERN: &str = r"^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$";
/// Any five fields: the pattern of [`CronSchedule`].
pub const CRON_PATTERN: &str = r"^\S+(\s+\S+){4}$";

/// One field of a schedule: `*`, `value`, `range`, `start/step` or `*/step`.
macro_rules! field {
    ($value:literal, $range:literal, $start:literal, $step:literal) => {
        concat!(
            r"(\*|", $value, "|", $range, "|(", $start, r")/(", $step, r")|\*/(", $step, "))"
        )
    };
}

/// The five fields of a [`Schedule`]: minute, hour, day, month, weekday.
///
/// It is a subset of cron: no lists, no names, no `@daily`, no stepped ranges, and Sunday is 7.
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

/// Declares a string type whose schema is a string with the given constraints.
macro_rules! text {
    ($(#[$doc:meta])* $name:ident { $($constraint:tt)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            /// The original text.
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
    /// Duration: `300s`, `1h30m`, `1.5h`. Units are `ns`, `us`, `µs`, `ms`, `s`, `m`, `h`.
    DurationString { "pattern": DURATION_PATTERN }
}

text! {
    /// Timeout: a [`DurationString`], or `0` for no timeout.
    RetryPolicy { "pattern": TIMEOUT_PATTERN }
}

text! {
    /// Schedule in the grammar of etcd-druid: five fields, each `*`, `n`, `a-b`, `a/n` or `*/n`.
    Schedule { "pattern": SCHEDULE_PATTERN }
}

text! {
    /// Schedule as a cron expression of five fields; lists, names and stepped ranges are allowed. The
    /// controller reports an invalid expression in a condition.
    CronSchedule { "pattern": CRON_PATTERN, "maxLength": 100 }
}

text! {
    /// URL of a server: `http://` or `https://`, a host, optionally a port.
    Url { "maxLength": 2048 }
}

/// Why a text is not a valid duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DurationError {
    /// A number is missing or invalid.
    #[error("invalid duration \"{text}\": expected a number at byte {at}")]
    ExpectedNumber {
        /// The invalid text.
        text: String,
        /// Byte offset of the error in the text.
        at: usize,
    },
    /// A unit is missing or unknown.
    #[error("invalid duration \"{text}\": expected a unit (ns, us, ms, s, m, h) at byte {at}")]
    UnknownUnit {
        /// The invalid text.
        text: String,
        /// Byte offset of the error in the text.
        at: usize,
    },
    /// More than about 584 years, the range of 64-bit nanoseconds.
    #[error("invalid duration \"{text}\": longer than 584 years")]
    TooLong {
        /// The invalid text.
        text: String,
    },
}

impl DurationString {
    /// The duration, rounded down to nanoseconds.
    pub fn to_duration(&self) -> Result<Duration, DurationError> {
        parse_duration(&self.0)
    }
}

impl RetryPolicy {
    /// The timeout, or `None` for no timeout.
    pub fn limit(&self) -> Result<Option<Duration>, DurationError> {
        if self.0 == "0" {
            return Ok(None);
        }
        // `0s` and `0` both mean no timeout.
        parse_duration(&self.0).map(|limit| (!limit.is_zero()).then_some(limit))
    }
}

/// Two-letter units come first, so that `ms` is not read as `m`.
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

/// The digits before and after the decimal point, or `None` if there are none.
fn split_decimal(number: &str) -> Option<(&str, &str)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let all = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (all(whole) && all(fraction)).then_some((whole, fraction))
}

/// A decimal number times `scale`, or `None` on overflow.
fn scale_decimal((whole, fraction): (&str, &str), scale: u128) -> Option<u128> {
    // Further digits are worth less than a nanosecond in any unit; without the cut they could overflow.
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

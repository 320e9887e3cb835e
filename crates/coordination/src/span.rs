//! Serializes durations in human-readable form: `30s`, `1m`, `1s 500ms`.

use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serializer, de::Error};

pub(crate) fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    let span = SignedDuration::try_from(*span).unwrap_or(SignedDuration::MAX);
    serializer.collect_str(&format_args!("{span:#}"))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let span: SignedDuration = text.parse().map_err(D::Error::custom)?;
    Duration::try_from(span)
        .map_err(|_| D::Error::custom(format!("invalid duration {text:?}: must not be negative")))
}

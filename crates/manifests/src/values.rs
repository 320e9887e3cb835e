//! Single values of a spec: the default if absent, an error with the path of the field if invalid.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use mainstay_crds::scalar::DurationString;

use crate::error::RenderError;
use crate::quantity;

pub(crate) fn port_or_default(
    field: &'static str,
    given: Option<i32>,
    default: u16,
) -> Result<u16, RenderError> {
    match given {
        None => Ok(default),
        Some(port) => match u16::try_from(port) {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(RenderError::InvalidPort { field, port }),
        },
    }
}

pub(crate) fn bytes_or_default(
    field: &'static str,
    given: Option<&Quantity>,
    default: u64,
) -> Result<u64, RenderError> {
    given.map_or(Ok(default), |quantity| {
        quantity::to_bytes(quantity)
            .map_err(|source| RenderError::InvalidQuantity { field, source })
    })
}

/// A duration as the programs parse it. A duration below `shortest` is raised to it.
pub(crate) fn format_span_at_least(
    field: &'static str,
    given: &DurationString,
    shortest: Duration,
) -> Result<String, RenderError> {
    let duration = given
        .to_duration()
        .map_err(|source| RenderError::InvalidDuration { field, source })?;
    Ok(format_duration(duration.max(shortest)))
}

/// The duration in the largest unit that needs no fraction.
pub(crate) fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    match nanos {
        _ if nanos.is_multiple_of(1_000_000_000) => format!("{}s", nanos / 1_000_000_000),
        _ if nanos.is_multiple_of(1_000_000) => format!("{}ms", nanos / 1_000_000),
        _ => format!("{nanos}ns"),
    }
}

/// The given resources, or default requests without limits.
pub(crate) fn resources_or_default(
    given: Option<&ResourceRequirements>,
    cpu: &str,
    memory: &str,
) -> ResourceRequirements {
    given.cloned().unwrap_or_else(|| ResourceRequirements {
        requests: Some(BTreeMap::from([
            ("cpu".to_owned(), Quantity(cpu.to_owned())),
            ("memory".to_owned(), Quantity(memory.to_owned())),
        ])),
        ..ResourceRequirements::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rewritten_in_a_form_every_flag_accepts() {
        for (text, expected) in [
            ("1h30m", "5400s"),
            ("1.5h", "5400s"),
            ("1.5s", "1500ms"),
            ("10us", "10000ns"),
            ("0s", "0s"),
        ] {
            let shortest = Duration::ZERO;
            assert_eq!(
                format_span_at_least("f", &DurationString(text.into()), shortest).unwrap(),
                expected
            );
        }
        let second = Duration::from_secs(1);
        assert_eq!(
            format_span_at_least("f", &DurationString("5ms".into()), second).unwrap(),
            "1s"
        );
        let overlong =
            format_span_at_least("spec.x", &DurationString("99999999999h".into()), second)
                .unwrap_err();
        assert_eq!(overlong.to_string(), "spec.x");
    }

    #[test]
    fn invalid_port_error_names_the_field() {
        assert_eq!(port_or_default("p", None, 2379).unwrap(), 2379);
        assert_eq!(port_or_default("p", Some(1), 2379).unwrap(), 1);
        for invalid in [0, -1, 65_536] {
            let error = port_or_default("spec.etcd.clientPort", Some(invalid), 1).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("spec.etcd.clientPort: port {invalid} must be between 1 and 65535")
            );
        }
    }
}

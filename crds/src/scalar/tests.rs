use super::*;

fn parse_span(text: &str) -> Result<Duration, DurationError> {
    DurationString::from(text).to_duration()
}

#[test]
fn duration_is_the_sum_of_its_parts() {
    assert_eq!(parse_span("300s"), Ok(Duration::from_mins(5)));
    assert_eq!(parse_span("1h30m"), Ok(Duration::from_mins(90)));
    assert_eq!(parse_span("1.5h"), Ok(Duration::from_mins(90)));
    assert_eq!(
        parse_span("2ms3µs4us5ns"),
        Ok(Duration::from_nanos(2_007_005))
    );
    assert_eq!(parse_span("0.000000001s"), Ok(Duration::from_nanos(1)));
    assert_eq!(parse_span("0s"), Ok(Duration::ZERO));
}

#[test]
fn digits_below_a_nanosecond_are_dropped() {
    let text = format!("1.{}s", "9".repeat(60));
    assert_eq!(parse_span(&text), Ok(Duration::from_nanos(1_999_999_999)));
}

#[test]
fn too_long_duration_is_an_error() {
    for text in [
        "99999999999h",
        "999999999999999999999999999999999999999999s",
    ] {
        assert_eq!(
            parse_span(text),
            Err(DurationError::TooLong { text: text.into() })
        );
    }
}

#[test]
fn duration_error_names_the_invalid_position() {
    assert_eq!(
        parse_span("5s7"),
        Err(DurationError::UnknownUnit {
            text: "5s7".into(),
            at: 3
        })
    );
    assert_eq!(
        parse_span("5d"),
        Err(DurationError::UnknownUnit {
            text: "5d".into(),
            at: 1
        })
    );
    assert_eq!(
        parse_span("1h.m"),
        Err(DurationError::ExpectedNumber {
            text: "1h.m".into(),
            at: 2
        })
    );
    assert_eq!(
        parse_span(""),
        Err(DurationError::UnknownUnit {
            text: String::new(),
            at: 0
        })
    );
}

#[test]
fn zero_with_or_without_unit_means_no_retry_limit() {
    assert_eq!(RetryPolicy::from("0").limit(), Ok(None));
    assert_eq!(RetryPolicy::from("0s").limit(), Ok(None));
    assert_eq!(
        RetryPolicy::from("10m").limit(),
        Ok(Some(Duration::from_mins(10)))
    );
}

#[test]
fn schedule_pattern_matches_exactly_its_grammar() {
    let pattern = regex::Regex::new(SCHEDULE_PATTERN).unwrap();
    for good in [
        "* * * * *",
        "0 */24 * * *",
        "59 23 31 12 7",
        "*/60 */24 */31 */12 */7",
        "0-59 0-23 1-31 1-12 1-7",
        "9-3 9-3 9-3 9-3 6-1",
        "1/60 1/24 1/31 1/12 1/7",
        "59/1 23/1 30/1 12/1 6/1",
        "0  0\t1 1 1",
    ] {
        assert!(pattern.is_match(good), "{good}");
    }
    for bad in [
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 0 *",
        "* * * 13 *",
        "* * * * 0",
        "* * * * 8",
        "0/5 * * * *",
        "*/61 * * * *",
        "*/0 * * * *",
        "* 0/2 * * *",
        "* */25 * * *",
        "* 20-10 * * *",
        "* * 31/2 * *",
        "* * 20-9 * *",
        "* * * 12-1 *",
        "* * * * 7-1",
        "* * * * 7/1",
        "1,2 * * * *",
        "@daily",
        "* * * *",
        "* * * * * *",
        " * * * * *",
        "* * * * MON",
        "1-5/2 * * * *",
        "00 * * * *",
        "* 01 * * *",
    ] {
        assert!(!pattern.is_match(bad), "{bad}");
    }
}

#[test]
fn cron_pattern_accepts_any_five_fields() {
    let pattern = regex::Regex::new(CRON_PATTERN).unwrap();
    assert!(pattern.is_match("0,30 2-6/2 * JAN-JUN 0"));
    assert!(!pattern.is_match("@daily"));
    assert!(!pattern.is_match("* * * * * *"));
}

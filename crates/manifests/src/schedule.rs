//! Converts schedules to a form that every cron parser understands.
//!
//! The CRD accepts `a/n` ("every n, starting at a"), which not every parser supports; `a-last/n` means the same and is
//! portable. The CRD also accepts a step longer than the field, which matches its first value only.

use mainstay_crds::scalar::Schedule;

/// First and last value of each field: minute, hour, day, month, weekday.
const FIELD_RANGES: [(u32, u32); 5] = [(0, 59), (0, 23), (1, 31), (1, 12), (1, 7)];

/// The schedule in portable form. Unknown syntax is passed on unchanged.
pub(crate) fn normalize(schedule: &Schedule) -> String {
    let fields = schedule.as_str().split_whitespace();
    let fields: Vec<String> = fields
        .enumerate()
        .map(|(index, field)| {
            FIELD_RANGES
                .get(index)
                .map_or_else(|| field.into(), |ends| normalize_field(field, *ends))
        })
        .collect();
    fields.join(" ")
}

fn normalize_field(field: &str, (first, last): (u32, u32)) -> String {
    let Some((start, step)) = field.split_once('/') else {
        return field.to_owned();
    };
    let (start, step) = match (start, start.parse::<u32>(), step.parse::<u32>()) {
        ("*", _, Ok(step)) => (first, step),
        (_, Ok(start), Ok(step)) => (start, step),
        _ => return field.to_owned(),
    };
    // A step beyond the end of the field matches the first value only.
    if start + step > last {
        start.to_string()
    } else if start == first {
        format!("*/{step}")
    } else {
        format!("{start}-{last}/{step}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cron_steps_are_normalized() {
        for (given, expected) in [
            ("0 */24 * * *", "0 0 * * *"),
            ("*/5 */3 * * *", "*/5 */3 * * *"),
            ("1/60 2/5 5/10 3/4 2/2", "1 2-23/5 5-31/10 3-12/4 2-7/2"),
            ("*/60 */24 */31 */12 */7", "0 0 1 1 1"),
            ("1-5 * 1-31 12 7", "1-5 * 1-31 12 7"),
            ("something else", "something else"),
        ] {
            assert_eq!(normalize(&Schedule(given.into())), expected);
        }
    }
}

//! The result of a successful verb, as text and as JSON.

use mainstay_verdict::Verdict;
use serde::Serialize;
use serde_json::Value;

/// The result of a successful verb.
#[derive(Clone, Debug)]
pub struct CommandOutcome {
    verdict: Verdict,
    text: String,
    details: Value,
}

impl CommandOutcome {
    /// Creates a result. The fields of `details` appear beside `verdict` in the JSON output.
    pub(crate) fn new(verdict: Verdict, text: impl Into<String>, details: &impl Serialize) -> Self {
        let details = serde_json::to_value(details).unwrap_or(Value::Null);
        Self {
            verdict,
            text: text.into(),
            details,
        }
    }

    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Returns the text, which ends with a newline.
    pub fn text(&self) -> String {
        let mut text = self.text.clone();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text
    }

    /// Returns verdict and details as one object.
    pub fn to_json(&self) -> Value {
        let mut object = serde_json::Map::new();
        object.insert("verdict".into(), self.verdict.name().into());
        match &self.details {
            Value::Object(details) => object.extend(details.clone()),
            Value::Null => {}
            other => {
                object.insert("details".into(), other.clone());
            }
        }
        Value::Object(object)
    }
}

/// Formats rows as aligned columns; the first row is the heading.
pub(crate) fn format_table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let line: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_space() {
        let rows = [
            vec!["A".into(), "B".into()],
            vec!["long".into(), String::new()],
        ];
        assert_eq!(format_table(&rows), "A     B\nlong\n");
    }

    #[test]
    fn outcome_json_has_the_verdict_and_the_details() {
        let details = serde_json::json!({"revision": 7});
        let outcome = CommandOutcome::new(Verdict::Valid, "fine", &details);
        assert_eq!(
            outcome.to_json(),
            serde_json::json!({"verdict": "valid", "revision": 7})
        );
        assert_eq!(outcome.text(), "fine\n");
    }
}

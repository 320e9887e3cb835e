//! JSON text as Go's encoder writes it, where the bytes must equal those of etcd.

use std::fmt::Write as _;

/// Appends `text` as a JSON string. Go escapes `<`, `>`, `&` and the two Unicode line separators, which JSON does
/// not require.
pub fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                let _infallible = write!(out, "\\u{:04x}", u32::from(character));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

/// Appends `items` as a JSON list of strings.
pub fn push_strings<S: AsRef<str>>(out: &mut String, items: &[S]) {
    out.push('[');
    for (position, item) in items.iter().enumerate() {
        if position > 0 {
            out.push(',');
        }
        push_string(out, item.as_ref());
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped_as_in_go() {
        let mut out = String::new();
        push_string(&mut out, "a<b>&\"\\\u{2028}\u{1}\n/é\u{7f}");
        assert_eq!(
            out,
            "\"a\\u003cb\\u003e\\u0026\\\"\\\\\\u2028\\u0001\\n/é\u{7f}\""
        );
    }

    #[test]
    fn list_items_are_separated_by_commas() {
        let mut out = String::new();
        push_strings(&mut out, &["a", "b"]);
        push_strings::<&str>(&mut out, &[]);
        assert_eq!(out, "[\"a\",\"b\"][]");
    }
}

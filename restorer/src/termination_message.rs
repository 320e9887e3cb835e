//! Shortens the termination message to what the kubelet keeps.
//!
//! The kubelet truncates a termination message at 4096 bytes, which makes longer JSON invalid. A message that is too long
//! drops its details and then shortens its reason, so that it stays valid JSON.

use serde_json::{Map, Value};

/// Limit of the kubelet.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Keys the controller acts on.
const ESSENTIAL_KEYS: [&str; 5] = ["verdict", "reason", "nextStep", "overtakenBy", "init"];
/// Keys that are always kept; their values are short.
const MINIMAL_KEYS: [&str; 3] = ["verdict", "overtakenBy", "cut"];

/// Returns the message as text within the limit of the kubelet. A shortened message has `"cut": true`.
pub(crate) fn truncate_to_fit(message: &Value) -> String {
    let whole = message.to_string();
    if whole.len() <= MAX_MESSAGE_BYTES {
        return whole;
    }
    let pairs = ESSENTIAL_KEYS
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), message.get(key)?.clone())));
    let mut kept: Map<String, Value> = pairs.collect();
    kept.insert("cut".into(), true.into());
    loop {
        let text = Value::Object(kept.clone()).to_string();
        if text.len() <= MAX_MESSAGE_BYTES {
            return text;
        }
        let reason = kept.get("reason").and_then(Value::as_str);
        // The size of the JSON is measured, not that of the reason: escapes can take six bytes per character.
        let Some(shorter) = reason.and_then(halve_text) else {
            kept.retain(|key, _| MINIMAL_KEYS.contains(&key.as_str()));
            return Value::Object(kept).to_string();
        };
        kept.insert("reason".into(), shorter.into());
    }
}

/// Returns the first half of a text; `None` if the half would be too short to be useful.
fn halve_text(text: &str) -> Option<String> {
    let length = text.chars().count() / 2;
    let shorter = || text.chars().take(length).chain(['…']).collect();
    (length > 16).then(shorter)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn message_that_fits_is_unchanged() {
        let message = json!({"verdict": "valid", "faults": [], "revision": 7});
        assert_eq!(truncate_to_fit(&message), message.to_string());
    }

    #[test]
    fn truncated_message_keeps_verdict_next_step_and_init_report() {
        // Characters of one byte, of two bytes, and with a JSON escape of six bytes.
        for letter in ["x", "ö", "\u{1}"] {
            let message = json!({
                "verdict": "restore-required",
                "reason": letter.repeat(20_000),
                "nextStep": "restore",
                "init": {"version": 1, "member": "etcd-0"},
                "faults": vec!["a fault"; 1000],
            });
            let text = truncate_to_fit(&message);
            assert!(text.len() <= MAX_MESSAGE_BYTES, "{} bytes", text.len());
            let read: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(read["verdict"], "restore-required");
            assert_eq!(read["init"], message["init"]);
            assert_eq!(read["nextStep"], "restore");
            assert!(read["reason"].as_str().unwrap().ends_with('…'), "{text}");
            assert!(read["reason"].as_str().unwrap().len() > 100, "{text}");
            assert_eq!(
                (&read["cut"], &read["faults"]),
                (&json!(true), &Value::Null)
            );
        }
    }

    #[test]
    fn verdict_is_kept_when_everything_else_is_too_long() {
        let long = "n".repeat(5000);
        let message = json!({"verdict": "refused", "reason": "no", "init": {"member": long}});
        let read: Value = serde_json::from_str(&truncate_to_fit(&message)).unwrap();
        assert_eq!(read, json!({"verdict": "refused", "cut": true}));
    }

    #[test]
    fn superseding_epoch_is_always_kept() {
        let mut message =
            json!({"verdict": "in-use", "reason": "x".repeat(5000), "overtakenBy": 7});
        let fitted = |message: &Value| {
            let read: Value = serde_json::from_str(&truncate_to_fit(message)).unwrap();
            (read["verdict"].clone(), read["overtakenBy"].clone())
        };
        assert_eq!(fitted(&message), (json!("in-use"), json!(7)));
        message["nextStep"] = "n".repeat(5000).into();
        assert_eq!(fitted(&message), (json!("in-use"), json!(7)));
    }
}

//! Whether an object already says everything that is to be said.

use serde_json::Value;

/// Whether every field of `wanted` is in `live` with the same value. `live` may say more: defaults, status, the fields
/// of others. Lists of objects with a key of their own are compared by that key, as the API server merges them.
pub(super) fn is_in(wanted: &Value, live: &Value) -> bool {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => {
            wanted.iter().all(|(key, value)| match live.get(key) {
                Some(found) => is_in(value, found),
                None => is_nothing(value),
            })
        }
        (Value::Array(wanted), Value::Array(live)) => are_in(wanted, live),
        _ => wanted == live,
    }
}

/// The API server drops what is empty.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(is_nothing),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn are_in(wanted: &[Value], live: &[Value]) -> bool {
    wanted.len() == live.len()
        && wanted
            .iter()
            .zip(live)
            .all(|(wanted, live)| is_in(wanted, live))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_and_fields_of_others_do_not_matter() {
        let wanted = json!({"spec": {"ports": [{"port": 1}], "empty": {}, "none": null}});
        let live =
            json!({"spec": {"ports": [{"port": 1, "protocol": "TCP"}], "ip": "x"}, "status": {}});
        assert!(is_in(&wanted, &live));
    }

    #[test]
    fn a_value_that_was_changed_or_taken_away_matters() {
        let wanted = json!({"data": {"a": "1", "b": "2"}});
        assert!(!is_in(&wanted, &json!({"data": {"a": "1", "b": "3"}})));
        assert!(!is_in(&wanted, &json!({"data": {"a": "1"}})));
        assert!(!is_in(&json!([1, 2]), &json!([2, 1])));
        assert!(
            !is_in(&json!([1]), &json!([1, 2])),
            "a list is ours as a whole"
        );
    }
}

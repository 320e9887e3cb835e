//! Compares a rendered object with the live one, as the API server stores it.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use mainstay_manifests::quantity::to_bytes;
use serde_json::Value;

/// Path of the first field that differs; `None` when every field of `desired` is in `live` with the same value. `live` may have
/// more: defaults, status, fields of other managers.
pub(super) fn find_difference(desired: &Value, live: &Value) -> Option<String> {
    let mut path = Vec::new();
    has_difference(desired, live, &mut path).then(|| path.join("."))
}

/// Leaves `path` at the field that differs.
fn has_difference(desired: &Value, live: &Value, path: &mut Vec<String>) -> bool {
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => desired.iter().any(|(key, value)| {
            path.push(key.clone());
            let differs = match live.get(key) {
                Some(found) => has_difference(value, found, path),
                None => !(is_empty_value(value) || is_zero_value(value) && !is_map_entry(path)),
            };
            if !differs {
                path.pop();
            }
            differs
        }),
        // Lists are rendered completely, so an additional live item is a difference.
        (Value::Array(desired), Value::Array(live)) => {
            desired.len() != live.len()
                || desired
                    .iter()
                    .zip(live)
                    .enumerate()
                    .any(|(index, (desired, live))| {
                        path.push(index.to_string());
                        let differs = has_difference(desired, live, path);
                        if !differs {
                            path.pop();
                        }
                        differs
                    })
        }
        (Value::String(desired), Value::String(live)) if is_quantity(path) => {
            desired != live && !is_same_quantity(desired, live)
        }
        _ => desired != live,
    }
}

/// Whether the API server drops the value because it is empty.
fn is_empty_value(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(is_empty_value),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Whether the API server drops the value from a field that is not a pointer: false, zero or an empty string.
fn is_zero_value(value: &Value) -> bool {
    match value {
        Value::Bool(value) => !value,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        _ => false,
    }
}

/// Whether the path is an entry of a map. The API server keeps map entries even when they are empty.
fn is_map_entry(path: &[String]) -> bool {
    let parent = path.iter().rev().nth(1).map(String::as_str);
    matches!(
        parent,
        Some("data" | "labels" | "annotations" | "matchLabels")
    )
}

/// Whether the path holds a quantity. The API server stores quantities in canonical form (`1024Mi` as `1Gi`).
fn is_quantity(path: &[String]) -> bool {
    let parent = path.iter().rev().nth(1).map(String::as_str);
    let field = path.last().map(String::as_str);
    matches!(parent, Some("requests" | "limits")) || field == Some("sizeLimit")
}

fn is_same_quantity(one: &str, other: &str) -> bool {
    let whole = |text: &str| to_bytes(&Quantity(text.to_owned())).ok();
    // In thousandths, because CPU quantities can be fractions of a core.
    let thousandths = |text: &str| match text.strip_suffix('m') {
        Some(number) => number.parse::<f64>().ok(),
        None => text.parse::<f64>().ok().map(|number| number * 1000.0),
    };
    let is_same = |one: Option<f64>, other: Option<f64>| {
        one.zip(other)
            .is_some_and(|(one, other)| (one - other).abs() < 0.5)
    };
    whole(one).is_some_and(|one| Some(one) == whole(other))
        || is_same(thousandths(one), thousandths(other))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_and_fields_of_other_managers_are_no_difference() {
        let desired = json!({"spec": {"ports": [{"port": 1}], "empty": {}, "none": null}});
        let live =
            json!({"spec": {"ports": [{"port": 1, "protocol": "TCP"}], "ip": "x"}, "status": {}});
        assert_eq!(find_difference(&desired, &live), None);
    }

    #[test]
    fn dropped_zero_values_are_no_difference_but_missing_map_entries_are() {
        let desired = json!({"spec": {"hostNetwork": false, "env": [{"name": "A", "value": ""}]}});
        let live = json!({"spec": {"env": [{"name": "A"}]}});
        assert_eq!(find_difference(&desired, &live), None);
        let desired = json!({"data": {"a": ""}});
        let removed = find_difference(&desired, &json!({"data": {}}));
        assert_eq!(removed.as_deref(), Some("data.a"));
    }

    #[test]
    fn changed_or_removed_value_is_a_difference() {
        let desired = json!({"data": {"a": "1", "b": "2"}});
        let difference = |live| find_difference(&desired, &live);
        assert_eq!(
            difference(json!({"data": {"a": "1", "b": "3"}})).as_deref(),
            Some("data.b")
        );
        assert_eq!(
            difference(json!({"data": {"a": "1"}})).as_deref(),
            Some("data.b")
        );
        assert_eq!(
            find_difference(&json!([1, 2]), &json!([2, 1])).as_deref(),
            Some("0")
        );
        let longer = find_difference(&json!([1]), &json!([1, 2]));
        assert_eq!(longer.as_deref(), Some(""), "lists are compared as a whole");
    }

    #[test]
    fn equal_quantities_in_different_notation_are_no_difference() {
        let amounts = |cpu: &str, memory: &str| json!({"resources": {"requests": {"cpu": cpu, "memory": memory}}, "note": cpu});
        let mut live = amounts("500m", "1Gi");
        live["note"] = json!("0.5");
        assert_eq!(find_difference(&amounts("0.5", "1024Mi"), &live), None);
        let other = find_difference(&amounts("0.5", "1025Mi"), &live);
        assert_eq!(other.as_deref(), Some("resources.requests.memory"));
        let note = find_difference(&amounts("500m", "1Gi"), &live);
        assert_eq!(
            note.as_deref(),
            Some("note"),
            "outside of quantities the spelling matters"
        );
    }
}

//! Whether an object already says everything that is to be said.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use mainstay_manifests::quantity::to_bytes;
use serde_json::Value;

/// Where an object says something else than it should: the first place, as a path; `None` when every field of `wanted` is in
/// `live` with the same value. `live` may say more: defaults, status, the fields of others.
pub(super) fn find_difference(wanted: &Value, live: &Value) -> Option<String> {
    let mut path = Vec::new();
    has_difference(wanted, live, &mut path).then(|| path.join("."))
}

/// Leaves the path where the difference is.
fn has_difference(wanted: &Value, live: &Value, path: &mut Vec<String>) -> bool {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => wanted.iter().any(|(key, value)| {
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
        (Value::Array(wanted), Value::Array(live)) => {
            wanted.len() != live.len()
                || wanted
                    .iter()
                    .zip(live)
                    .enumerate()
                    .any(|(index, (wanted, live))| {
                        path.push(index.to_string());
                        let differs = has_difference(wanted, live, path);
                        if !differs {
                            path.pop();
                        }
                        differs
                    })
        }
        (Value::String(wanted), Value::String(live)) if is_quantity(path) => {
            wanted != live && !is_same_quantity(wanted, live)
        }
        _ => wanted != live,
    }
}

/// The API server drops what is empty.
fn is_empty_value(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(is_empty_value),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Of fields that are not pointers the API server drops also what is false, zero or an empty text.
fn is_zero_value(value: &Value) -> bool {
    match value {
        Value::Bool(value) => !value,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        _ => false,
    }
}

/// Whether a place is an entry of a map, of which nothing is dropped.
fn is_map_entry(path: &[String]) -> bool {
    let around = path.iter().rev().nth(1).map(String::as_str);
    matches!(
        around,
        Some("data" | "labels" | "annotations" | "matchLabels")
    )
}

/// Whether a place holds an amount, which the API server spells in its own way.
fn is_quantity(path: &[String]) -> bool {
    let around = path.iter().rev().nth(1).map(String::as_str);
    let own = path.last().map(String::as_str);
    matches!(around, Some("requests" | "limits")) || own == Some("sizeLimit")
}

fn is_same_quantity(one: &str, other: &str) -> bool {
    let whole = |text: &str| to_bytes(&Quantity(text.to_owned())).ok();
    // Thousandths, so that parts of a processor count.
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
    fn defaults_and_fields_of_others_do_not_matter() {
        let wanted = json!({"spec": {"ports": [{"port": 1}], "empty": {}, "none": null}});
        let live =
            json!({"spec": {"ports": [{"port": 1, "protocol": "TCP"}], "ip": "x"}, "status": {}});
        assert_eq!(find_difference(&wanted, &live), None);
    }

    #[test]
    fn what_the_api_server_drops_does_not_matter_and_entries_of_maps_do() {
        let wanted = json!({"spec": {"hostNetwork": false, "env": [{"name": "A", "value": ""}]}});
        let live = json!({"spec": {"env": [{"name": "A"}]}});
        assert_eq!(find_difference(&wanted, &live), None);
        let wanted = json!({"data": {"a": ""}});
        let gone = find_difference(&wanted, &json!({"data": {}}));
        assert_eq!(gone.as_deref(), Some("data.a"));
    }

    #[test]
    fn a_value_that_was_changed_or_taken_away_matters() {
        let wanted = json!({"data": {"a": "1", "b": "2"}});
        let place = |live| find_difference(&wanted, &live);
        assert_eq!(
            place(json!({"data": {"a": "1", "b": "3"}})).as_deref(),
            Some("data.b")
        );
        assert_eq!(
            place(json!({"data": {"a": "1"}})).as_deref(),
            Some("data.b")
        );
        assert_eq!(
            find_difference(&json!([1, 2]), &json!([2, 1])).as_deref(),
            Some("0")
        );
        let longer = find_difference(&json!([1]), &json!([1, 2]));
        assert_eq!(longer.as_deref(), Some(""), "a list is ours as a whole");
    }

    #[test]
    fn amounts_are_the_same_however_they_are_spelt() {
        let amounts = |cpu: &str, memory: &str| json!({"resources": {"requests": {"cpu": cpu, "memory": memory}}, "note": cpu});
        let mut live = amounts("500m", "1Gi");
        live["note"] = json!("0.5");
        assert_eq!(find_difference(&amounts("0.5", "1024Mi"), &live), None);
        let other = find_difference(&amounts("0.5", "1025Mi"), &live);
        assert_eq!(other.as_deref(), Some("resources.requests.memory"));
        let note = find_difference(&amounts("500m", "1Gi"), &live);
        assert_eq!(note.as_deref(), Some("note"), "elsewhere spelling matters");
    }
}

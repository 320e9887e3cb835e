//! Converts JSON Schema, as the derives produce it, to a structural `OpenAPI` v3 schema of Kubernetes.
//!
//! The input has no references. In the output every node has one type: an optional value may be absent but not null, an
//! enum is a list of strings with the meaning of each in the description, and the description of a field overrides that
//! of its type.

use serde_json::{Map, Value};

/// Rewrites a schema and all schemas inside it.
pub(crate) fn make_structural(node: &mut Value) {
    let Some(map) = node.as_object_mut() else {
        return;
    };
    unwrap_option(map);
    merge_enum(map);
    drop_null(map);
    for superfluous in ["$schema", "title", "nullable"] {
        map.remove(superfluous);
    }
    if let Some(Value::String(text)) = map.get_mut("description") {
        *text = reflow(text);
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(make_structural);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = map.get_mut(key) {
            make_structural(child);
        }
    }
}

/// `anyOf` of a schema and null becomes the schema.
fn unwrap_option(map: &mut Map<String, Value>) {
    let Some(Value::Array(branches)) = map.get("anyOf") else {
        return;
    };
    let mut real = branches.iter().filter(|branch| branch["type"] != "null");
    let (Some(Value::Object(only)), None) = (real.next(), real.next()) else {
        return;
    };
    let only = only.clone();
    map.remove("anyOf");
    for (key, value) in only {
        // Keys of the field win, so its description overrides that of its type.
        map.entry(key).or_insert(value);
    }
}

/// `oneOf` of documented constants becomes one `enum`; the documentation becomes a list in the description.
fn merge_enum(map: &mut Map<String, Value>) {
    let Some(Value::Array(branches)) = map.get("oneOf") else {
        return;
    };
    let names: Vec<Value> = branches.iter().flat_map(list_constants).collect();
    let meanings: Vec<String> = branches.iter().filter_map(describe_constants).collect();
    if names.is_empty() {
        return;
    }
    map.remove("oneOf");
    map.insert("type".into(), "string".into());
    map.insert("enum".into(), names.into());
    let own = map
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let text = format!("{}\n\n{}", reflow(own), meanings.join("\n"));
    map.insert("description".into(), text.trim().into());
}

fn list_constants(branch: &Value) -> Vec<Value> {
    match (&branch["const"], &branch["enum"]) {
        (Value::Null, Value::Array(several)) => several.clone(),
        (Value::Null, _) => Vec::new(),
        (one, _) => vec![one.clone()],
    }
}

fn describe_constants(branch: &Value) -> Option<String> {
    let text = branch["description"].as_str()?;
    let names: Vec<_> = list_constants(branch)
        .iter()
        .filter_map(|name| name.as_str().map(|name| format!("`{name}`")))
        .collect();
    Some(format!("- {}: {}", names.join(", "), reflow(text)))
}

/// Removes null from types, enums and defaults.
fn drop_null(map: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = map.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = &types[..] {
            let only = only.clone();
            map.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(values)) = map.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if map.get("default") == Some(&Value::Null) {
        map.remove("default");
    }
}

/// Joins the lines of a paragraph; paragraphs and list items stay separate.
fn reflow(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines().map(str::trim) {
        if line.is_empty() {
            out.truncate(out.trim_end().len());
            out.push_str("\n\n");
        } else {
            if line.starts_with("- ") && !out.is_empty() && !out.ends_with('\n') {
                out.push('\n');
            } else if !out.is_empty() && !out.ends_with('\n') {
                out.push(' ');
            }
            out.push_str(line);
        }
    }
    out.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn to_structural(mut schema: Value) -> Value {
        make_structural(&mut schema);
        schema
    }

    #[test]
    fn nullable_schema_becomes_optional() {
        assert_eq!(
            to_structural(json!({ "type": ["string", "null"] })),
            json!({ "type": "string" })
        );
        assert_eq!(
            to_structural(json!({
                "description": "of the field",
                "anyOf": [{ "type": "object", "description": "of the type" }, { "type": "null" }],
                "default": null
            })),
            json!({ "type": "object", "description": "of the field" })
        );
        assert_eq!(
            to_structural(json!({ "type": ["string", "null"], "enum": ["a", null] })),
            json!({ "type": "string", "enum": ["a"] })
        );
    }

    #[test]
    fn enum_descriptions_are_kept() {
        let schema = to_structural(json!({
            "description": "Which one.",
            "anyOf": [
                { "oneOf": [
                    { "type": "string", "const": "a", "description": "The\nfirst." },
                    { "type": "string", "enum": ["b", "c"] },
                ] },
                { "type": "null" },
            ],
        }));
        assert_eq!(
            schema,
            json!({
                "type": "string",
                "enum": ["a", "b", "c"],
                "description": "Which one.\n\n- `a`: The first.",
            })
        );
    }

    #[test]
    fn reflow_joins_paragraphs_and_keeps_lists() {
        assert_eq!(
            reflow("one\ntwo\n\n\n three\n- four\nfive\n- six"),
            "one two\n\nthree\n- four five\n- six"
        );
    }
}

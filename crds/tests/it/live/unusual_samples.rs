//! Samples with fields that an API server drops.

use mainstay_crds::crd;
use serde_json::{Map, Value, json};

/// Adds an unknown field to every object that has known fields.
pub(super) fn add_unknown_fields(resource: &Value) -> Value {
    transform(resource, &|_, fields| {
        fields.insert("unknown".to_owned(), json!({ "of": [{ "no": 1 }] }));
    })
}

/// Adds a null for every missing field.
pub(super) fn add_nulls(resource: &Value) -> Value {
    transform(resource, &|known, fields| {
        for name in known.keys() {
            fields.entry(name.clone()).or_insert(Value::Null);
        }
    })
}

type JsonFields = Map<String, Value>;

fn transform(resource: &Value, change: &dyn Fn(&JsonFields, &mut JsonFields)) -> Value {
    let mut resource = resource.clone();
    let all = crd::all_crds();
    let mut all = all.iter();
    let found = all.find(|one| resource["kind"] == one.kind());
    let schema = &found.expect("the kind has a CRD").schema;
    transform_objects(schema, &mut resource, change);
    resource
}

/// Changes every object whose fields the schema names.
fn transform_objects(
    schema: &Value,
    value: &mut Value,
    change: &dyn Fn(&JsonFields, &mut JsonFields),
) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                let inner = schema["properties"].get(name);
                if let Some(inner) = inner.or_else(|| schema.get("additionalProperties")) {
                    transform_objects(inner, field, change);
                }
            }
            if let Some(known) = schema["properties"].as_object() {
                change(known, fields);
            }
        }
        Value::Array(items) => {
            for item in items {
                transform_objects(&schema["items"], item, change);
            }
        }
        _ => {}
    }
}

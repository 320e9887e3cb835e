//! Samples with what an API server drops.

use serde_json::{Map, Value, json};

use crate::apiserver::ApiServer;

/// The resource with a field nobody knows in every object that has known ones.
pub(super) fn with_strangers(resource: &Value) -> Value {
    with(resource, &|_, fields| {
        fields.insert("stranger".to_owned(), json!({ "of": [{ "no": 1 }] }));
    })
}

/// The resource with a null in place of every field it does not have.
pub(super) fn with_nulls(resource: &Value) -> Value {
    with(resource, &|known, fields| {
        for name in known.keys() {
            fields.entry(name.clone()).or_insert(Value::Null);
        }
    })
}

type Fields = Map<String, Value>;

fn with(resource: &Value, change: &dyn Fn(&Fields, &mut Fields)) -> Value {
    let mut resource = resource.clone();
    let server = ApiServer::of(&resource);
    everywhere(server.schema(), &mut resource, change);
    resource
}

/// Changes every object whose fields the schema names.
fn everywhere(schema: &Value, value: &mut Value, change: &dyn Fn(&Fields, &mut Fields)) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                let inner = schema["properties"].get(name);
                if let Some(inner) = inner.or_else(|| schema.get("additionalProperties")) {
                    everywhere(inner, field, change);
                }
            }
            if let Some(known) = schema["properties"].as_object() {
                change(known, fields);
            }
        }
        Value::Array(items) => {
            for item in items {
                everywhere(&schema["items"], item, change);
            }
        }
        _ => {}
    }
}

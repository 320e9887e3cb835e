//! The files of `crds/tests/resources`, which together contain every field.

use std::fs;
use std::path::Path;

use mainstay_crds::{Etcd, EtcdCopyBackupsTask, EtcdOpsTask};
use serde_json::Value;

pub(crate) fn load_sample(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/resources")
        .join(name);
    serde_norway::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn load_samples() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/resources");
    let names = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    names
        .map(|name| name.into_string().unwrap())
        .map(|name| (name.clone(), load_sample(&name)))
        .collect()
}

/// The resource after deserializing and serializing it.
pub(crate) fn roundtrip(resource: &Value) -> Value {
    let resource = resource.clone();
    match resource["kind"].as_str() {
        Some("Etcd") => serde_json::to_value(serde_json::from_value::<Etcd>(resource).unwrap()),
        Some("EtcdOpsTask") => {
            serde_json::to_value(serde_json::from_value::<EtcdOpsTask>(resource).unwrap())
        }
        _ => serde_json::to_value(serde_json::from_value::<EtcdCopyBackupsTask>(resource).unwrap()),
    }
    .unwrap()
}

/// Whether the types can deserialize a resource.
pub(crate) fn is_readable(resource: &Value) -> bool {
    let resource = resource.clone();
    match resource["kind"].as_str() {
        Some("Etcd") => serde_json::from_value::<Etcd>(resource).is_ok(),
        Some("EtcdOpsTask") => serde_json::from_value::<EtcdOpsTask>(resource).is_ok(),
        _ => serde_json::from_value::<EtcdCopyBackupsTask>(resource).is_ok(),
    }
}

/// Quantities may be numbers in YAML; the types write them as strings.
pub(crate) fn stringify_numbers(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(k, v)| (k.clone(), stringify_numbers(v)))
            .collect(),
        Value::Array(items) => items.iter().map(stringify_numbers).collect(),
        Value::Number(number) => Value::String(number.to_string()),
        other => other.clone(),
    }
}

/// Collects the paths of all properties of a schema, without those of Kubernetes types.
fn collect_properties(schema: &Value, path: &str, out: &mut Vec<String>) {
    const FOREIGN: [&str; 5] = [
        ".affinity",
        ".topologySpreadConstraints",
        ".tolerations",
        "elector",
        ".resources",
    ];
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let at = format!("{path}.{name}");
        out.push(at.clone());
        if !FOREIGN.iter().any(|foreign| at.ends_with(foreign)) {
            collect_properties(property, &at, out);
            collect_properties(&property["items"], &at, out);
        }
    }
}

fn has_path(value: &Value, path: &[&str]) -> bool {
    match (path, value) {
        ([], _) => true,
        (_, Value::Array(items)) => items.iter().any(|item| has_path(item, path)),
        ([first, rest @ ..], Value::Object(fields)) => fields
            .get(*first)
            .is_some_and(|field| has_path(field, rest)),
        _ => false,
    }
}

#[test]
fn every_schema_field_appears_in_a_sample() {
    let samples = load_samples();
    assert!(samples.len() >= 20, "samples are missing");
    for definition in mainstay_crds::crd::all_crds() {
        let mut paths = Vec::new();
        collect_properties(&definition.schema, "", &mut paths);
        let of_kind = |resource: &Value| resource["kind"].as_str() == Some(definition.kind());
        let missing: Vec<_> = paths
            .iter()
            .filter(|path| {
                let path: Vec<_> = path.trim_start_matches('.').split('.').collect();
                !samples
                    .iter()
                    .any(|(_, sample)| of_kind(sample) && has_path(sample, &path))
            })
            .collect();
        assert!(missing.is_empty(), "{}: {missing:#?}", definition.kind());
    }
}

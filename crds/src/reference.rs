//! `docs/reference/api.md`: the schemas as a person reads them.

use std::fmt::Write as _;

use serde_json::Value;

use crate::definition::{Definition, QUANTITY_PATTERN};
use crate::scalar::{ANY_SCHEDULE_PATTERN, PATIENCE_PATTERN, SCHEDULE_PATTERN, SPAN_PATTERN};

const PREFACE: &str = "\
# API reference

Generated from the types of the crate `mainstay-crds`; `crds/yaml` holds the same as definitions to install.

Group `druid.gardener.cloud`, version `v1alpha1`. Every resource etcd-druid accepts is accepted, with the same
meaning. What etcd-mainstay adds is optional: `spec.mainstay` and `status.mainstay`, the sizes and version in
`status.members`, and all kinds of EtcdOpsTask but `onDemandSnapshot`.

The controller never writes a spec. It writes status by server-side apply, so fields it does not know stay.

Notation: a **duration** is `300s`, `1h30m`, `1.5h` (units `ns`, `us`, `ms`, `s`, `m`, `h`). A **quantity** is `8Gi`,
`500M` or a plain number. A **schedule** has five fields (minute, hour, day, month, weekday), each `*`, `n`, `a-b`,
`a/n` or `*/n`, Sunday being 7; a **cron expression** may also have lists, names and stepped ranges.
\"Rules\" are checked by API servers from Kubernetes 1.25 on.
";

/// Types of Kubernetes, documented there.
const FOREIGN: [(&str, &str); 5] = [
    ("affinity", "Affinity"),
    (
        "topologySpreadConstraints",
        "list of TopologySpreadConstraint",
    ),
    ("resources", "ResourceRequirements"),
    ("selector", "LabelSelector"),
    ("labelSelector", "LabelSelector"),
];

/// Patterns that have a name.
const NAMED: [(&str, &str); 5] = [
    (SPAN_PATTERN, "duration"),
    (PATIENCE_PATTERN, "duration or `0`"),
    (SCHEDULE_PATTERN, "schedule"),
    (ANY_SCHEDULE_PATTERN, "cron expression"),
    (QUANTITY_PATTERN, "quantity"),
];

pub(crate) fn markdown(definitions: &[Definition]) -> String {
    let mut out = PREFACE.to_owned();
    for definition in definitions {
        let _ = write!(out, "\n## {}\n", definition.kind());
        section(&mut out, definition.kind(), &definition.schema);
    }
    out
}

/// One object: its words, its fields, its rules; then the objects in it.
fn section(out: &mut String, path: &str, schema: &Value) {
    if path.contains('.') {
        let _ = write!(out, "\n### `{path}`\n");
    }
    if let Some(text) = schema["description"].as_str() {
        let _ = write!(out, "\n{text}\n");
    }
    let fields = fields(path, schema);
    if !fields.is_empty() {
        out.push_str("\n| field | type | meaning |\n| --- | --- | --- |\n");
        for (name, field) in &fields {
            row(out, schema, name, field);
        }
    }
    rules(out, schema, &fields);
    for (name, field) in fields {
        let foreign = FOREIGN.iter().any(|(known, _)| *known == name);
        let (inner, suffix) = element(field);
        if !foreign && inner["properties"].is_object() {
            section(out, &format!("{path}.{name}{suffix}"), inner);
        }
    }
}

/// The fields of an object; at the root, without those every resource has.
fn fields<'a>(path: &str, schema: &'a Value) -> Vec<(&'a str, &'a Value)> {
    const OF_ALL: [&str; 3] = ["apiVersion", "kind", "metadata"];
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties
        .map(|(name, field)| (name.as_str(), field))
        .filter(|(name, _)| path.contains('.') || !OF_ALL.contains(name))
        .collect()
}

/// What a list is a list of, and how the path says so.
fn element(field: &Value) -> (&Value, &'static str) {
    match field.get("items") {
        Some(items) => (items, "[]"),
        None => (field, ""),
    }
}

fn row(out: &mut String, schema: &Value, name: &str, field: &Value) {
    let required = schema["required"]
        .as_array()
        .is_some_and(|all| all.iter().any(|one| one == name));
    let mark = if required { " (required)" } else { "" };
    let text = field["description"].as_str().unwrap_or_default();
    let text = text
        .replace("\n\n- ", "<br>• ")
        .replace("\n- ", "<br>• ")
        .replace('\n', " ");
    let kind = kind(name, field);
    let _ = writeln!(
        out,
        "| `{name}`{mark} | {} | {} |",
        escape(&kind),
        escape(&text)
    );
}

fn escape(text: &str) -> String {
    text.replace('|', r"\|")
}

/// The type of a field and what bounds it.
fn kind(name: &str, field: &Value) -> String {
    if let Some((_, foreign)) = FOREIGN.iter().find(|(known, _)| *known == name)
        && field["type"] != "string"
    {
        return format!("Kubernetes {foreign}");
    }
    let mut text = plain(field);
    for (key, sign) in [("minimum", "≥"), ("maximum", "≤")] {
        if let Some(bound) = field.get(key) {
            let _ = write!(text, ", {sign} {}", number(bound));
        }
    }
    for (keys, unit) in [
        (["minLength", "maxLength"], "characters"),
        (["minItems", "maxItems"], "items"),
    ] {
        match (field.get(keys[0]), field.get(keys[1])) {
            (Some(least), Some(most)) => {
                let _ = write!(text, ", {least} to {most} {unit}");
            }
            (None, Some(most)) => {
                let _ = write!(text, ", at most {most} {unit}");
            }
            _ => {}
        }
    }
    if let Some(default) = field.get("default") {
        let _ = write!(text, ", default `{default}`");
    }
    text
}

fn number(value: &Value) -> String {
    value
        .as_f64()
        .map_or_else(|| value.to_string(), |number| format!("{number}"))
}

fn plain(field: &Value) -> String {
    let pattern = field["pattern"].as_str();
    if let Some((_, name)) = NAMED.iter().find(|(known, _)| pattern == Some(known)) {
        return (*name).to_owned();
    }
    if let Some(names) = field["enum"].as_array() {
        let names: Vec<_> = names
            .iter()
            .filter_map(Value::as_str)
            .map(|n| format!("`{n}`"))
            .collect();
        return names.join(", ");
    }
    match field["type"].as_str() {
        Some("array") if field["x-kubernetes-list-type"] == "set" => {
            format!("set of {}", plain(&field["items"]))
        }
        Some("array") => format!("list of {}", plain(&field["items"])),
        Some("object") if field["additionalProperties"].is_object() => {
            format!("map of {}", plain(&field["additionalProperties"]))
        }
        Some("string") if field["format"] == "date-time" => "time".to_owned(),
        Some("string") => {
            pattern.map_or_else(|| "string".to_owned(), |p| format!("string like `{p}`"))
        }
        other => other.unwrap_or("value").to_owned(),
    }
}

/// The rules of an object and of those of its fields that are no objects themselves.
fn rules(out: &mut String, schema: &Value, fields: &[(&str, &Value)]) {
    let mut lines = Vec::new();
    collect(&mut lines, None, schema);
    for (name, field) in fields {
        let (inner, suffix) = element(field);
        if inner["properties"].is_object() {
            continue;
        }
        let name = format!("{name}{suffix}");
        collect(&mut lines, Some(&name), inner);
    }
    if !lines.is_empty() {
        out.push_str("\nRules:\n\n");
        for line in lines {
            let _ = writeln!(out, "- {line}");
        }
    }
}

fn collect(lines: &mut Vec<String>, name: Option<&str>, schema: &Value) {
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let message = rule["message"].as_str().unwrap_or_default();
        lines.push(match name {
            Some(name) => format!("`{name}`: {message}"),
            None => message.to_owned(),
        });
    }
}

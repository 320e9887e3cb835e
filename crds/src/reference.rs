//! Renders `docs/reference/api.md`: the schemas as a reference for users.

use std::fmt::Write as _;

use serde_json::Value;

use crate::crd::{CrdManifest, QUANTITY_PATTERN};
use crate::scalar::{CRON_PATTERN, DURATION_PATTERN, SCHEDULE_PATTERN, TIMEOUT_PATTERN};

const PREFACE: &str = "\
# API reference

Generated from the types of the crate `mainstay-crds`. `crds/yaml` contains the CRD manifests to install.

Group `druid.gardener.cloud`, version `v1alpha1`. Every resource that etcd-druid accepts is accepted, with the same
meaning. The additions of etcd-mainstay are optional: `spec.mainstay` and `status.mainstay`, the sizes and version in
`status.members`, and all operations of EtcdOpsTask except `onDemandSnapshot`.

The controller never writes a spec. It writes status by server-side apply, so fields that it does not know are kept.

Notation: a **duration** is `300s`, `1h30m`, `1.5h` (units `ns`, `us`, `ms`, `s`, `m`, `h`). A **quantity** is `8Gi`,
`500M` or a plain number. A **schedule** has five fields (minute, hour, day, month, weekday), each `*`, `n`, `a-b`,
`a/n` or `*/n`, Sunday being 7; a **cron expression** may also have lists, names and stepped ranges.
API servers enforce the \"Rules\".
";

/// Kubernetes types; the Kubernetes reference documents them.
const KUBERNETES_TYPES: [(&str, &str); 5] = [
    ("affinity", "Affinity"),
    (
        "topologySpreadConstraints",
        "list of TopologySpreadConstraint",
    ),
    ("resources", "ResourceRequirements"),
    ("selector", "LabelSelector"),
    ("labelSelector", "LabelSelector"),
];

/// Patterns with a name in the preface.
const NAMED_PATTERNS: [(&str, &str); 5] = [
    (DURATION_PATTERN, "duration"),
    (TIMEOUT_PATTERN, "duration or `0`"),
    (SCHEDULE_PATTERN, "schedule"),
    (CRON_PATTERN, "cron expression"),
    (QUANTITY_PATTERN, "quantity"),
];

pub(crate) fn render_markdown(definitions: &[CrdManifest]) -> String {
    let mut out = PREFACE.to_owned();
    for definition in definitions {
        let _ = write!(out, "\n## {}\n", definition.kind());
        write_section(&mut out, definition.kind(), &definition.schema);
    }
    out
}

/// Renders one object: its description, fields and rules, then the objects inside it.
fn write_section(out: &mut String, path: &str, schema: &Value) {
    if path.contains('.') {
        let _ = write!(out, "\n### `{path}`\n");
    }
    if let Some(text) = schema["description"].as_str() {
        let _ = write!(out, "\n{text}\n");
    }
    let fields = list_fields(path, schema);
    if !fields.is_empty() {
        out.push_str("\n| field | type | meaning |\n| --- | --- | --- |\n");
        for (name, field) in &fields {
            write_row(out, schema, name, field);
        }
    }
    write_rules(out, schema, &fields);
    for (name, field) in fields {
        let foreign = KUBERNETES_TYPES.iter().any(|(known, _)| *known == name);
        let (inner, suffix) = list_element(field);
        if !foreign && inner["properties"].is_object() {
            write_section(out, &format!("{path}.{name}{suffix}"), inner);
        }
    }
}

/// The fields of an object; at the root, without the fields that every resource has.
fn list_fields<'a>(path: &str, schema: &'a Value) -> Vec<(&'a str, &'a Value)> {
    const COMMON_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties
        .map(|(name, field)| (name.as_str(), field))
        .filter(|(name, _)| path.contains('.') || !COMMON_FIELDS.contains(name))
        .collect()
}

/// The schema of the items of a list, and the suffix of its path.
fn list_element(field: &Value) -> (&Value, &'static str) {
    match field.get("items") {
        Some(items) => (items, "[]"),
        None => (field, ""),
    }
}

fn write_row(out: &mut String, schema: &Value, name: &str, field: &Value) {
    let required = schema["required"]
        .as_array()
        .is_some_and(|all| all.iter().any(|one| one == name));
    let mark = if required { " (required)" } else { "" };
    let text = field["description"].as_str().unwrap_or_default();
    let text = text
        .replace("\n\n- ", "<br>• ")
        .replace("\n- ", "<br>• ")
        .replace('\n', " ");
    let kind = format_type(name, field);
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

/// The type of a field and its limits.
fn format_type(name: &str, field: &Value) -> String {
    // `status.selector` has the name of a Kubernetes type but is a string.
    if let Some((_, foreign)) = KUBERNETES_TYPES.iter().find(|(known, _)| *known == name)
        && field["type"] != "string"
    {
        return format!("Kubernetes {foreign}");
    }
    let mut text = format_plain_type(field);
    for (key, sign) in [("minimum", "≥"), ("maximum", "≤")] {
        if let Some(bound) = field.get(key) {
            let _ = write!(text, ", {sign} {}", format_number(bound));
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

fn format_number(value: &Value) -> String {
    value
        .as_f64()
        .map_or_else(|| value.to_string(), |number| format!("{number}"))
}

fn format_plain_type(field: &Value) -> String {
    let pattern = field["pattern"].as_str();
    if let Some((_, name)) = NAMED_PATTERNS
        .iter()
        .find(|(known, _)| pattern == Some(known))
    {
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
            format!("set of {}", format_plain_type(&field["items"]))
        }
        Some("array") => format!("list of {}", format_plain_type(&field["items"])),
        Some("object") if field["additionalProperties"].is_object() => {
            format!(
                "map of {}",
                format_plain_type(&field["additionalProperties"])
            )
        }
        Some("string") if field["format"] == "date-time" => "time".to_owned(),
        Some("string") => {
            pattern.map_or_else(|| "string".to_owned(), |p| format!("string like `{p}`"))
        }
        other => other.unwrap_or("value").to_owned(),
    }
}

/// Renders the rules of an object and of its fields that are not objects.
fn write_rules(out: &mut String, schema: &Value, fields: &[(&str, &Value)]) {
    let mut lines = Vec::new();
    collect_rules(&mut lines, None, schema);
    for (name, field) in fields {
        let (inner, suffix) = list_element(field);
        if inner["properties"].is_object() {
            continue;
        }
        let name = format!("{name}{suffix}");
        collect_rules(&mut lines, Some(&name), inner);
    }
    if !lines.is_empty() {
        out.push_str("\nRules:\n\n");
        for line in lines {
            let _ = writeln!(out, "- {line}");
        }
    }
}

fn collect_rules(lines: &mut Vec<String>, name: Option<&str>, schema: &Value) {
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

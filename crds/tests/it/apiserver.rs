//! The part of an API server that admits a resource: prune, default, validate, evaluate rules.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_cel::{CompiledSchema, ErrorKind, Validator, compile_schema};
use mainstay_crds::definition::{self, CrdManifest};
use regex::Regex;
use serde_json::Value;

use crate::trials::ResourceChange;

/// What is stored, or everything that is wrong: where, a colon, what.
pub(crate) type AdmissionResult = Result<Value, Vec<String>>;

/// Whom the emulator resembles.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EmulationMode {
    /// A server that is asked to refuse fields it does not know, so that no sample has a slip of the pen.
    Strict,
    /// A server that drops them.
    Tolerant,
    /// The same before 1.25, when there were no rules.
    WithoutRules,
}

/// An API server that knows one definition.
pub(crate) struct EmulatedApiServer {
    manifest: CrdManifest,
    rules: CompiledSchema,
}

thread_local! {
    static KNOWN: [Rc<EmulatedApiServer>; 3] = definition::all_crds().map(|manifest| {
        Rc::new(EmulatedApiServer { rules: compile_schema(&manifest.schema), manifest })
    });
    static PATTERNS: RefCell<HashMap<String, Regex>> = RefCell::default();
}

impl EmulatedApiServer {
    /// The one for the kind of a resource.
    pub(crate) fn for_resource(resource: &Value) -> Rc<Self> {
        let kind = resource["kind"].as_str().expect("a resource has a kind");
        KNOWN
            .with(|known| {
                known
                    .iter()
                    .find(|one| one.manifest.kind() == kind)
                    .cloned()
            })
            .expect("a known kind")
    }

    /// The schema it has learnt.
    pub(crate) fn schema(&self) -> &Value {
        &self.manifest.schema
    }

    /// What a strict one says to a new resource.
    pub(crate) fn create(&self, resource: &Value) -> AdmissionResult {
        self.admit(resource, None, EmulationMode::Strict)
    }

    /// What it says to a change.
    pub(crate) fn submit(&self, change: &ResourceChange, like: EmulationMode) -> AdmissionResult {
        match change {
            ResourceChange::Create(new) => self.admit(new, None, like),
            ResourceChange::Update(old, new) => {
                let old = self.create(old).expect("the old resource is a valid one");
                self.admit(new, Some(&old), like)
            }
        }
    }

    fn admit(&self, resource: &Value, old: Option<&Value>, like: EmulationMode) -> AdmissionResult {
        let schema = &self.manifest.schema;
        let mut stored = resource.clone();
        let mut wrong = Vec::new();
        prune(schema, &mut stored, "", &mut wrong);
        if like != EmulationMode::Strict {
            wrong.clear();
        }
        validate(schema, &stored, "", &mut wrong);
        wrong.extend(self.check_scale(&stored));
        // As the real one: rules are not evaluated on what the schema refuses already.
        if wrong.is_empty()
            && like != EmulationMode::WithoutRules
            && let Err(errors) = Validator::new().validate_compiled(&self.rules, &stored, old)
        {
            for error in &errors {
                assert_eq!(error.kind, ErrorKind::ValidationFailure, "{error:?}");
                wrong.push(format!("{}: {}", error.field_path, error.message));
            }
        }
        if wrong.is_empty() {
            Ok(stored)
        } else {
            Err(wrong)
        }
    }
}

impl EmulatedApiServer {
    /// What can be scaled has no negative size, whatever the schema says.
    fn check_scale(&self, resource: &Value) -> Option<String> {
        let version = &self.manifest.crd.spec.versions[0];
        let scale = version.subresources.as_ref()?.scale.as_ref()?;
        let path = &scale.spec_replicas_path;
        let replicas = resource.pointer(&path.replace('.', "/"))?.as_i64()?;
        (replicas < 0).then(|| format!("{path}: {replicas} is negative"))
    }
}

/// A path without the numbers of items: `.spec.urls[3]` as `spec.urls[]`.
pub(crate) fn normalize_path(path: &str) -> String {
    let parts = path.trim_start_matches('.').split('[');
    parts
        .map(|part| {
            part.split_once(']')
                .map_or_else(|| part.to_owned(), |(_, rest)| format!("[]{rest}"))
        })
        .collect()
}

/// Drops nulls and fields no schema knows, and fills defaults in; says which fields were unknown.
fn prune(schema: &Value, value: &mut Value, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            let known = schema["properties"].as_object();
            for (name, property) in known.into_iter().flatten() {
                if let (false, Some(default)) = (fields.contains_key(name), property.get("default"))
                {
                    fields.insert(name.clone(), default.clone());
                }
            }
            fields.retain(|name, field| {
                let inner = known.and_then(|known| known.get(name));
                let at = format!("{path}.{name}");
                match inner.or_else(|| schema.get("additionalProperties")) {
                    _ if path.is_empty() && name == "metadata" => true,
                    Some(inner) => {
                        prune(inner, field, &at, unknown);
                        true
                    }
                    None => {
                        unknown.push(format!("{at}: no such field"));
                        false
                    }
                }
            });
        }
        Value::Array(items) => {
            for item in items {
                prune(&schema["items"], item, &format!("{path}[]"), unknown);
            }
        }
        _ => {}
    }
}

/// Checks a value against every keyword the generated schemas use.
fn validate(schema: &Value, value: &Value, path: &str, wrong: &mut Vec<String>) {
    let mut fault = |what: String| wrong.push(format!("{path}: {what}"));
    if !has_type(schema, value) {
        fault(format!("is no {}", schema["type"]));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        fault(format!("{value} is not one of {allowed:?}"));
    }
    for complaint in check_bounds(schema, value) {
        fault(complaint);
    }
    match value {
        Value::Object(fields) => {
            for name in schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
            {
                if !fields.contains_key(name) {
                    wrong.push(format!("{path}.{name}: required"));
                }
            }
            for (name, field) in fields {
                let inner = schema["properties"]
                    .get(name)
                    .or_else(|| schema.get("additionalProperties"));
                if let Some(inner) = inner {
                    validate(inner, field, &format!("{path}.{name}"), wrong);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                validate(&schema["items"], item, &format!("{path}[]"), wrong);
            }
        }
        _ => {}
    }
}

fn has_type(schema: &Value, value: &Value) -> bool {
    if schema["x-kubernetes-int-or-string"] == true {
        return value.is_i64() || value.is_string();
    }
    match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") if schema["format"] == "date-time" => {
            serde_json::from_value::<Time>(value.clone()).is_ok()
        }
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        // An API server does not look at the format of a number: `int32` promises nothing.
        Some("integer") => value.is_i64(),
        other => panic!("a node of type {other:?}: {schema}"),
    }
}

fn check_bounds(schema: &Value, value: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let size = match value {
        Value::String(text) => Some((text.chars().count(), "Length")),
        Value::Array(items) => Some((items.len(), "Items")),
        Value::Object(fields) => Some((fields.len(), "Properties")),
        _ => None,
    };
    if let Some((size, what)) = size {
        let size = size as u64;
        if schema[format!("min{what}")]
            .as_u64()
            .is_some_and(|least| size < least)
        {
            faults.push(format!("fewer than the least {what}"));
        }
        if schema[format!("max{what}")]
            .as_u64()
            .is_some_and(|most| size > most)
        {
            faults.push(format!("more than the most {what}"));
        }
    }
    if let Some(number) = value.as_f64() {
        if schema["minimum"]
            .as_f64()
            .is_some_and(|least| number < least)
        {
            faults.push(format!("{number} is too small"));
        }
        if schema["maximum"].as_f64().is_some_and(|most| number > most) {
            faults.push(format!("{number} is too large"));
        }
    }
    if let (Some(pattern), Some(text)) = (schema["pattern"].as_str(), value.as_str())
        && !matches_pattern(pattern, text)
    {
        faults.push(format!("{text} does not match {pattern}"));
    }
    if let (true, Some(items)) = (schema["x-kubernetes-list-type"] == "set", value.as_array())
        && items
            .iter()
            .enumerate()
            .any(|(at, item)| items[..at].contains(item))
    {
        faults.push("has an item twice".to_owned());
    }
    faults
}

fn matches_pattern(pattern: &str, text: &str) -> bool {
    PATTERNS.with_borrow_mut(|known| {
        known
            .entry(pattern.to_owned())
            .or_insert_with(|| Regex::new(pattern).unwrap())
            .is_match(text)
    })
}

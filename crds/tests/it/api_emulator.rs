//! Emulates the admission of an API server: prune, default, validate, evaluate rules.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_cel::{CompiledSchema, ErrorKind, Validator, compile_schema};
use mainstay_crds::crd::{self, CrdManifest};
use regex::Regex;
use serde_json::Value;

use crate::admission::ResourceChange;

/// The stored resource, or all errors as `<path>: <message>`.
pub(crate) type AdmissionResult = Result<Value, Vec<String>>;

/// Which API server is emulated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EmulationMode {
    /// Rejects unknown fields, so that a typo in a sample fails the test.
    Strict,
    /// Drops unknown fields.
    Tolerant,
    /// Like `Tolerant`, but ignores CEL rules, as before Kubernetes 1.25.
    WithoutRules,
}

/// An emulated API server with one CRD.
pub(crate) struct EmulatedApiServer {
    manifest: CrdManifest,
    rules: CompiledSchema,
}

thread_local! {
    static KNOWN: [Rc<EmulatedApiServer>; 3] = crd::all_crds().map(|manifest| {
        Rc::new(EmulatedApiServer { rules: compile_schema(&manifest.schema), manifest })
    });
    static PATTERNS: RefCell<HashMap<String, Regex>> = RefCell::default();
}

impl EmulatedApiServer {
    /// The emulator for the kind of a resource.
    pub(crate) fn for_resource(resource: &Value) -> Rc<Self> {
        let kind = resource["kind"].as_str().expect("the resource has a kind");
        KNOWN
            .with(|emulators| {
                emulators
                    .iter()
                    .find(|one| one.manifest.kind() == kind)
                    .cloned()
            })
            .expect("the kind has a CRD")
    }

    /// Schema of the CRD.
    pub(crate) fn schema(&self) -> &Value {
        &self.manifest.schema
    }

    /// The answer to a create in mode `Strict`.
    pub(crate) fn create(&self, resource: &Value) -> AdmissionResult {
        self.admit(resource, None, EmulationMode::Strict)
    }

    /// The answer to a change.
    pub(crate) fn submit(&self, change: &ResourceChange, mode: EmulationMode) -> AdmissionResult {
        match change {
            ResourceChange::Create(new) => self.admit(new, None, mode),
            ResourceChange::Update(old, new) => {
                let old = self.create(old).expect("the old resource is valid");
                self.admit(new, Some(&old), mode)
            }
        }
    }

    fn admit(&self, resource: &Value, old: Option<&Value>, mode: EmulationMode) -> AdmissionResult {
        let schema = &self.manifest.schema;
        let mut stored = resource.clone();
        let mut errors = Vec::new();
        prune(schema, &mut stored, "", &mut errors);
        if mode != EmulationMode::Strict {
            errors.clear();
        }
        validate(schema, &stored, "", &mut errors);
        errors.extend(self.check_scale(&stored));
        // Like the real API server: rules are not evaluated if the schema already rejects the resource.
        if errors.is_empty()
            && mode != EmulationMode::WithoutRules
            && let Err(violations) = Validator::new().validate_compiled(&self.rules, &stored, old)
        {
            for error in &violations {
                assert_eq!(error.kind, ErrorKind::ValidationFailure, "{error:?}");
                errors.push(format!("{}: {}", error.field_path, error.message));
            }
        }
        if errors.is_empty() {
            Ok(stored)
        } else {
            Err(errors)
        }
    }
}

impl EmulatedApiServer {
    /// The scale subresource rejects negative replicas, whatever the schema says.
    fn check_scale(&self, resource: &Value) -> Option<String> {
        let version = &self.manifest.crd.spec.versions[0];
        let scale = version.subresources.as_ref()?.scale.as_ref()?;
        let path = &scale.spec_replicas_path;
        let replicas = resource.pointer(&path.replace('.', "/"))?.as_i64()?;
        (replicas < 0).then(|| format!("{path}: {replicas} is negative"))
    }
}

/// A path without list indexes: `.spec.urls[3]` becomes `spec.urls[]`.
pub(crate) fn normalize_path(path: &str) -> String {
    let parts = path.trim_start_matches('.').split('[');
    parts
        .map(|part| {
            part.split_once(']')
                .map_or_else(|| part.to_owned(), |(_, rest)| format!("[]{rest}"))
        })
        .collect()
}

/// Drops nulls and unknown fields and applies defaults; collects the unknown fields.
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
                        unknown.push(format!("{at}: unknown field"));
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

/// Validates a value against every keyword that the generated schemas use.
fn validate(schema: &Value, value: &Value, path: &str, errors: &mut Vec<String>) {
    let mut add_error = |what: String| errors.push(format!("{path}: {what}"));
    if !has_type(schema, value) {
        add_error(format!("must be of type {}", schema["type"]));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        add_error(format!("{value} is not one of {allowed:?}"));
    }
    for error in check_bounds(schema, value) {
        add_error(error);
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
                    errors.push(format!("{path}.{name}: required"));
                }
            }
            for (name, field) in fields {
                let inner = schema["properties"]
                    .get(name)
                    .or_else(|| schema.get("additionalProperties"));
                if let Some(inner) = inner {
                    validate(inner, field, &format!("{path}.{name}"), errors);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                validate(&schema["items"], item, &format!("{path}[]"), errors);
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
        // An API server ignores the format of a number: `int32` does not limit the value.
        Some("integer") => value.is_i64(),
        other => panic!("a node of type {other:?}: {schema}"),
    }
}

fn check_bounds(schema: &Value, value: &Value) -> Vec<String> {
    let mut errors = Vec::new();
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
            errors.push(format!("below min{what}"));
        }
        if schema[format!("max{what}")]
            .as_u64()
            .is_some_and(|most| size > most)
        {
            errors.push(format!("above max{what}"));
        }
    }
    if let Some(number) = value.as_f64() {
        if schema["minimum"]
            .as_f64()
            .is_some_and(|least| number < least)
        {
            errors.push(format!("{number} is below the minimum"));
        }
        if schema["maximum"].as_f64().is_some_and(|most| number > most) {
            errors.push(format!("{number} is above the maximum"));
        }
    }
    if let (Some(pattern), Some(text)) = (schema["pattern"].as_str(), value.as_str())
        && !matches_pattern(pattern, text)
    {
        errors.push(format!("{text} does not match {pattern}"));
    }
    if let (true, Some(items)) = (schema["x-kubernetes-list-type"] == "set", value.as_array())
        && items
            .iter()
            .enumerate()
            .any(|(at, item)| items[..at].contains(item))
    {
        errors.push("contains a duplicate item".to_owned());
    }
    errors
}

fn matches_pattern(pattern: &str, text: &str) -> bool {
    PATTERNS.with_borrow_mut(|known| {
        known
            .entry(pattern.to_owned())
            .or_insert_with(|| Regex::new(pattern).unwrap())
            .is_match(text)
    })
}

//! The three `CustomResourceDefinition`s, made from the types.
//!
//! ```text
//! Rust types ─ schemars ─► JSON Schema ─ structural ─► OpenAPI v3 ─ shape, rules ─► definition ─► YAML
//! ```
//!
//! **Comes in**: the derives of [`Etcd`], [`EtcdCopyBackupsTask`] and [`EtcdOpsTask`], and the tables of
//! [`rules`]. **Goes out**: definitions an API server of 1.20 and every later one accepts. What kube's
//! own `crd()` gives lacks the rules and lets nulls be stored: install what comes from here.
//!
//! **Holds**: the schemas are structural; a default stands only where etcd-druid has one or in a field of
//! ours; no field can be null, so an API server drops nulls, as it does with etcd-druid's definitions.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceValidation, JSONSchemaProps,
};
use kube_core::CustomResourceExt;
use schemars::JsonSchema;
use serde_json::{Value, json};

use crate::rules::{self, CelRule};
use crate::structural::make_structural;
use crate::{Etcd, EtcdCopyBackupsTask, EtcdOpsTask};

/// What the API server takes for a quantity.
pub const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// A definition, with its schema as it is written to files.
#[derive(Clone, Debug)]
pub struct CrdManifest {
    /// The definition, to be applied through a client.
    pub crd: CustomResourceDefinition,
    /// The schema of its only version, as JSON.
    pub schema: Value,
    /// The rules in the schema.
    pub rules: &'static [CelRule],
}

impl CrdManifest {
    /// The kind it defines.
    pub fn kind(&self) -> &str {
        &self.crd.spec.names.kind
    }

    /// The same without rules, for an API server before 1.25. Such a server drops rules by itself, but its
    /// server-side apply and the validation of its `kubectl` refuse what they do not know.
    #[must_use]
    pub fn without_rules(&self) -> Self {
        let mut schema = self.schema.clone();
        strip_rules(&mut schema);
        Self {
            crd: with_schema(self.crd.clone(), &schema),
            schema,
            rules: &[],
        }
    }

    /// The definition as JSON. Numbers are written as the types have them, not as floats.
    ///
    /// # Panics
    ///
    /// Never: every definition can be written as JSON.
    pub fn to_value(&self) -> Value {
        let mut value = serde_json::to_value(&self.crd).expect("a definition is JSON");
        value["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = self.schema.clone();
        value
    }
}

/// Takes the rules out of a schema, wherever they stand.
fn strip_rules(node: &mut Value) {
    match node {
        Value::Object(map) => {
            map.remove("x-kubernetes-validations");
            map.values_mut().for_each(strip_rules);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_rules),
        _ => {}
    }
}

/// The definition of `Etcd`.
pub fn etcd_crd() -> CrdManifest {
    build_crd::<Etcd>(rules::ETCD, SpecRequirement::SpecOptional)
}

/// The definition of `EtcdCopyBackupsTask`.
pub fn copy_backups_task_crd() -> CrdManifest {
    build_crd::<EtcdCopyBackupsTask>(rules::COPY, SpecRequirement::SpecOptional)
}

/// The definition of `EtcdOpsTask`.
pub fn ops_task_crd() -> CrdManifest {
    build_crd::<EtcdOpsTask>(rules::OPS, SpecRequirement::SpecRequired)
}

/// All definitions.
pub fn all_crds() -> [CrdManifest; 3] {
    [etcd_crd(), copy_backups_task_crd(), ops_task_crd()]
}

/// Whether the schema asks for a `spec`. etcd-druid's does for ops tasks only, and ours is never stricter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SpecRequirement {
    SpecRequired,
    SpecOptional,
}

fn build_crd<R: CustomResourceExt + JsonSchema>(rules: &'static [CelRule], root: SpecRequirement) -> CrdManifest {
    let schema = build_schema::<R>(rules, root);
    let mut crd = R::crd();
    crd.spec.names.list_kind = Some(format!("{}List", crd.spec.names.kind));
    CrdManifest {
        crd: with_schema(crd, &schema),
        schema,
        rules,
    }
}

fn with_schema(mut crd: CustomResourceDefinition, schema: &Value) -> CustomResourceDefinition {
    let typed: JSONSchemaProps =
        serde_json::from_value(schema.clone()).expect("the schema is an OpenAPI v3 schema");
    for version in &mut crd.spec.versions {
        version.schema = Some(CustomResourceValidation {
            open_api_v3_schema: Some(typed.clone()),
        });
    }
    crd
}

fn build_schema<R: JsonSchema>(rules: &[CelRule], root: SpecRequirement) -> Value {
    let generator = schemars::generate::SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .into_generator();
    let mut schema = generator.into_root_schema_for::<R>().to_value();
    make_structural(&mut schema);
    complete_kubernetes_types(&mut schema);
    complete_root(&mut schema, root);
    for rule in rules {
        let place = find_schema_node(&mut schema, rule.path).expect("a rule stands at a place of the schema");
        attach_rule(place, rule);
    }
    schema
}

/// What the types of Kubernetes leave out of their schemas.
fn complete_kubernetes_types(node: &mut Value) {
    let Some(map) = node.as_object_mut() else {
        return;
    };
    if map.contains_key("x-kubernetes-int-or-string") {
        map.insert(
            "anyOf".into(),
            json!([{ "type": "integer" }, { "type": "string" }]),
        );
        map.insert("pattern".into(), QUANTITY_PATTERN.into());
        // The grammar of quantities, three screens of it, at every limit and request.
        if map
            .get("description")
            .and_then(Value::as_str)
            .is_some_and(|d| d.starts_with("Quantity is"))
        {
            map.remove("description");
        }
        return;
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        for (name, property) in properties {
            if name == "claims"
                && let Some(claims) = property.as_object_mut()
            {
                claims.insert("x-kubernetes-list-type".into(), "map".into());
                claims.insert("x-kubernetes-list-map-keys".into(), json!(["name"]));
            }
            complete_kubernetes_types(property);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = map.get_mut(key) {
            complete_kubernetes_types(child);
        }
    }
}

/// Adds what every resource has, and drops the demand for a spec where nobody else makes it.
fn complete_root(schema: &mut Value, root: SpecRequirement) {
    schema["properties"]["apiVersion"] =
        json!({ "type": "string", "description": "Always `druid.gardener.cloud/v1alpha1`." });
    schema["properties"]["kind"] =
        json!({ "type": "string", "description": "The kind of this resource." });
    schema["properties"]["metadata"] = json!({ "type": "object" });
    if root == SpecRequirement::SpecOptional
        && let Some(map) = schema.as_object_mut()
    {
        map.remove("required");
    }
}

fn attach_rule(place: &mut Value, rule: &CelRule) {
    let written = json!({ "rule": rule.rule, "message": rule.message });
    match &mut place["x-kubernetes-validations"] {
        Value::Array(rules) => rules.push(written),
        none => *none = json!([written]),
    }
}

/// The part of a schema that a dotted path leads to; `[]` steps into the items of a list.
fn find_schema_node<'a>(schema: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.')
        .filter(|segment| !segment.is_empty())
        .try_fold(schema, |node, segment| {
            let name = segment.trim_end_matches("[]");
            let property = node.get_mut("properties")?.get_mut(name)?;
            if segment.ends_with("[]") {
                property.get_mut("items")
            } else {
                Some(property)
            }
        })
}

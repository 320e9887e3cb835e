//! The three `CustomResourceDefinition`s, generated from the types.
//!
//! ```text
//! Rust types ─ schemars ─► JSON Schema ─ structural ─► OpenAPI v3 ─ shape, rules ─► CRD ─► YAML
//! ```
//!
//! The input is the derives of [`Etcd`], [`EtcdCopyBackupsTask`] and [`EtcdOpsTask`] and the tables of [`rules`]. The
//! output is accepted by every API server from Kubernetes 1.30 on. Install the CRDs of this module: kube's own `crd()` lacks the
//! rules and allows null values to be stored.
//!
//! **Invariants**: the schemas are structural. A field has a default only where etcd-druid has one or where the field is
//! an addition of ours. No field is nullable, so an API server drops nulls, as with etcd-druid's CRDs.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceValidation, JSONSchemaProps,
};
use kube_core::CustomResourceExt;
use schemars::JsonSchema;
use serde_json::{Value, json};

use crate::rules::{self, CelRule};
use crate::structural::make_structural;
use crate::{Etcd, EtcdCopyBackupsTask, EtcdOpsTask};

/// Pattern of a quantity, as the API server parses it.
pub const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// A CRD and its schema as it is written to files.
#[derive(Clone, Debug)]
pub struct CrdManifest {
    /// The typed CRD, for an apply through a client.
    pub crd: CustomResourceDefinition,
    /// Schema of the only version, as JSON.
    pub schema: Value,
    /// CEL rules in the schema.
    pub rules: &'static [CelRule],
}

impl CrdManifest {
    /// Kind that the CRD defines.
    pub fn kind(&self) -> &str {
        &self.crd.spec.names.kind
    }

    /// The CRD as JSON. Integers stay integers; the typed schema would write them as floats.
    ///
    /// # Panics
    ///
    /// Never: every CRD can be written as JSON.
    pub fn to_value(&self) -> Value {
        let mut value = serde_json::to_value(&self.crd).expect("a CRD can be written as JSON");
        value["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = self.schema.clone();
        value
    }
}

/// The CRD of `Etcd`.
pub fn etcd_crd() -> CrdManifest {
    build_crd::<Etcd>(rules::ETCD, SpecRequirement::SpecOptional)
}

/// The CRD of `EtcdCopyBackupsTask`.
pub fn copy_backups_task_crd() -> CrdManifest {
    build_crd::<EtcdCopyBackupsTask>(rules::COPY, SpecRequirement::SpecOptional)
}

/// The CRD of `EtcdOpsTask`.
pub fn ops_task_crd() -> CrdManifest {
    build_crd::<EtcdOpsTask>(rules::OPS, SpecRequirement::SpecRequired)
}

/// All CRDs.
pub fn all_crds() -> [CrdManifest; 3] {
    [etcd_crd(), copy_backups_task_crd(), ops_task_crd()]
}

/// Whether the schema requires a `spec`. etcd-druid requires it for ops tasks only, and ours is never stricter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SpecRequirement {
    SpecRequired,
    SpecOptional,
}

fn build_crd<R: CustomResourceExt + JsonSchema>(
    rules: &'static [CelRule],
    root: SpecRequirement,
) -> CrdManifest {
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
            // Structural schemas must not contain `$ref`.
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .into_generator();
    let mut schema = generator.into_root_schema_for::<R>().to_value();
    make_structural(&mut schema);
    complete_kubernetes_types(&mut schema);
    complete_root(&mut schema, root);
    for rule in rules {
        let place = find_schema_node(&mut schema, rule.path)
            .expect("the path of a rule exists in the schema");
        attach_rule(place, rule);
    }
    schema
}

/// Adds what the schemas of the Kubernetes types lack.
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
        // The description of Quantity is three screens long and would repeat at every limit and request.
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
            add_merge_strategy(name, property);
            complete_kubernetes_types(property);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = map.get_mut(key) {
            complete_kubernetes_types(child);
        }
    }
}

/// Lists and objects of Kubernetes types that server-side apply replaces as a whole.
const ATOMIC: [&str; 12] = [
    "labelSelector",
    "matchExpressions",
    "matchFields",
    "matchLabelKeys",
    "mismatchLabelKeys",
    "namespaces",
    "namespaceSelector",
    "nodeSelectorTerms",
    "preference",
    "preferredDuringSchedulingIgnoredDuringExecution",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "values",
];

/// Adds how server-side apply merges a property, which k8s-openapi omits.
fn add_merge_strategy(name: &str, property: &mut Value) {
    if name == "claims" {
        property["x-kubernetes-list-type"] = "map".into();
        property["x-kubernetes-list-map-keys"] = json!(["name"]);
    } else if ATOMIC.contains(&name) {
        let keyword = if property["type"] == "array" {
            "x-kubernetes-list-type"
        } else {
            "x-kubernetes-map-type"
        };
        property[keyword] = "atomic".into();
        if name == "nodeSelectorTerms" {
            property["items"]["x-kubernetes-map-type"] = "atomic".into();
        }
    }
}

/// Adds the fields of every resource, and makes `spec` optional where etcd-druid does.
fn complete_root(schema: &mut Value, root: SpecRequirement) {
    schema["properties"]["apiVersion"] = json!({ "type": "string", "description": "API version, always `druid.gardener.cloud/v1alpha1`." });
    schema["properties"]["kind"] =
        json!({ "type": "string", "description": "Kind of this resource." });
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

/// The schema node at a dotted path; `[]` steps into the items of a list.
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

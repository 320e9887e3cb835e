//! What an API server requires of a CRD before it installs it.

use mainstay_crds::crd::{self, CrdManifest};
use serde_json::{Value, json};

/// Collects every node of a schema with its path.
fn collect_nodes<'a>(schema: &'a Value, path: &str, out: &mut Vec<(String, &'a Value)>) {
    out.push((path.to_owned(), schema));
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        collect_nodes(property, &format!("{path}.{name}"), out);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = schema.get(key) {
            collect_nodes(child, &format!("{path}[]"), out);
        }
    }
}

fn for_each_node(mut check: impl FnMut(&CrdManifest, &str, &Value)) {
    for definition in crd::all_crds() {
        let mut all = Vec::new();
        collect_nodes(&definition.schema, "", &mut all);
        for (path, node) in all {
            check(&definition, &path, node);
        }
    }
}

#[test]
fn schemas_are_structural() {
    /// Some API server rejects or ignores every other keyword.
    const KEYWORDS: [&str; 24] = [
        "additionalProperties",
        "anyOf",
        "default",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "pattern",
        "properties",
        "required",
        "type",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
        "x-kubernetes-validations",
    ];
    for_each_node(|_, path, node| {
        let fields = node
            .as_object()
            .unwrap_or_else(|| panic!("{path} is {node}"));
        for keyword in fields.keys() {
            assert!(KEYWORDS.contains(&keyword.as_str()), "{path} has {keyword}");
        }
        if node["x-kubernetes-int-or-string"] == true {
            assert_eq!(
                node["anyOf"],
                json!([{ "type": "integer" }, { "type": "string" }]),
                "{path}"
            );
            assert!(node.get("type").is_none(), "{path}");
        } else {
            assert!(node["type"].is_string(), "{path} has no type: {node}");
            assert!(node.get("anyOf").is_none(), "{path}");
        }
        assert_eq!(
            node["type"] == "array",
            node.get("items").is_some(),
            "{path}"
        );
        let both = node.get("properties").is_some() && node.get("additionalProperties").is_some();
        assert!(!both, "{path} has named and other properties");
    });
}

#[test]
fn formats_are_supported_by_kubernetes() {
    for_each_node(|_, path, node| {
        if let Some(format) = node["format"].as_str() {
            assert!(
                ["int32", "int64", "date-time"].contains(&format),
                "{path} has format {format}"
            );
        }
        assert!(
            node["type"] != "integer" || node.get("format").is_some(),
            "{path} has no format"
        );
    });
}

#[test]
fn only_ops_tasks_have_defaults() {
    let mut found = Vec::new();
    for_each_node(|definition, path, node| {
        if let Some(default) = node.get("default") {
            found.push((
                definition.kind().to_owned(),
                path.to_owned(),
                default.clone(),
            ));
        }
    });
    let expected = [
        (".spec.config.onDemandSnapshot.timeoutSecondsDelta", 60),
        (".spec.config.onDemandSnapshot.timeoutSecondsFull", 900),
        (".spec.ttlSecondsAfterFinished", 3600),
    ];
    let expected =
        expected.map(|(path, value)| ("EtcdOpsTask".to_owned(), path.to_owned(), json!(value)));
    assert_eq!(found, expected);
}

#[test]
fn every_own_field_is_documented() {
    for_each_node(|_, path, node| {
        let foreign = [
            "affinity",
            "topologySpread",
            "tolerations",
            "elector",
            "resources",
            "metadata",
            "[]",
        ];
        if !path.is_empty() && !foreign.iter().any(|part| path.contains(part)) {
            assert!(
                node["description"]
                    .as_str()
                    .is_some_and(|text| text.len() > 10),
                "{path}"
            );
        }
    });
}

#[test]
fn set_lists_hold_strings() {
    for_each_node(|_, path, node| {
        if node["x-kubernetes-list-type"] == "set" {
            assert_eq!(node["items"]["type"], "string", "{path}");
        }
    });
}

#[test]
fn schemas_contain_every_rule() {
    for definition in crd::all_crds() {
        let mut nodes = Vec::new();
        collect_nodes(&definition.schema, "", &mut nodes);
        let rules = nodes
            .iter()
            .map(|(_, node)| node["x-kubernetes-validations"].as_array());
        let found: usize = rules.flatten().map(Vec::len).sum();
        assert_eq!(found, definition.rules.len(), "{}", definition.kind());
    }
}

#[test]
fn typed_and_generated_schemas_match() {
    /// Numbers as floats: JSON distinguishes 1 and 1.0, Kubernetes does not.
    fn normalize_numbers(value: &Value) -> Value {
        match value {
            Value::Number(number) => json!(number.as_f64()),
            Value::Array(items) => items.iter().map(normalize_numbers).collect(),
            Value::Object(fields) => fields
                .iter()
                .map(|(k, v)| (k.clone(), normalize_numbers(v)))
                .collect(),
            other => other.clone(),
        }
    }
    for definition in crd::all_crds() {
        assert_eq!(
            normalize_numbers(&serde_json::to_value(&definition.crd).unwrap()),
            normalize_numbers(&definition.to_value())
        );
    }
}

fn only_version(definition: &CrdManifest) -> Value {
    let spec = &definition.to_value()["spec"];
    assert_eq!(spec["group"], mainstay_crds::GROUP);
    assert_eq!(spec["scope"], "Namespaced");
    let versions = spec["versions"].as_array().unwrap();
    assert_eq!(versions.len(), 1);
    assert_eq!(versions[0]["name"], mainstay_crds::VERSION);
    assert_eq!(
        [&versions[0]["served"], &versions[0]["storage"]],
        [&json!(true), &json!(true)]
    );
    versions[0].clone()
}

/// Name, path, and whether the column is shown only with `-o wide`.
fn printer_columns(version: &Value) -> Vec<(String, String, bool)> {
    let printer_columns = version["additionalPrinterColumns"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    printer_columns
        .iter()
        .map(|c| (text(&c["name"]), text(&c["jsonPath"]), c["priority"] == 1))
        .collect()
}

#[test]
fn etcd_scale_and_printer_columns_match_etcd_druid() {
    let etcd = crd::etcd_crd();
    let version = only_version(&etcd);
    assert_eq!(
        etcd.to_value()["metadata"]["name"],
        "etcds.druid.gardener.cloud"
    );
    assert_eq!(
        version["subresources"],
        json!({
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        })
    );
    let condition = |name: &str| format!(r#".status.conditions[?(@.type=="{name}")].status"#);
    let expected = [
        ("Ready", ".status.ready".to_owned(), false),
        ("Quorate", condition("Ready"), false),
        ("All Members Ready", condition("AllMembersReady"), false),
        ("Backup Ready", condition("BackupReady"), false),
        ("Cluster ID Mismatch", condition("ClusterIDMismatch"), false),
        ("Age", ".metadata.creationTimestamp".to_owned(), false),
        ("Cluster Size", ".spec.replicas".to_owned(), true),
        (
            "Current Replicas",
            ".status.currentReplicas".to_owned(),
            true,
        ),
        ("Ready Replicas", ".status.readyReplicas".to_owned(), true),
    ];
    assert_eq!(
        printer_columns(&version),
        expected.map(|(name, path, is_wide)| (name.to_owned(), path, is_wide))
    );
}

#[test]
fn task_crds_have_expected_names_status_and_columns() {
    let ops = crd::ops_task_crd();
    let value = ops.to_value();
    assert_eq!(
        value["metadata"]["name"],
        "etcdopstasks.druid.gardener.cloud"
    );
    assert_eq!(value["spec"]["names"]["shortNames"], json!(["eot"]));
    assert_eq!(only_version(&ops)["subresources"], json!({ "status": {} }));
    let names: Vec<_> = printer_columns(&only_version(&ops))
        .into_iter()
        .map(|(name, _, is_wide)| (name, is_wide))
        .collect();
    let expected = [
        ("State", false),
        ("Etcd", false),
        ("Age", false),
        ("Phase", true),
        ("TTL", true),
    ];
    assert_eq!(
        names,
        expected.map(|(name, is_wide)| (name.to_owned(), is_wide))
    );

    let copy = crd::copy_backups_task_crd();
    let value = copy.to_value();
    assert_eq!(
        value["metadata"]["name"],
        "etcdcopybackupstasks.druid.gardener.cloud"
    );
    assert!(value["spec"]["names"].get("shortNames").is_none());
    assert_eq!(only_version(&copy)["subresources"], json!({ "status": {} }));
    assert_eq!(printer_columns(&only_version(&copy)).len(), 1);
}

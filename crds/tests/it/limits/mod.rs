//! What the schemas reject, and which unusual values they accept.

mod etcd;
pub(crate) mod tasks;

use std::collections::BTreeSet;

use mainstay_crds::crd;
use serde_json::Value;

use crate::admission::{AdmissionCase, AdmissionCases, ExpectedAdmission, without_indexes};

/// The cases of all claims.
pub(crate) fn admission_cases() -> Vec<AdmissionCase> {
    AdmissionCases::collect(&[etcd::CLAIMS, tasks::CLAIMS].concat())
}

/// Keywords that limit a value further than its type.
const LIMITS: [&str; 9] = [
    "pattern",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "maxItems",
    "minProperties",
    "maxProperties",
];

/// Collects the paths of all fields with a limit, and of all required fields; not those of Kubernetes types.
fn collect_limited(schema: &Value, path: &str, out: &mut BTreeSet<String>) {
    const FOREIGN: [&str; 5] = [
        ".affinity",
        ".topologySpreadConstraints",
        ".tolerations",
        "elector",
        ".resources",
    ];
    if FOREIGN.iter().any(|foreign| path.ends_with(foreign)) {
        return;
    }
    if LIMITS.iter().any(|keyword| schema.get(keyword).is_some()) {
        out.insert(path.to_owned());
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        out.insert(format!("{path}.{}", name.as_str().unwrap()));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        collect_limited(property, &format!("{path}.{name}"), out);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = schema.get(key) {
            collect_limited(child, &format!("{path}[]"), out);
        }
    }
}

#[test]
fn every_limit_has_a_rejected_case() {
    for definition in crd::all_crds() {
        let mut limited = BTreeSet::new();
        // Only controllers write the status.
        collect_limited(
            &definition.schema["properties"]["spec"],
            "spec",
            &mut limited,
        );
        let cases = admission_cases();
        let of_kind =
            |case: &&AdmissionCase| case.change.new_resource()["kind"] == definition.kind();
        let rejected = cases.iter().filter(of_kind);
        let rejected: Vec<String> = rejected
            .filter_map(|case| match &case.expected {
                ExpectedAdmission::Rejected { field }
                | ExpectedAdmission::FieldMissing { field } => Some(without_indexes(field)),
                _ => None,
            })
            .collect();
        // A case names a list, or an item of it.
        let has_case = |path: &String| {
            let list = path.trim_end_matches("[]");
            rejected.iter().any(|field| field == path || field == list)
        };
        let missing: Vec<_> = limited.iter().filter(|path| !has_case(path)).collect();
        assert!(missing.is_empty(), "{}: {missing:#?}", definition.kind());
    }
}

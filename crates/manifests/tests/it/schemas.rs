//! Several Kubernetes versions accept everything that the controller and the chart render.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use mainstay_crds::Etcd;
use mainstay_manifests::{RenderInput, RuntimeComponents, render};
use serde::Serialize;

use crate::chart;
use crate::support::{etcd_variants, load_sample, render_all_copies, render_jobs, settings};

const SCHEMA_VERSIONS: [&str; 3] = ["1.30", "1.32", "1.36"];
/// The sample with every field uses fields that older versions do not have.
const NEWER_VERSIONS: [&str; 2] = ["1.32", "1.36"];

fn validator_binary() -> PathBuf {
    let path = std::env::var_os("MAINSTAY_KUBERNETES_VALIDATE").map(PathBuf::from);
    let found = path.filter(|path| path.is_file());
    found.expect("MAINSTAY_KUBERNETES_VALIDATE is not the path of a program; run `make setup`")
}

/// Validates documents against the schemas of each version; unknown fields are errors.
fn validate(documents: &[String], versions: &[&str]) {
    // Many documents are equal, for example the Leases of variants that differ in the store only.
    let different: BTreeSet<&str> = documents.iter().map(String::as_str).collect();
    let documents: Vec<&str> = different.into_iter().collect();
    let mut file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    file.write_all(documents.join("\n---\n").as_bytes())
        .unwrap();
    for version in versions {
        let output = Command::new(validator_binary())
            .args(["--strict", "--quiet", "-k"])
            .args([version])
            .arg(file.path())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{version}: {errors}");
    }
}

/// JSON, because YAML parsers disagree about words like `yes`.
fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

/// All objects and Jobs of one Etcd.
fn render_documents(etcd: &Etcd, shape: &RenderInput) -> Vec<String> {
    let manifests = render(etcd, &settings(), shape).unwrap();
    let objects = manifests.to_objects().unwrap();
    let jobs = render_jobs(etcd, shape);
    let objects = objects.iter().map(|object| to_json(&object.object));
    objects.chain(jobs.iter().map(to_json)).collect()
}

#[test]
fn rendered_objects_pass_schema_validation() {
    let (everything, others): (Vec<_>, Vec<_>) = etcd_variants()
        .into_iter()
        .partition(|(name, _, _)| name == "etcd-everything.yaml");
    let of = |some: &[(String, Etcd, RenderInput)]| -> Vec<String> {
        let all = some
            .iter()
            .flat_map(|(_, etcd, shape)| render_documents(etcd, shape));
        all.collect()
    };
    let mut common = of(&others);
    common.extend(render_all_copies().iter().map(to_json));
    assert!(common.len() > 500, "{}", common.len());
    validate(&common, &SCHEMA_VERSIONS);
    validate(&of(&everything), &NEWER_VERSIONS);
}

#[test]
fn objects_without_runtime_components_pass_schema_validation() {
    let etcd = load_sample("etcd-s3.yaml");
    let shape = RenderInput {
        runtime_components: RuntimeComponents::Disabled,
        ..RenderInput::from_etcd(&etcd)
    };
    let objects = render(&etcd, &settings(), &shape)
        .unwrap()
        .to_objects()
        .unwrap();
    let objects: Vec<String> = objects
        .iter()
        .map(|object| to_json(&object.object))
        .collect();
    // Older schemas require `serviceName`, although their API servers do not.
    validate(&objects, &["1.36"]);
}

#[test]
fn chart_objects_pass_schema_validation() {
    let everything = [
        "--kube-version=1.31.0",
        r#"networkPolicy={"enabled": true, "from": [{"podSelector": {}}]}"#,
        r#"tolerations=[{"operator": "Exists"}]"#,
        r#"priorityClassName="system-cluster-critical""#,
        r#"imagePullSecrets=[{"name": "a"}]"#,
        r#"dashboards={"enabled": true}"#,
        r#"rbac={"secretNamespaces": ["a", "b"], "releaseSecrets": true}"#,
    ];
    for values in [&everything[..], &[r#"watchNamespace="shoot""#]] {
        let objects = chart::render_chart(&chart::helm_binaries()[0], values).unwrap();
        // The CRDs are tested with a real API server elsewhere.
        let own = objects
            .iter()
            .filter(|object| object["kind"] != "CustomResourceDefinition");
        let documents: Vec<String> = own.map(to_json).collect();
        validate(&documents, &SCHEMA_VERSIONS);
    }
}

#[test]
#[should_panic(expected = "Additional properties are not allowed")]
fn unknown_field_fails_schema_validation() {
    let wrong = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndatta: {}\n";
    validate(&[wrong.to_owned()], &SCHEMA_VERSIONS);
}

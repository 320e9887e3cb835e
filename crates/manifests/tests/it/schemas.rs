//! Everything that is rendered, by the controller and by the chart, is what several Kubernetes versions understand.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use mainstay_crds::Etcd;
use mainstay_manifests::{RuntimeComponents, RenderInput, render};
use serde::Serialize;

use crate::chart;
use crate::support::{render_all_copies, render_jobs, load_sample, settings, etcd_variants};

const SCHEMA_VERSIONS: [&str; 3] = ["1.28", "1.32", "1.36"];
/// A resource with everything uses what older ones do not know.
const NEWER_VERSIONS: [&str; 2] = ["1.32", "1.36"];

fn validator_binary() -> PathBuf {
    let path = std::env::var_os("MAINSTAY_KUBERNETES_VALIDATE").map(PathBuf::from);
    let found = path.filter(|path| path.is_file());
    found.expect("MAINSTAY_KUBERNETES_VALIDATE names no program; run `make setup`")
}

/// Checks documents against the schemas of each version, where a field nobody knows is an error.
fn validate(documents: &[String], versions: &[&str]) {
    // Many are the same: a Lease is a Lease, whatever the store.
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
        let complaint = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{version}: {complaint}");
    }
}

/// JSON, since parsers of YAML disagree about words like `yes`.
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
fn what_the_controller_applies_is_understood() {
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
fn a_template_for_others_to_run_is_understood() {
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
    // Older schemas call the name of the Service required, which their servers do not.
    validate(&objects, &["1.36"]);
}

#[test]
fn what_the_chart_installs_is_understood() {
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
        // The definitions have tests of their own, with a real API server.
        let own = objects
            .iter()
            .filter(|object| object["kind"] != "CustomResourceDefinition");
        let documents: Vec<String> = own.map(to_json).collect();
        validate(&documents, &SCHEMA_VERSIONS);
    }
}

#[test]
#[should_panic(expected = "Additional properties are not allowed")]
fn a_field_nobody_knows_would_be_found() {
    let wrong = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndatta: {}\n";
    validate(&[wrong.to_owned()], &SCHEMA_VERSIONS);
}

//! Everything that is rendered, by the controller and by the chart, is what several Kubernetes versions understand.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use serde::Serialize;
use steward_manifests::{RuntimeComponents, Shape, render};

use crate::chart;
use crate::support::{copies, jobs, settings, variety};

const VERSIONS: [&str; 3] = ["1.28", "1.32", "1.36"];

fn validator() -> PathBuf {
    let path = std::env::var_os("STEWARD_KUBERNETES_VALIDATE").map(PathBuf::from);
    let found = path.filter(|path| path.is_file());
    found.expect("STEWARD_KUBERNETES_VALIDATE names no program; run `make setup`")
}

/// Checks documents against the schemas of each version, where a field nobody knows is an error.
fn validate(documents: &[String]) {
    let mut file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    file.write_all(documents.join("---\n").as_bytes()).unwrap();
    for version in VERSIONS {
        let output = Command::new(validator())
            .args(["--strict", "--quiet", "-k", version])
            .arg(file.path())
            .output()
            .unwrap();
        let complaint = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{version}: {complaint}");
    }
}

fn yaml(value: &impl Serialize) -> String {
    serde_norway::to_string(value).unwrap()
}

#[test]
fn what_the_controller_applies_is_understood() {
    let mut documents = Vec::new();
    for (_, etcd, shape) in variety() {
        let manifests = render(&etcd, &settings(), &shape).unwrap();
        documents.extend(manifests.objects().unwrap().iter().map(|o| yaml(&o.object)));
        documents.extend(jobs(&etcd, &shape).iter().map(yaml));
        let template_only = Shape {
            runtime_components: RuntimeComponents::Disabled,
            ..shape
        };
        let manifests = render(&etcd, &settings(), &template_only).unwrap();
        documents.push(yaml(&manifests.config_map));
    }
    documents.extend(copies().iter().map(yaml));
    assert!(documents.len() > 500, "{}", documents.len());
    validate(&documents);
}

#[test]
fn what_the_chart_installs_is_understood() {
    let everything = [
        "--kube-version=1.31.0",
        r#"networkPolicy={"enabled": true, "from": [{"podSelector": {}}]}"#,
        r#"tolerations=[{"operator": "Exists"}]"#,
        r#"priorityClassName="system-cluster-critical""#,
        r#"imagePullSecrets=[{"name": "a"}]"#,
    ];
    for values in [&everything[..], &[r#"watchNamespace="shoot""#]] {
        let objects = chart::template(&chart::helms()[0], values).unwrap();
        let documents: Vec<String> = objects.iter().map(yaml).collect();
        validate(&documents);
    }
}

#[test]
#[should_panic(expected = "Additional properties are not allowed")]
fn a_field_nobody_knows_would_be_found() {
    validate(&["apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndatta: {}\n".to_owned()]);
}

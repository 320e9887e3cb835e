//! The chart: what it installs, and what values it takes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::apps::v1::Deployment;
use serde::Deserialize as _;
use serde_json::Value;

use crate::support::folder;

const VERSIONS: [&str; 4] = ["1.20.2", "1.28.0", "1.31.0", "1.34.0"];

/// Both Helms there are.
pub(crate) fn helms() -> [PathBuf; 2] {
    ["MAINSTAY_HELM", "MAINSTAY_HELM_3"].map(|variable| {
        let path = std::env::var_os(variable).map(PathBuf::from);
        let found = path.filter(|path| path.is_file());
        found.unwrap_or_else(|| panic!("{variable} names no program; run `make setup`"))
    })
}

fn chart() -> PathBuf {
    folder("../../charts/etcd-mainstay")
}

/// Runs Helm on the chart; its output, or what it complained about.
fn helm(helm: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(helm)
        .args(arguments)
        .env_clear()
        .env("HOME", "/nowhere")
        .output();
    let output = output.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stdout) + &text(&output.stderr))
    }
}

pub(crate) fn template(program: &Path, values: &[&str]) -> Result<Vec<Value>, String> {
    let chart = chart();
    let mut arguments = vec![
        "template",
        "mainstay",
        chart.to_str().unwrap(),
        "--namespace=garden",
    ];
    for value in values {
        arguments.push(if value.starts_with("--") {
            value
        } else {
            "--set-json"
        });
        if !value.starts_with("--") {
            arguments.push(value);
        }
    }
    let text = helm(program, &arguments)?;
    let documents = serde_norway::Deserializer::from_str(&text);
    let documents = documents.map(|document| Value::deserialize(document).unwrap());
    Ok(documents.filter(|document| !document.is_null()).collect())
}

pub(crate) fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects
        .iter()
        .filter(|object| object["kind"] == kind)
        .collect()
}

#[test]
fn both_helms_find_nothing_to_complain_about() {
    for program in helms() {
        let chart = chart();
        let text = helm(&program, &["lint", "--strict", chart.to_str().unwrap()]).unwrap();
        assert!(text.contains("0 chart(s) failed"), "{text}");
    }
}

#[test]
fn both_helms_render_the_same_for_every_kubernetes() {
    let [four, three] = helms();
    for version in VERSIONS {
        let flag = format!("--kube-version={version}");
        let all = [
            flag.as_str(),
            r#"serviceMonitor={"enabled": true, "labels": {"a": "b"}}"#,
            r#"podMonitor={"enabled": true}"#,
            r#"networkPolicy={"enabled": true, "from": [{"podSelector": {}}]}"#,
            r#"podLabels={"mine": "yes", "app.kubernetes.io/name": "stolen"}"#,
            r#"extraEnv=[{"name": "A", "value": "b"}]"#,
            r#"tolerations=[{"operator": "Exists"}]"#,
        ];
        let objects = template(&four, &all).unwrap();
        assert_eq!(objects, template(&three, &all).unwrap(), "{version}");
        for kind in [
            "ServiceMonitor",
            "PodMonitor",
            "NetworkPolicy",
            "PodDisruptionBudget",
        ] {
            assert_eq!(of_kind(&objects, kind).len(), 1, "{kind} on {version}");
        }
        let budget = of_kind(&objects, "PodDisruptionBudget")[0];
        let expected = if version < "1.21" {
            "policy/v1beta1"
        } else {
            "policy/v1"
        };
        assert_eq!(budget["apiVersion"], expected, "{version}");
        let deployment = of_kind(&objects, "Deployment")[0];
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        assert_eq!(
            labels["app.kubernetes.io/name"], "etcd-mainstay",
            "a selector must match"
        );
        assert_eq!(labels["mine"], "yes");
    }
}

#[test]
fn the_definitions_are_those_of_the_crate_and_stay() {
    let read = |folder: PathBuf| {
        let files = fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().path());
        let mut files: Vec<(String, String)> = files
            .map(|path| {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, fs::read_to_string(path).unwrap())
            })
            .collect();
        files.sort();
        files
    };
    let source = read(folder("../../crds/yaml"));
    let copied = read(chart().join("files/crds"));
    assert!(
        source == copied,
        "copy crds/yaml to charts/etcd-mainstay/files/crds"
    );
    let objects = template(&helms()[0], &[]).unwrap();
    let rendered = of_kind(&objects, "CustomResourceDefinition");
    assert_eq!(rendered.len(), source.len());
    for definition in rendered {
        let annotations = &definition["metadata"]["annotations"];
        assert_eq!(annotations["helm.sh/resource-policy"], "keep");
        let name = definition["metadata"]["name"].as_str().unwrap();
        let same = source.iter().find_map(|(_, text)| {
            let own: Value = serde_norway::from_str(text).unwrap();
            (own["metadata"]["name"] == name).then_some(own)
        });
        assert_eq!(definition["spec"], same.unwrap()["spec"], "{name}");
    }
    let without = template(&helms()[0], &[r#"crds={"enabled": false}"#]).unwrap();
    assert!(of_kind(&without, "CustomResourceDefinition").is_empty());
}

#[test]
fn values_that_make_no_sense_are_refused() {
    for wrong in [
        "replicas=-1",
        r#"replicas="two""#,
        r#"image={"repository": ""}"#,
        r#"image={"repository": "a", "imagePullPolicy": "Sometimes"}"#,
        "replica=3",
        r#"serviceAccount={"name": ""}"#,
        r#"watchNamespace="Not A Name""#,
        r#"operatorConfig={"leaderElection": {"leaseDuration": "long"}}"#,
        r#"operatorConfig={"server": {"metrics": {"port": 0}}}"#,
        r#"operatorConfig={"logging": {"logLevel": "loud"}}"#,
        r#"podMonitor={"enabled": "yes"}"#,
        r#"memberMonitor={"scheme": "ftp"}"#,
        r#"prometheusRule={"runbookBase": "here#there"}"#,
        r#"dashboards={"labels": {"a": 1}}"#,
        r#"rbac={"secretNamespaces": ["Not A Name"]}"#,
        r#"rbac={"secretNamespaces": ["a", "a"]}"#,
    ] {
        for program in helms() {
            let refused = template(&program, &[wrong]);
            let words = refused.expect_err(wrong);
            assert!(words.contains("schema"), "{wrong}: {words}");
        }
    }
}

#[test]
fn values_of_the_peers_chart_are_taken() {
    let objects = template(
        &helms()[0],
        &[
            r#"image={"repository": "r", "tag": "v9", "imagePullPolicy": "Always"}"#,
            "replicas=1",
            r#"operatorConfig={"clientConnection": {"qps": 100, "burst": 150}, "webhooks": {"etcdComponentProtection": {"enabled": false}}}"#,
            r#"nodeSelector={"a": "b"}"#,
        ],
    )
    .unwrap();
    let deployment = of_kind(&objects, "Deployment")[0];
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["containers"][0]["image"], "r:v9");
    let config = of_kind(&objects, "ConfigMap")[0]["data"]["config.yaml"]
        .as_str()
        .unwrap();
    let config: Value = serde_norway::from_str(config).unwrap();
    assert_eq!(config["kind"], "OperatorConfiguration");
    assert_eq!(config["clientConnection"]["qps"], 100);
    // Alone, it needs no budget, which would only stop drains.
    assert!(of_kind(&objects, "PodDisruptionBudget").is_empty());
}

/// The controller's container.
fn controller(objects: &[Value]) -> &Value {
    let deployment = of_kind(objects, "Deployment")[0];
    &deployment["spec"]["template"]["spec"]["containers"][0]
}

#[test]
fn a_configuration_of_the_peers_chart_is_passed_on_and_says_what_is_logged() {
    let text = r#"operatorConfig={"logConfiguration": {"logLevel": "debug"}, "server": {"metrics": {"port": 9445}}}"#;
    for program in helms() {
        let objects = template(&program, &[text]).unwrap();
        let config = of_kind(&objects, "ConfigMap")[0]["data"]["config.yaml"].as_str();
        let config: Value = serde_norway::from_str(config.unwrap()).unwrap();
        // The controller takes one of the two names, and refuses both at once.
        assert!(config.get("logConfiguration").is_none(), "{config}");
        let expected = serde_json::json!({"logLevel": "debug", "logFormat": "json"});
        assert_eq!(config["logging"], expected);
        let env = controller(&objects)["env"].as_array().unwrap();
        for (name, value) in [
            ("MAINSTAY_LOG_LEVEL", "debug"),
            ("MAINSTAY_LOG_FORMAT", "json"),
        ] {
            let set = env.iter().find(|one| one["name"] == name).unwrap();
            assert_eq!(set["value"], value, "{name}");
        }
    }
}

#[test]
fn a_variable_that_is_given_is_not_set_twice() {
    let given = r#"extraEnv=[{"name": "MAINSTAY_LOG_LEVEL", "value": "trace"}]"#;
    let objects = template(&helms()[0], &[given]).unwrap();
    let env = controller(&objects)["env"].as_array().unwrap().iter();
    let levels: Vec<&Value> = env
        .filter(|one| one["name"] == "MAINSTAY_LOG_LEVEL")
        .collect();
    assert_eq!(levels.len(), 1, "{levels:?}");
    assert_eq!(levels[0]["value"], "trace");
}

#[test]
fn without_a_file_the_configuration_becomes_flags() {
    for program in helms() {
        let objects = template(
            &program,
            &[
                "enabledOperatorConfig=false",
                r#"operatorConfig={"server": {"metrics": {"port": 9445}},
                    "controllers": {"etcd": {"concurrentSyncs": 7, "enableEtcdSpecAutoReconcile": true}}}"#,
                r#"extraArgs=["--etcd-events-threshold=5", "--active-deadline-duration", "1h"]"#,
            ],
        )
        .unwrap();
        assert!(of_kind(&objects, "ConfigMap").is_empty());
        let container = controller(&objects);
        assert_eq!(container["ports"][0]["containerPort"], 9445);
        let expected = [
            "--enable-leader-election=true",
            "--leader-election-id=druid-leader-election",
            "--metrics-port=9445",
            "--etcd-workers=7",
            "--enable-etcd-spec-auto-reconcile=true",
            "--disable-etcd-serviceaccount-automount=false",
            "--etcd-member-notready-threshold=5m",
            "--etcd-member-unknown-threshold=1m",
            "--enable-backup-compaction=true",
            "--metrics-scrape-wait-duration=0s",
            // Those somebody gives are not given twice, which the controller would refuse.
            "--etcd-events-threshold=5",
            "--active-deadline-duration",
            "1h",
        ];
        assert_eq!(container["args"], serde_json::json!(expected));
    }
    let plain = template(&helms()[0], &["enabledOperatorConfig=false"]).unwrap();
    let args = controller(&plain)["args"].as_array().unwrap();
    // A number, not 1e+06.
    assert!(args.contains(&"--etcd-events-threshold=1000000".into()));
}

#[test]
fn the_controller_runs_where_security_is_restricted() {
    let objects = template(&helms()[0], &[]).unwrap();
    let deployment = of_kind(&objects, "Deployment")[0].clone();
    let deployment: Deployment = serde_json::from_value(deployment).unwrap();
    let spec = deployment.spec.unwrap();
    assert_eq!(spec.replicas, Some(2));
    let pod = spec.template.spec.unwrap();
    assert_eq!(pod.security_context.unwrap().run_as_non_root, Some(true));
    let security = pod.containers[0].security_context.as_ref().unwrap();
    assert_eq!(security.allow_privilege_escalation, Some(false));
    assert_eq!(security.read_only_root_filesystem, Some(true));
    assert!(
        pod.containers[0].liveness_probe.is_some() && pod.containers[0].readiness_probe.is_some()
    );
}

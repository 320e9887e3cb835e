//! The chart: installed objects and accepted values.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::apps::v1::Deployment;
use serde::Deserialize as _;
use serde_json::Value;

use crate::support::crate_path;

const KUBE_VERSIONS: [&str; 3] = ["1.30.0", "1.33.0", "1.36.0"];

/// Helm 4 and Helm 3.
pub(crate) fn helm_binaries() -> [PathBuf; 2] {
    ["MAINSTAY_HELM", "MAINSTAY_HELM_3"].map(|variable| {
        let path = std::env::var_os(variable).map(PathBuf::from);
        let found = path.filter(|path| path.is_file());
        found.unwrap_or_else(|| panic!("{variable} is not the path of a program; run `make setup`"))
    })
}

fn chart_dir() -> PathBuf {
    crate_path("../../charts/etcd-mainstay")
}

/// Runs Helm on the chart; returns its output, or its error output.
fn run_helm(helm: &Path, arguments: &[&str]) -> Result<String, String> {
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

pub(crate) fn render_chart(program: &Path, values: &[&str]) -> Result<Vec<Value>, String> {
    let chart = chart_dir();
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
    let text = run_helm(program, &arguments)?;
    let documents = serde_norway::Deserializer::from_str(&text);
    let documents = documents.map(|document| Value::deserialize(document).unwrap());
    Ok(documents.filter(|document| !document.is_null()).collect())
}

pub(crate) fn filter_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects
        .iter()
        .filter(|object| object["kind"] == kind)
        .collect()
}

#[test]
fn chart_passes_lint_of_both_helm_versions() {
    for program in helm_binaries() {
        let chart = chart_dir();
        let text = run_helm(&program, &["lint", "--strict", chart.to_str().unwrap()]).unwrap();
        assert!(text.contains("0 chart(s) failed"), "{text}");
    }
}

#[test]
fn both_helm_versions_render_the_same_for_every_kubernetes() {
    let [four, three] = helm_binaries();
    for version in KUBE_VERSIONS {
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
        let objects = render_chart(&four, &all).unwrap();
        assert_eq!(objects, render_chart(&three, &all).unwrap(), "{version}");
        for kind in [
            "ServiceMonitor",
            "PodMonitor",
            "NetworkPolicy",
            "PodDisruptionBudget",
        ] {
            assert_eq!(filter_kind(&objects, kind).len(), 1, "{kind} on {version}");
        }
        let budget = filter_kind(&objects, "PodDisruptionBudget")[0];
        assert_eq!(budget["apiVersion"], "policy/v1", "{version}");
        let deployment = filter_kind(&objects, "Deployment")[0];
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        assert_eq!(
            labels["app.kubernetes.io/name"], "etcd-mainstay",
            "the Deployment selector must match"
        );
        assert_eq!(labels["mine"], "yes");
    }
}

#[test]
fn chart_crds_match_the_crate_and_are_kept_on_uninstall() {
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
    let source = read(crate_path("../../crds/yaml"));
    let copied = read(chart_dir().join("files/crds"));
    assert!(
        source == copied,
        "copy crds/yaml to charts/etcd-mainstay/files/crds"
    );
    let objects = render_chart(&helm_binaries()[0], &[]).unwrap();
    let rendered = filter_kind(&objects, "CustomResourceDefinition");
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
    let without = render_chart(&helm_binaries()[0], &[r#"crds={"enabled": false}"#]).unwrap();
    assert!(filter_kind(&without, "CustomResourceDefinition").is_empty());
}

#[test]
fn invalid_values_are_refused() {
    for value in [
        "replicas=-1",
        r#"replicas="two""#,
        r#"image={"repository": ""}"#,
        r#"image={"repository": "a", "imagePullPolicy": "Sometimes"}"#,
        r#"image={"repository": "a", "digest": "latest"}"#,
        r#"registry="registry.example/""#,
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
        for program in helm_binaries() {
            let result = render_chart(&program, &[value]);
            let message = result.expect_err(value);
            assert!(message.contains("schema"), "{value}: {message}");
        }
    }
}

#[test]
fn values_of_the_etcd_druid_chart_are_accepted() {
    let objects = render_chart(
        &helm_binaries()[0],
        &[
            r#"image={"repository": "r", "tag": "v9", "imagePullPolicy": "Always"}"#,
            "replicas=1",
            r#"operatorConfig={"clientConnection": {"qps": 100, "burst": 150}, "webhooks": {"etcdComponentProtection": {"enabled": false}}}"#,
            r#"nodeSelector={"a": "b"}"#,
        ],
    )
    .unwrap();
    let deployment = filter_kind(&objects, "Deployment")[0];
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["containers"][0]["image"], "r:v9");
    let config = filter_kind(&objects, "ConfigMap")[0]["data"]["config.yaml"]
        .as_str()
        .unwrap();
    let config: Value = serde_norway::from_str(config).unwrap();
    assert_eq!(config["kind"], "OperatorConfiguration");
    assert_eq!(config["clientConnection"]["qps"], 100);
    // A single replica gets no PodDisruptionBudget, which would only block node drains.
    assert!(filter_kind(&objects, "PodDisruptionBudget").is_empty());
}

/// The images of the controller, the sidecar and the restorer, and that of etcd.
fn rendered_images(values: &[&str]) -> [String; 4] {
    let objects = render_chart(&helm_binaries()[0], values).unwrap();
    let container = controller_container(&objects);
    let image = |name: &str| find_variable(container, name).unwrap();
    [
        container["image"].as_str().unwrap().to_owned(),
        image("MAINSTAY_SIDECAR_IMAGE"),
        image("MAINSTAY_RESTORER_IMAGE"),
        image("MAINSTAY_ETCD_IMAGE"),
    ]
}

fn find_variable(container: &Value, name: &str) -> Option<String> {
    let mut variables = container["env"].as_array().unwrap().iter();
    let found = variables.find(|variable| variable["name"] == name)?;
    Some(found["value"].as_str().unwrap().to_owned())
}

#[test]
fn registry_applies_to_own_images_and_not_to_etcd() {
    let version = concat!("v", env!("CARGO_PKG_VERSION"));
    let [controller, sidecar, restorer, etcd] =
        rendered_images(&[r#"registry="registry.example/team""#]);
    for (image, name) in [
        (controller, "controller"),
        (sidecar, "sidecar"),
        (restorer, "restorer"),
    ] {
        assert_eq!(
            image,
            format!("registry.example/team/mainstay-{name}:{version}")
        );
    }
    assert_eq!(etcd, "gcr.io/etcd-development/etcd:v3.5.27");
}

#[test]
fn tag_replaces_the_digest_of_a_release() {
    let digest = format!("sha256:{}", "0a".repeat(32));
    let images = format!(r#"images={{"sidecar": {{"digest": "{digest}"}}}}"#);
    let version = concat!("v", env!("CARGO_PKG_VERSION"));
    let [_, pinned, ..] = rendered_images(&[&images]);
    assert_eq!(pinned, format!("mainstay-sidecar:{version}@{digest}"));
    let images = format!(r#"images={{"sidecar": {{"digest": "{digest}", "tag": "mine"}}}}"#);
    let [_, tagged, ..] = rendered_images(&[&images]);
    assert_eq!(tagged, "mainstay-sidecar:mine");
}

#[test]
fn image_pull_secrets_reach_the_controller_and_its_flag() {
    for program in helm_binaries() {
        let value = r#"imagePullSecrets=[{"name": "ours"}, {"name": "theirs"}]"#;
        let objects = render_chart(&program, &[value]).unwrap();
        let pod = &filter_kind(&objects, "Deployment")[0]["spec"]["template"]["spec"];
        assert_eq!(pod["imagePullSecrets"][1]["name"], "theirs");
        let variable = find_variable(&pod["containers"][0], "MAINSTAY_IMAGE_PULL_SECRETS");
        assert_eq!(variable.as_deref(), Some("ours,theirs"));
    }
    let objects = render_chart(&helm_binaries()[0], &[]).unwrap();
    let container = controller_container(&objects);
    assert!(find_variable(container, "MAINSTAY_IMAGE_PULL_SECRETS").is_none());
}

/// The container of the controller.
fn controller_container(objects: &[Value]) -> &Value {
    let deployment = filter_kind(objects, "Deployment")[0];
    &deployment["spec"]["template"]["spec"]["containers"][0]
}

#[test]
fn etcd_druid_operator_config_is_passed_on_and_sets_log_variables() {
    let text = r#"operatorConfig={"logConfiguration": {"logLevel": "debug"}, "server": {"metrics": {"port": 9445}}}"#;
    for program in helm_binaries() {
        let objects = render_chart(&program, &[text]).unwrap();
        let config = filter_kind(&objects, "ConfigMap")[0]["data"]["config.yaml"].as_str();
        let config: Value = serde_norway::from_str(config.unwrap()).unwrap();
        // The controller accepts either name and rejects both together.
        assert!(config.get("logConfiguration").is_none(), "{config}");
        let expected = serde_json::json!({"logLevel": "debug", "logFormat": "json"});
        assert_eq!(config["logging"], expected);
        let env = controller_container(&objects)["env"].as_array().unwrap();
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
fn variable_in_extra_env_is_not_set_twice() {
    let given = r#"extraEnv=[{"name": "MAINSTAY_LOG_LEVEL", "value": "trace"}]"#;
    let objects = render_chart(&helm_binaries()[0], &[given]).unwrap();
    let env = controller_container(&objects)["env"]
        .as_array()
        .unwrap()
        .iter();
    let levels: Vec<&Value> = env
        .filter(|one| one["name"] == "MAINSTAY_LOG_LEVEL")
        .collect();
    assert_eq!(levels.len(), 1, "{levels:?}");
    assert_eq!(levels[0]["value"], "trace");
}

#[test]
fn disabled_config_file_turns_configuration_into_flags() {
    for program in helm_binaries() {
        let objects = render_chart(
            &program,
            &[
                "enabledOperatorConfig=false",
                r#"operatorConfig={"server": {"metrics": {"port": 9445}},
                    "controllers": {"etcd": {"concurrentSyncs": 7, "enableEtcdSpecAutoReconcile": true}}}"#,
                r#"extraArgs=["--etcd-events-threshold=5", "--active-deadline-duration", "1h"]"#,
            ],
        )
        .unwrap();
        assert!(filter_kind(&objects, "ConfigMap").is_empty());
        let container = controller_container(&objects);
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
            // Flags in extraArgs replace the defaults; the controller rejects duplicates.
            "--etcd-events-threshold=5",
            "--active-deadline-duration",
            "1h",
        ];
        assert_eq!(container["args"], serde_json::json!(expected));
    }
    let plain = render_chart(&helm_binaries()[0], &["enabledOperatorConfig=false"]).unwrap();
    let args = controller_container(&plain)["args"].as_array().unwrap();
    // Helm would render the float as 1e+06.
    assert!(args.contains(&"--etcd-events-threshold=1000000".into()));
}

#[test]
fn controller_meets_the_restricted_pod_security_standard() {
    let objects = render_chart(&helm_binaries()[0], &[]).unwrap();
    let deployment = filter_kind(&objects, "Deployment")[0].clone();
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

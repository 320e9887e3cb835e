//! Alerts and dashboard: they query existing series, they fire when they should, and each alert has a runbook.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::chart::{filter_kind, helm_binaries, render_chart};
use crate::support::crate_path;

const RULES: &str = "../../charts/etcd-mainstay/rules/etcd-mainstay.yaml";
const DASHBOARD: &str = "../../charts/etcd-mainstay/dashboards/etcd-mainstay.json";
/// Labels that the monitors add to the series of members (the Prometheus operator adds `container`), and that
/// Prometheus adds to histograms.
const ADDED_LABELS: [&str; 4] = ["namespace", "etcd", "container", "le"];

/// Prefixes of table rows that document a series.
const SERIES_ROW_PREFIXES: [&str; 3] = ["| `mainstay_", "| `etcdbr_", "| `process_"];

fn read_file(path: &str) -> String {
    fs::read_to_string(crate_path(path)).unwrap()
}

fn load_alerts() -> Vec<Value> {
    let rules: Value = serde_norway::from_str(&read_file(RULES)).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    groups
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .collect()
}

fn alert_names() -> BTreeSet<String> {
    let name = |alert: &Value| alert["alert"].as_str().unwrap().to_owned();
    load_alerts().iter().map(name).collect()
}

/// Every query of the dashboard, with Grafana's interval variable replaced.
fn dashboard_queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read_file(DASHBOARD)).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets
        .map(|target| target["expr"].as_str().unwrap())
        .map(|expr| expr.replace("$__rate_interval", "5m"))
        .collect()
}

fn all_expressions() -> Vec<String> {
    let of_alerts = load_alerts().into_iter();
    let of_alerts = of_alerts.map(|alert| alert["expr"].as_str().unwrap().to_owned());
    of_alerts.chain(dashboard_queries()).collect()
}

/// Documented series with their labels.
fn documented_series() -> BTreeMap<String, BTreeSet<String>> {
    let quoted = |cell: &str| -> Vec<String> {
        let parts = cell.split('`').skip(1).step_by(2);
        parts.map(str::to_owned).collect()
    };
    let pages =
        ["metrics", "controller"].map(|name| read_file(&format!("../../docs/reference/{name}.md")));
    let rows = pages.iter().flat_map(|page| page.lines());
    let is_series = |line: &&str| {
        SERIES_ROW_PREFIXES
            .iter()
            .any(|family| line.starts_with(family))
    };
    let rows = rows.filter(is_series);
    let series = rows.filter_map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        let name = quoted(cells[1]).pop()?;
        Some((name, quoted(cells[3]).into_iter().collect()))
    });
    series.collect()
}

/// Series that an expression queries, each with the labels of its matchers.
fn queried_series(expression: &str) -> Vec<(String, Vec<String>)> {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(is_word) {
        rest = &rest[start..];
        let end = rest.find(|letter| !is_word(letter)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        let Some(inside) = after.strip_prefix('{') else {
            if word.contains('_') && !word.starts_with("histogram_") {
                found.push((word.to_owned(), Vec::new()));
            }
            continue;
        };
        let (inside, after) = inside.split_once('}').unwrap();
        let label = |matcher: &str| {
            let end = matcher.find(['=', '!']).unwrap();
            matcher[..end].trim().to_owned()
        };
        let labels = inside.split(", ").map(label).collect();
        found.push((word.to_owned(), labels));
        rest = after;
    }
    found
}

#[test]
fn queried_series_and_labels_are_documented() {
    let documented_series = documented_series();
    assert!(documented_series.len() > 40, "{documented_series:?}");
    let mut queried = BTreeSet::new();
    for expression in all_expressions() {
        let asked = queried_series(&expression);
        assert!(!asked.is_empty(), "{expression}");
        for (name, labels) in asked {
            let series = name.trim_end_matches("_bucket");
            let known = documented_series
                .get(series)
                .unwrap_or_else(|| panic!("{series} is not documented: {expression}"));
            for label in labels {
                assert!(
                    known.contains(&label) || ADDED_LABELS.contains(&label.as_str()),
                    "{series} has no label {label}: {expression}"
                );
            }
            queried.insert(series.to_owned());
        }
    }
    assert!(queried.len() > 20, "{queried:?}");
}

#[test]
fn expression_parser_finds_series_and_labels() {
    let expression =
        r#"max by (namespace) (a_b{kind="Full", x!="1"}) > 3600 and rate(c_d_bucket[5m]) > 0"#;
    let narrowed = vec!["kind".to_owned(), "x".to_owned()];
    let expected = [
        ("a_b".to_owned(), narrowed),
        ("c_d_bucket".to_owned(), vec![]),
    ];
    assert_eq!(queried_series(expression), expected);
}

fn run_promtool(arguments: &[&str], dir: &Path) -> String {
    let program = std::env::var_os("MAINSTAY_PROMTOOL").map(PathBuf::from);
    let program = program.filter(|path| path.is_file());
    let program =
        program.expect("MAINSTAY_PROMTOOL is not the path of a program; run `make setup`");
    let output = Command::new(program)
        .args(arguments)
        .current_dir(dir)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn promtool_accepts_the_rules_and_every_dashboard_query() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yaml"), read_file(RULES)).unwrap();
    let found = run_promtool(&["check", "rules", "rules.yaml"], dir.path());
    assert!(
        found.contains(&format!("{} rules found", alert_names().len())),
        "{found}"
    );
    let recorded = dashboard_queries().into_iter().enumerate();
    let rules: Vec<Value> = recorded
        .map(|(i, expr)| json!({"record": format!("query:{i}"), "expr": expr}))
        .collect();
    let file = json!({"groups": [{"name": "queries", "rules": rules}]}).to_string();
    fs::write(dir.path().join("queries.yaml"), file).unwrap();
    run_promtool(&["check", "rules", "queries.yaml"], dir.path());
}

#[test]
fn every_alert_fires_only_when_it_should() {
    let dir = tempfile::tempdir().unwrap();
    let tests = read_file("testdata/rules/alerts.test.yaml");
    fs::write(dir.path().join("etcd-mainstay.yaml"), read_file(RULES)).unwrap();
    fs::write(dir.path().join("tests.yaml"), &tests).unwrap();
    run_promtool(&["test", "rules", "tests.yaml"], dir.path());
    let tests: Value = serde_norway::from_str(&tests).unwrap();
    let cases = tests["tests"].as_array().unwrap().iter();
    let cases: Vec<&Value> = cases
        .flat_map(|test| test["alert_rule_test"].as_array().unwrap())
        .collect();
    for (fires, message) in [
        (true, "has no test in which it fires"),
        (false, "has no test in which it does not fire"),
    ] {
        let of_kind = cases
            .iter()
            .filter(|case| case["exp_alerts"].as_array().unwrap().is_empty() != fires);
        let covered: BTreeSet<String> = of_kind
            .map(|case| case["alertname"].as_str().unwrap().to_owned())
            .collect();
        for name in alert_names() {
            assert!(covered.contains(&name), "{name} {message}");
        }
    }
}

#[test]
fn every_alert_has_a_description_and_a_runbook() {
    let page = read_file("../../docs/runbooks.md");
    let sections = page.lines().filter_map(|line| line.strip_prefix("## "));
    let sections: BTreeSet<String> = sections.map(str::to_owned).collect();
    assert_eq!(sections, alert_names());
    for alert in load_alerts() {
        for key in ["summary", "description"] {
            let text = alert["annotations"][key].as_str().unwrap_or("");
            assert!(text.ends_with('.'), "{key} of {alert}");
        }
        let severity = alert["labels"]["severity"].as_str().unwrap();
        assert!(
            ["critical", "warning", "info"].contains(&severity),
            "{alert}"
        );
    }
}

#[test]
fn monitoring_objects_are_not_installed_by_default() {
    let kinds = ["PrometheusRule", "PodMonitor", "ServiceMonitor"];
    for program in helm_binaries() {
        let objects = render_chart(&program, &[]).unwrap();
        for kind in kinds {
            assert!(filter_kind(&objects, kind).is_empty(), "{kind}");
        }
        assert_eq!(filter_kind(&objects, "ConfigMap").len(), 1);
    }
}

#[test]
fn rules_are_installed_unchanged_with_runbook_links() {
    let values = [
        r#"prometheusRule={"enabled": true, "labels": {"release": "p"}, "runbookBase": "https://docs.example/runbooks.md"}"#,
    ];
    for program in helm_binaries() {
        let objects = render_chart(&program, &values).unwrap();
        let installed = filter_kind(&objects, "PrometheusRule")[0].clone();
        assert_eq!(installed["metadata"]["labels"]["release"], "p");
        let mut expected: Value = serde_norway::from_str(&read_file(RULES)).unwrap();
        for group in expected["groups"].as_array_mut().unwrap() {
            for rule in group["rules"].as_array_mut().unwrap() {
                let anchor = rule["alert"].as_str().unwrap().to_lowercase();
                let url = format!("https://docs.example/runbooks.md#{anchor}");
                rule["annotations"]["runbook_url"] = url.into();
            }
        }
        assert_eq!(installed["spec"], expected);
    }
}

#[test]
fn dashboard_is_installed_unchanged() {
    for program in helm_binaries() {
        let objects = render_chart(&program, &[r#"dashboards={"enabled": true}"#]).unwrap();
        let maps = filter_kind(&objects, "ConfigMap");
        let map = maps
            .iter()
            .find(|map| map["metadata"]["labels"]["grafana_dashboard"] == "1")
            .unwrap();
        let installed = map["data"]["etcd-mainstay.json"].as_str().unwrap();
        let installed: Value = serde_json::from_str(installed).unwrap();
        let expected: Value = serde_json::from_str(&read_file(DASHBOARD)).unwrap();
        assert_eq!(installed, expected);
    }
}

#[test]
fn monitors_select_existing_ports() {
    let values = [r#"memberMonitor={"enabled": true}"#];
    let objects = render_chart(&helm_binaries()[0], &values).unwrap();
    let monitor = filter_kind(&objects, "PodMonitor")[0];
    let selector = &monitor["spec"]["selector"]["matchLabels"];
    let manifests = crate::support::render_etcd(&crate::support::plain_etcd());
    let pod = crate::support::pod_template(&manifests);
    let labels = serde_json::to_value(&pod.metadata.as_ref().unwrap().labels).unwrap();
    for (label, value) in selector.as_object().unwrap() {
        assert_eq!(labels[label], *value, "{label}");
    }
    let pod = crate::support::pod_spec(&manifests);
    let has_port = |container: &str, port: &Value| {
        let ports = crate::support::find_container(pod, container).ports.clone();
        let mut ports = ports.unwrap().into_iter();
        ports.any(|known| known.name.as_deref() == port.as_str())
    };
    let endpoints = &monitor["spec"]["podMetricsEndpoints"];
    assert!(has_port("etcd", &endpoints[0]["port"]));
    assert!(has_port("backup-restore", &endpoints[1]["port"]));
    assert_eq!(endpoints[1]["relabelings"][0]["regex"], "backup-restore");
    for endpoint in endpoints.as_array().unwrap() {
        let relabelings = endpoint["relabelings"].as_array().unwrap();
        assert_eq!(relabelings.last().unwrap()["targetLabel"], "etcd");
    }
}

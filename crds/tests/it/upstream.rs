//! The CRDs of the pinned etcd-druid: every difference of a field or rule is listed, with its reason, in the documentation.
//!
//! Rules are compared by path and message. What their expressions do is compared by a real API server, in `live`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use mainstay_crds::crd;
use mainstay_testkit::paths::{cache_dir, env_path};
use serde_json::{Map, Value};

const TABLE: &str = "docs/reference/compatibility.md";
/// Title of the section with the table.
const SECTION: &str = "## Fields and rules";

/// A line of the table, without the reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Difference {
    kind: String,
    path: String,
    what: String,
}

/// The CRDs of etcd-druid as YAML text.
pub(crate) fn read_crds() -> Vec<String> {
    let directory = env_path("MAINSTAY_ETCD_DRUID")
        .unwrap_or_else(|| cache_dir().unwrap_or_default().join("upstream/etcd-druid"));
    let folder = directory.join("crds");
    let files = fs::read_dir(&folder).unwrap_or_else(|error| {
        panic!("{}: {error}; run `make setup`", folder.display());
    });
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect()
}

/// Keywords of every schema node by path, without descriptions.
fn collect_nodes(schema: &Value, path: &str, out: &mut BTreeMap<String, Map<String, Value>>) {
    let mut keywords = schema.as_object().unwrap().clone();
    for structural in ["properties", "items", "additionalProperties", "description"] {
        keywords.remove(structural);
    }
    for unordered in ["enum", "required"] {
        if let Some(Value::Array(items)) = keywords.get_mut(unordered) {
            items.sort_by_key(ToString::to_string);
        }
    }
    out.insert(path.to_owned(), keywords);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let separator = if path.is_empty() { "" } else { "." };
        collect_nodes(property, &format!("{path}{separator}{name}"), out);
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[key].is_object() {
            collect_nodes(&schema[key], &format!("{path}{suffix}"), out);
        }
    }
}

fn rule_messages(keywords: &Map<String, Value>) -> BTreeSet<&str> {
    let rules = keywords.get("x-kubernetes-validations");
    let rules = rules.and_then(Value::as_array).into_iter().flatten();
    rules
        .map(|rule| rule["message"].as_str().unwrap())
        .collect()
}

/// How two nodes differ.
fn compare_nodes(ours: &Map<String, Value>, theirs: &Map<String, Value>) -> Vec<String> {
    let keywords: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let differ = keywords.into_iter().filter(|keyword| {
        *keyword != "x-kubernetes-validations" && ours.get(*keyword) != theirs.get(*keyword)
    });
    let mut all: Vec<_> = differ.map(|keyword| format!("{keyword} differs")).collect();
    let (own, other) = (rule_messages(ours), rule_messages(theirs));
    all.extend(
        own.difference(&other)
            .map(|text| format!("rule added: {text}")),
    );
    all.extend(
        other
            .difference(&own)
            .map(|text| format!("rule missing: {text}")),
    );
    all
}

/// Differences of one CRD. Of fields that only one side has, the outermost counts.
fn compare_schemas(kind: &str, ours: &Value, theirs: &Value) -> BTreeSet<Difference> {
    let (mut own, mut other) = (BTreeMap::new(), BTreeMap::new());
    collect_nodes(ours, "", &mut own);
    collect_nodes(theirs, "", &mut other);
    let mut differences = BTreeSet::new();
    let mut add = |path: &str, what: &str| {
        differences.insert(Difference {
            kind: kind.to_owned(),
            path: path.to_owned(),
            what: what.to_owned(),
        });
    };
    for (from, to, what) in [(&own, &other, "added"), (&other, &own, "missing")] {
        let alone: Vec<&String> = from.keys().filter(|path| !to.contains_key(*path)).collect();
        for path in &alone {
            let is_inside = |outer: &&&String| {
                let rest = path.strip_prefix(outer.as_str());
                rest.is_some_and(|rest| rest.starts_with(['.', '[', '{']))
            };
            if !alone.iter().any(|outer| is_inside(&outer)) {
                add(path, what);
            }
        }
    }
    for (path, keywords) in &own {
        if let Some(theirs) = other.get(path) {
            for what in compare_nodes(keywords, theirs) {
                add(path, &what);
            }
        }
    }
    differences
}

/// The lines of the table in the documentation.
fn read_table() -> BTreeSet<Difference> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join(TABLE)).unwrap();
    let (_, section) = text.split_once(SECTION).expect("the section");
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines().filter(|line| line.starts_with("| `"));
    lines
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, kind, path, what, reason, _] = cells[..] else {
                panic!("not four columns: {line}");
            };
            assert!(!reason.is_empty(), "no reason: {line}");
            let plain = |cell: &str| cell.replace('`', "");
            Difference {
                kind: plain(kind),
                path: plain(path),
                what: plain(what),
            }
        })
        .collect()
}

#[test]
fn differences_from_etcd_druid_are_documented() {
    let mut found = BTreeSet::new();
    let theirs = read_crds();
    assert_eq!(theirs.len(), 3);
    for text in theirs {
        let theirs: Value = serde_norway::from_str(&text).unwrap();
        let kind = theirs["spec"]["names"]["kind"].as_str().unwrap();
        let all = crd::all_crds();
        let ours = all.iter().find(|one| one.kind() == kind).unwrap();
        let version = &theirs["spec"]["versions"][0];
        let schema = &version["schema"]["openAPIV3Schema"];
        found.extend(compare_schemas(kind, &ours.schema, schema));

        let spec = &ours.to_value()["spec"];
        for same in ["group", "names", "scope"] {
            assert_eq!(spec[same], theirs["spec"][same], "{kind} {same}");
        }
        for same in ["name", "subresources", "additionalPrinterColumns"] {
            assert_eq!(spec["versions"][0][same], version[same], "{kind} {same}");
        }
        // The text is a CRD, which the API server takes.
        serde_norway::from_str::<CustomResourceDefinition>(&text).unwrap();
    }
    let documented = read_table();
    let missing: Vec<_> = found.difference(&documented).collect();
    let outdated: Vec<_> = documented.difference(&found).collect();
    assert!(
        missing.is_empty() && outdated.is_empty(),
        "{TABLE} lacks {missing:#?}; outdated: {outdated:#?}"
    );
}

/// Paths that only this project's CRD of a kind has, from the table.
pub(crate) fn added_paths(kind: &str) -> Vec<String> {
    let rows = read_table().into_iter();
    let added = rows.filter(|row| row.kind == kind && row.what == "added");
    added.map(|row| row.path).collect()
}

//! Checks which module of this crate imports which: no cycle, and no import against the direction of the reconcile.
//!
//! The references are read from the source files, without comments and test modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Imports that the stages of a reconcile must not have, with the reason.
const FORBIDDEN: [(&str, &[&str], &str); 5] = [
    (
        "model",
        &[
            "validate",
            "observe",
            "decide",
            "act",
            "status",
            "metrics",
            "context",
            "publish",
            "reconcile",
            "tasks",
            "caches",
            "writer",
            "messages",
        ],
        "the stages meet in the model, so it knows none of them",
    ),
    (
        "messages",
        &["observe", "decide", "act", "status", "context", "publish"],
        "a sentence is a function of the model",
    ),
    (
        "observe",
        &["decide", "act", "status", "publish", "context"],
        "observing makes no decision and writes nothing",
    ),
    (
        "decide",
        &["observe", "act", "status", "publish", "context", "caches"],
        "deciding is pure",
    ),
    (
        "act",
        &["decide", "status", "publish"],
        "acting carries out a plan and does not change it",
    ),
];

/// Parameters of writes, which only the writer uses: it checks leadership, names the field manager and counts.
const WRITE_PARAMS: [&str; 3] = ["PatchParams", "PostParams", "DeleteParams"];

/// The first place where one module refers to another.
type References = BTreeMap<(String, String), String>;

fn source_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            source_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
}

/// Product files below `src`, as the path relative to it and the text.
fn product_files() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    source_files(&root, &mut files);
    let relative = |path: &PathBuf| path.strip_prefix(&root).unwrap().display().to_string();
    files
        .iter()
        .map(|path| (relative(path), fs::read_to_string(path).unwrap()))
        .filter(|(name, _)| {
            let is_test = name
                .split('/')
                .any(|part| part == "tests" || part == "tests.rs");
            !is_test && name != "module_graph.rs"
        })
        .collect()
}

/// The lines without comments, up to the test module. Line numbers stay.
fn product_lines(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let is_tests = |pair: &[&str]| {
        pair[0].trim() == "#[cfg(test)]" && pair[1].contains("mod ") && pair[1].ends_with('{')
    };
    let end = lines.windows(2).position(is_tests).unwrap_or(lines.len());
    lines[..end]
        .iter()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect()
}

/// The modules that a file refers to by `crate::`, with the line.
fn references(text: &str) -> Vec<(String, usize)> {
    let lines = product_lines(text);
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        for rest in line.split("crate::").skip(1) {
            // `use crate::{a, b::C}` names several modules.
            let names: Vec<&str> = match rest.strip_prefix('{') {
                Some(list) => list.split(',').collect(),
                None => vec![rest],
            };
            for name in names {
                let name = name.trim();
                let end = name.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
                found.push((name[..end.unwrap_or(name.len())].to_owned(), index + 1));
            }
        }
    }
    found
}

/// The references between the top-level modules of these files.
fn build_graph(files: &[(String, String)]) -> References {
    let module = |file: &str| {
        let top = file.split('/').next().unwrap_or_default();
        top.trim_end_matches(".rs").to_owned()
    };
    let modules: BTreeSet<String> = files.iter().map(|(file, _)| module(file)).collect();
    let mut graph = References::new();
    for (file, text) in files {
        let from = module(file);
        for (to, line) in references(text) {
            if to != from && modules.contains(&to) {
                graph
                    .entry((from.clone(), to))
                    .or_insert_with(|| format!("{file}:{line}"));
            }
        }
    }
    graph
}

/// A cycle as its references, or `None`.
fn find_cycle(graph: &References) -> Option<Vec<String>> {
    fn walk<'a>(graph: &'a References, path: &mut Vec<&'a str>) -> Option<Vec<String>> {
        let last = *path.last()?;
        for (_, to) in graph.keys().filter(|(from, _)| from == last) {
            if let Some(start) = path.iter().position(|module| module == to) {
                let mut cycle = path[start..].to_vec();
                cycle.push(to);
                let name = |pair: &[&str]| {
                    let at = &graph[&(pair[0].to_owned(), pair[1].to_owned())];
                    format!("{} imports {} at {at}", pair[0], pair[1])
                };
                return Some(cycle.windows(2).map(name).collect());
            }
            path.push(to);
            let found = walk(graph, path);
            path.pop();
            if found.is_some() {
                return found;
            }
        }
        None
    }
    graph
        .keys()
        .find_map(|(from, _)| walk(graph, &mut vec![from]))
}

fn find_forbidden(graph: &References) -> Vec<String> {
    let forbidden = FORBIDDEN
        .iter()
        .flat_map(|(from, targets, reason)| targets.iter().map(move |to| (*from, *to, *reason)));
    forbidden
        .filter_map(|(from, to, reason)| {
            let at = graph.get(&(from.to_owned(), to.to_owned()))?;
            Some(format!("{at}: {from} imports {to}: {reason}"))
        })
        .collect()
}

#[test]
fn modules_import_each_other_without_a_cycle() {
    let graph = build_graph(&product_files());
    assert!(graph.len() > 20, "too few references found: {graph:?}");
    assert_eq!(find_cycle(&graph), None);
}

#[test]
fn stages_import_only_what_precedes_them() {
    let found = find_forbidden(&build_graph(&product_files()));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn find_writes(files: &[(String, String)]) -> Vec<String> {
    let outside = files
        .iter()
        .filter(|(file, _)| !file.starts_with("writer/"));
    let mut found = Vec::new();
    for (file, text) in outside {
        for (index, line) in product_lines(text).iter().enumerate() {
            if let Some(params) = WRITE_PARAMS.iter().find(|params| line.contains(**params)) {
                found.push(format!(
                    "{file}:{}: {params} outside of the writer",
                    index + 1
                ));
            }
        }
    }
    found
}

#[test]
fn only_the_writer_writes_to_the_api_server() {
    let files = product_files();
    let found = find_writes(&files);
    assert!(found.is_empty(), "{}", found.join("\n"));
    let writer = files.iter().filter(|(file, _)| file.starts_with("writer/"));
    let uses: Vec<&str> = writer.map(|(_, text)| text.as_str()).collect();
    assert!(
        uses.concat().contains("PatchParams"),
        "the writer has moved"
    );
}

#[test]
fn write_outside_of_the_writer_is_reported_with_file_and_line() {
    let text = "use kube::api::Api;\nlet params = PatchParams::default();\n".to_owned();
    let found = find_writes(&[("act/a.rs".to_owned(), text)]);
    assert_eq!(found, ["act/a.rs:2: PatchParams outside of the writer"]);
}

fn graph_of(files: &[(&str, &str)]) -> References {
    let owned = files.iter();
    build_graph(
        &owned
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect::<Vec<_>>(),
    )
}

#[test]
fn cycle_is_reported_with_file_and_line() {
    let graph = graph_of(&[
        ("a.rs", "use crate::b::B;\n"),
        ("b/mod.rs", "\nfn f() { crate::c::g() }\n"),
        ("c.rs", "use crate::{d, a::A};\n"),
        ("d.rs", ""),
    ]);
    let cycle = find_cycle(&graph).unwrap();
    assert_eq!(
        cycle,
        [
            "a imports b at a.rs:1",
            "b imports c at b/mod.rs:2",
            "c imports a at c.rs:1"
        ]
    );
}

#[test]
fn forbidden_import_is_reported_with_file_and_line() {
    let graph = graph_of(&[("decide/x.rs", "\nuse crate::act::Act;\n"), ("act.rs", "")]);
    let found = find_forbidden(&graph);
    assert_eq!(
        found,
        ["decide/x.rs:2: decide imports act: deciding is pure"]
    );
}

#[test]
fn comments_and_test_modules_are_no_references() {
    let text = "// crate::b::B\n#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n";
    assert!(graph_of(&[("a.rs", text), ("b.rs", "")]).is_empty());
}

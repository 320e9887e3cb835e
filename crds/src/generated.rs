//! The files made from the types: three definitions and the API reference.
//!
//! They are committed, so that a chart, a reviewer and a user without Rust can read them; a test fails
//! when they are stale.

use std::path::PathBuf;

use crate::{definition, reference};

/// A generated file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Where it belongs, from the root of the repository.
    pub path: PathBuf,
    /// What belongs in it.
    pub text: String,
}

/// Every generated file.
pub fn files() -> Vec<File> {
    let definitions = definition::all();
    let mut files: Vec<File> = definitions
        .iter()
        .map(|definition| File {
            path: format!("crds/yaml/{}.yaml", file_stem(definition)).into(),
            text: yaml(definition),
        })
        .collect();
    files.push(File {
        path: "docs/reference/api.md".into(),
        text: reference::markdown(&definitions),
    });
    files
}

fn file_stem(definition: &definition::Definition) -> String {
    let names = &definition.crd.spec;
    format!("{}_{}", names.group, names.names.plural)
}

fn yaml(definition: &definition::Definition) -> String {
    let body = serde_norway::to_string(&definition.to_value()).expect("a definition is YAML");
    format!("# Generated from the types of the crate mainstay-crds by crdgen. Do not edit.\n{body}")
}

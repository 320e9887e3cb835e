//! The files made from the types: three definitions and the API reference.
//!
//! They are committed, so that a chart, a reviewer and a user without Rust can read them; a test fails
//! when they are stale.

use std::path::PathBuf;

use crate::{definition, reference};

/// A generated file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedFile {
    /// Where it belongs, from the root of the repository.
    pub path: PathBuf,
    /// What belongs in it.
    pub text: String,
}

/// Every generated file.
pub fn generate_files() -> Vec<GeneratedFile> {
    let definitions = definition::all_crds();
    let mut files: Vec<GeneratedFile> = definitions
        .iter()
        .map(|definition| GeneratedFile {
            path: format!("crds/yaml/{}.yaml", file_stem(definition)).into(),
            text: to_yaml(definition),
        })
        .collect();
    files.push(GeneratedFile {
        path: "docs/api.md".into(),
        text: reference::render_markdown(&definitions),
    });
    files
}

fn file_stem(definition: &definition::CrdManifest) -> String {
    let names = &definition.crd.spec;
    format!("{}_{}", names.group, names.names.plural)
}

fn to_yaml(definition: &definition::CrdManifest) -> String {
    let body = serde_norway::to_string(&definition.to_value()).expect("a definition is YAML");
    format!("# Generated from the types of the crate mainstay-crds by crdgen. Do not edit.\n{body}")
}

//! The files generated from the types: three CRD manifests and the API reference.
//!
//! They are committed, so that the chart and users without a Rust toolchain can use them. A test fails when they are
//! out of date.

use std::path::PathBuf;

use crate::{crd, reference};

/// A generated file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedFile {
    /// Path relative to the root of the repository.
    pub path: PathBuf,
    /// Content of the file.
    pub text: String,
}

/// All generated files.
pub fn generate_files() -> Vec<GeneratedFile> {
    let definitions = crd::all_crds();
    let mut files: Vec<GeneratedFile> = definitions
        .iter()
        .map(|definition| GeneratedFile {
            path: format!("crds/yaml/{}.yaml", file_stem(definition)).into(),
            text: to_yaml(definition),
        })
        .collect();
    files.push(GeneratedFile {
        path: "docs/reference/api.md".into(),
        text: reference::render_markdown(&definitions),
    });
    files
}

fn file_stem(definition: &crd::CrdManifest) -> String {
    let names = &definition.crd.spec;
    format!("{}_{}", names.group, names.names.plural)
}

fn to_yaml(definition: &crd::CrdManifest) -> String {
    let body =
        serde_norway::to_string(&definition.to_value()).expect("a CRD can be written as YAML");
    format!("# Generated from the types of the crate mainstay-crds by crdgen. Do not edit.\n{body}")
}

//! The committed generated files are up to date.

use std::fs;
use std::path::Path;

use mainstay_crds::generated::generate_files;

#[test]
fn generated_crds_and_reference_are_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let update = std::env::var_os("MAINSTAY_UPDATE_CRDS").is_some();
    for file in generate_files() {
        let path = root.join(&file.path);
        if update {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &file.text).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == file.text,
            "{} is out of date; set MAINSTAY_UPDATE_CRDS=1 to regenerate it",
            file.path.display()
        );
    }
}

#[test]
fn yaml_folder_holds_only_generated_crds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("yaml");
    let mut found: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    let mut generated: Vec<_> = generate_files()
        .iter()
        .filter(|file| file.path.starts_with("crds/yaml"))
        .map(|file| file.path.file_name().unwrap().to_owned())
        .collect();
    found.sort();
    generated.sort();
    assert_eq!(found, generated);
}

#[test]
fn generated_yaml_equals_the_crd_and_fits_client_side_apply() {
    for (file, definition) in generate_files().iter().zip(mainstay_crds::crd::all_crds()) {
        let read: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition =
            serde_norway::from_str(&file.text).unwrap();
        assert_eq!(read, definition.crd);
        // Client-side apply stores a copy in an annotation; annotations are limited to 256 KiB.
        assert!(definition.to_value().to_string().len() < 262_144);
    }
}

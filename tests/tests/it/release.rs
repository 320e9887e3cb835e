//! Packs a release as `make release` does, from the programs that were built for the tests.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use mainstay_tests::cluster::image::image_architecture;
use mainstay_tests::release::{ReleaseParts, ReleaseSource, pack};
use serde::Deserialize as _;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tar::Archive;
use tempfile::TempDir;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const PROGRAMS: [&str; 3] = [
    "mainstay-controller",
    "mainstay-restorer",
    "mainstay-sidecar",
];

fn helm() -> PathBuf {
    let path = std::env::var_os("MAINSTAY_HELM").map(PathBuf::from);
    path.expect("MAINSTAY_HELM must be the path of Helm; run `make test-live`")
}

/// cargo builds tests into `deps`, and programs into its parent.
fn built_programs() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_owned()
}

/// The file name of a program; that of its image and of its symbols begin with it.
fn artifact_name(program: &str) -> String {
    format!("{program}-{VERSION}-linux-{}", image_architecture())
}

async fn pack_from(programs: &Path, output: &Path) {
    let source = ReleaseSource {
        version: VERSION.into(),
        commit: "0123456789abcdef0123456789abcdef01234567".into(),
        epoch: 1_794_960_000,
        checkout: Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .canonicalize()
            .unwrap(),
        toolchain: "rustc".into(),
    };
    let parts = ReleaseParts {
        programs: programs.to_owned(),
        sboms: None,
        helm: helm(),
        output: output.to_owned(),
    };
    pack(&source, &parts).await.unwrap();
}

/// Names and contents of the artifacts.
fn read_artifacts(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(directory).unwrap().map(Result::unwrap);
    files
        .map(|file| {
            let name = file.file_name().into_string().unwrap();
            (name, fs::read(file.path()).unwrap())
        })
        .collect()
}

/// The digest of the manifest in an archive of an OCI image layout.
fn read_image_digest(path: &Path) -> String {
    let mut archive = Archive::new(File::open(path).unwrap());
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        if entry.path().unwrap() == Path::new("index.json") {
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let index: Value = serde_json::from_str(&text).unwrap();
            return index["manifests"][0]["digest"].as_str().unwrap().to_owned();
        }
    }
    panic!("{} has no index.json", path.display());
}

/// Renders a chart with no value but the registry; returns the text of all objects.
fn render(chart: &Path, registry: &str) -> String {
    let output = Command::new(helm())
        .args(["template", "etcd-mainstay"])
        .arg(chart)
        .arg(format!("--set=registry={registry}"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn packed_chart_needs_only_the_registry_and_pins_the_packed_images() {
    let scratch = TempDir::new().unwrap();
    let output = scratch.path().join(VERSION);
    pack_from(&built_programs(), &output).await;
    let rendered = render(
        &output.join(format!("etcd-mainstay-{VERSION}.tgz")),
        "registry.example/team",
    );
    let install = fs::read_to_string(output.join("install.yaml")).unwrap();
    for program in PROGRAMS {
        let digest = read_image_digest(&output.join(format!("{}.oci.tar", artifact_name(program))));
        let pinned = format!("{program}:v{VERSION}@{digest}");
        assert!(
            rendered.contains(&format!("registry.example/team/{pinned}")),
            "{pinned}"
        );
        assert!(
            install.contains(&format!("registry.example/{pinned}")),
            "{pinned}"
        );
    }
    let kinds: Vec<Value> = serde_norway::Deserializer::from_str(&install)
        .map(|object| Value::deserialize(object).unwrap()["kind"].clone())
        .collect();
    assert_eq!(kinds[0], "Namespace");
    let crds = kinds
        .iter()
        .filter(|kind| *kind == "CustomResourceDefinition");
    assert_eq!(crds.count(), 3);
}

#[tokio::test]
async fn stripped_programs_run_and_their_symbols_are_separate() {
    let scratch = TempDir::new().unwrap();
    let output = scratch.path().join(VERSION);
    pack_from(&built_programs(), &output).await;
    let artifacts = read_artifacts(&output);
    for program in PROGRAMS {
        let original = fs::metadata(built_programs().join(program)).unwrap().len();
        let name = artifact_name(program);
        let stripped = output.join(&name);
        assert!(
            fs::metadata(&stripped).unwrap().len() < original,
            "{program}"
        );
        let answer = Command::new(&stripped).arg("--version").output().unwrap();
        let answer = String::from_utf8(answer.stdout).unwrap();
        assert!(answer.contains(VERSION), "{program}: {answer}");
        assert!(
            artifacts.contains_key(&format!("{name}.debug")),
            "{program}"
        );
    }
}

#[tokio::test]
async fn same_programs_result_in_the_same_artifacts_with_matching_checksums() {
    let scratch = TempDir::new().unwrap();
    let programs = scratch.path().join("programs");
    fs::create_dir(&programs).unwrap();
    for program in PROGRAMS {
        fs::copy("/bin/sleep", programs.join(program)).unwrap();
    }
    let [first, second] = ["first", "second/deeper"].map(|name| scratch.path().join(name));
    fs::create_dir(scratch.path().join("second")).unwrap();
    pack_from(&programs, &first).await;
    pack_from(&programs, &second).await;
    let artifacts = read_artifacts(&first);
    assert!(artifacts == read_artifacts(&second), "artifacts differ");

    let sums = String::from_utf8(artifacts["SHA256SUMS"].clone()).unwrap();
    let hash = |name: &str| hex::encode(Sha256::digest(&artifacts[name]));
    for line in sums.lines() {
        let (sum, name) = line.split_once("  ").unwrap();
        assert_eq!(sum, hash(name), "{name}");
    }
    assert_eq!(sums.lines().count(), artifacts.len() - 1);
    let statement: Value = serde_json::from_slice(&artifacts["provenance.json"]).unwrap();
    let subjects = statement["subject"].as_array().unwrap();
    for subject in subjects {
        let name = subject["name"].as_str().unwrap();
        assert_eq!(subject["digest"]["sha256"], hash(name), "{name}");
    }
    // All artifacts but the statement itself and the checksums, which cover it.
    assert_eq!(subjects.len(), artifacts.len() - 2);
}

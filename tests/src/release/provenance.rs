//! The provenance statement: what was built from what. In-toto statement with a SLSA provenance predicate, unsigned.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::error::ReleaseError;
use super::{REPOSITORY, ReleaseSource, checksums, format_time, platform, write};
use crate::cluster::image::{CA_BUNDLE, OWN_PROGRAMS, list_libraries};

/// Writes `provenance.json` about the artifacts in a directory.
pub(super) async fn write_statement(
    source: &ReleaseSource,
    directory: &Path,
) -> Result<(), ReleaseError> {
    let artifacts = checksums::list(directory)?.into_iter();
    let subjects: Vec<Value> = artifacts
        .map(|(name, digest)| json!({"name": name, "digest": {"sha256": digest}}))
        .collect();
    let repository = format!("git+{REPOSITORY}");
    let mut dependencies = vec![
        json!({"uri": repository, "digest": {"gitCommit": source.commit}}),
        describe_file("Cargo.lock", &source.checkout.join("Cargo.lock"))?,
    ];
    for path in list_machine_files(source, directory).await? {
        dependencies.push(describe_file(&path.display().to_string(), &path)?);
    }
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": format!("{REPOSITORY}/make-release/v1"),
                "externalParameters": {
                    "repository": repository, "commit": source.commit, "version": source.version,
                },
                "internalParameters": {
                    "cargoProfile": "dist",
                    "platform": platform(),
                    "rustc": source.toolchain.trim(),
                    "sourceDateEpoch": source.epoch,
                    "sourceDate": format_time(source.epoch)?,
                },
                "resolvedDependencies": dependencies,
            },
            "runDetails": {"builder": {"id": format!("{REPOSITORY}/make-release")}},
        },
    });
    let text = format!("{statement:#}\n");
    write(&directory.join("provenance.json"), text.as_bytes())
}

fn describe_file(name: &str, path: &Path) -> Result<Value, ReleaseError> {
    Ok(json!({"name": name, "digest": {"sha256": checksums::digest(path)?}}))
}

/// Files of the machine that are in the images.
async fn list_machine_files(
    source: &ReleaseSource,
    directory: &Path,
) -> Result<BTreeSet<PathBuf>, ReleaseError> {
    let mut files = BTreeSet::from([PathBuf::from(CA_BUNDLE)]);
    for program in OWN_PROGRAMS {
        let path = directory.join(format!("{program}-{}-{}", source.version, platform()));
        files.extend(list_libraries(&path).await?);
    }
    Ok(files)
}

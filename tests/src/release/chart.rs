//! Packs the chart with the digests of the images, and renders it.

use std::fs;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, Header};

use super::error::ReleaseError;
use super::{PackedImage, ReleaseSource, read, write};
use crate::cluster::run::run;

const CHART: &str = "etcd-mainstay";
/// Namespace of `install.yaml`.
const NAMESPACE: &str = "etcd-mainstay";
/// Stands for the user's registry in `install.yaml`.
const REGISTRY: &str = "registry.example";
/// Some objects depend on the version. This one is old enough for every cluster in which CRD validation rules work.
const RENDERED_FOR: &str = "1.30.0";

/// Writes `etcd-mainstay-<version>.tgz`. Helm would store the current time in it.
pub(super) fn pack(
    source: &ReleaseSource,
    images: &[PackedImage],
    output: &Path,
) -> Result<PathBuf, ReleaseError> {
    let root = source.checkout.join("charts").join(CHART);
    let packed = output.join(format!("{CHART}-{}.tgz", source.version));
    let failed = |from| ReleaseError::write(&packed, from);
    let mut archive = Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for path in list_files(&root)? {
        let place = path.strip_prefix(&root).unwrap_or(&path);
        let mut bytes = read(&path)?;
        if place == Path::new("Chart.yaml") {
            check_version(&bytes, &source.version)?;
        } else if place == Path::new("values.yaml") {
            bytes = fill_digests(&String::from_utf8_lossy(&bytes), images)?.into_bytes();
        }
        let mut header = Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        header.set_mtime(source.epoch);
        let place = Path::new(CHART).join(place);
        archive
            .append_data(&mut header, place, &bytes[..])
            .map_err(failed)?;
    }
    let bytes = archive.into_inner().and_then(GzEncoder::finish);
    write(&packed, &bytes.map_err(failed)?)?;
    Ok(packed)
}

/// Lints the packed chart, and writes `install.yaml`: its namespace and every object of the chart.
pub(super) async fn render(helm: &Path, chart: &Path, output: &Path) -> Result<(), ReleaseError> {
    let helm = helm.display().to_string();
    let failed = |source| ReleaseError::Helm {
        chart: chart.to_owned(),
        source,
    };
    let packed = chart.display().to_string();
    let lint = ["lint", "--strict", &packed];
    run(&helm, &lint).await.map_err(failed)?;
    let namespace = format!("--namespace={NAMESPACE}");
    let registry = format!("--set=registry={REGISTRY}");
    let kubernetes = format!("--kube-version={RENDERED_FOR}");
    let template = [
        "template",
        CHART,
        &packed,
        &namespace,
        &registry,
        &kubernetes,
    ];
    let objects = run(&helm, &template).await.map_err(failed)?;
    let text = format!(
        "# etcd-mainstay without Helm. Replace {REGISTRY} with the registry of the images.\n\
         ---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n{objects}"
    );
    write(&output.join("install.yaml"), text.as_bytes())
}

/// All files below a directory, sorted.
fn list_files(directory: &Path) -> Result<Vec<PathBuf>, ReleaseError> {
    let failed = |source| ReleaseError::Read {
        path: directory.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            files.extend(list_files(&path)?);
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The tags of the images follow from the version of the chart.
fn check_version(chart: &[u8], version: &str) -> Result<(), ReleaseError> {
    let text = String::from_utf8_lossy(chart);
    for line in [
        format!("version: {version}"),
        format!("appVersion: v{version}"),
    ] {
        if !text.lines().any(|found| found == line) {
            return Err(ReleaseError::ChartVersion { line });
        }
    }
    Ok(())
}

/// Fills in the empty `digest` that follows the repository of each image. The comments stay.
fn fill_digests(values: &str, images: &[PackedImage]) -> Result<String, ReleaseError> {
    let mut filled = values.to_owned();
    for PackedImage { program, digest } in images {
        let missing = || ReleaseError::NoDigest {
            program: (*program).to_owned(),
        };
        let repository = format!("repository: {program}\n");
        let after = filled.find(&repository).ok_or_else(missing)? + repository.len();
        let empty = "digest: \"\"";
        let start = after + filled[after..].find(empty).ok_or_else(missing)?;
        // The digest of another image is not this one's.
        if filled[after..start].contains("repository:") {
            return Err(missing());
        }
        filled.replace_range(start..start + empty.len(), &format!("digest: {digest}"));
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: &str = "image:\n  repository: a\n  digest: \"\" # filled in\nimages:\n  b:\n    repository: b\n    \
                          digest: \"\"\n";

    fn image(program: &'static str, digest: &str) -> PackedImage {
        PackedImage {
            program,
            digest: digest.to_owned(),
        }
    }

    #[test]
    fn digest_is_filled_in_below_its_repository() {
        let filled = fill_digests(VALUES, &[image("b", "sha256:2"), image("a", "sha256:1")]);
        let filled = filled.unwrap();
        assert!(filled.contains("repository: a\n  digest: sha256:1 # filled in\n"));
        assert!(filled.ends_with("repository: b\n    digest: sha256:2\n"));
    }

    #[test]
    fn digest_of_another_image_is_not_filled_in() {
        let values = VALUES.replacen("digest: \"\"", "tag: x", 1);
        let failure = fill_digests(&values, &[image("a", "sha256:1")]).unwrap_err();
        assert!(matches!(failure, ReleaseError::NoDigest { program } if program == "a"));
    }

    #[test]
    fn chart_of_another_version_is_refused() {
        let chart = b"version: 0.1.0\nappVersion: v0.1.0\n";
        check_version(chart, "0.1.0").unwrap();
        let failure = check_version(chart, "0.1").unwrap_err();
        assert!(matches!(failure, ReleaseError::ChartVersion { .. }));
    }
}

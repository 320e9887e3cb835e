//! Packs a release from built programs, without a container daemon and without a registry.
//!
//! ```text
//! programs ─ strip ─► program, debug symbols ─ image ─► OCI image layouts ─ digests ─► chart ─ helm template ─► install.yaml
//! SBOMs, provenance statement, SHA256SUMS
//! ```
//!
//! **Comes in**: programs with symbols, SBOMs, and a [`ReleaseSource`]. **Goes out**: a directory of artifacts, complete or absent.
//!
//! **Holds**: the same programs, libraries and source result in the same bytes. Every time is the time of the commit,
//! archives are sorted, and no path of this machine is in a file. A commit with other libraries on the machine results in
//! other images; the provenance statement names the libraries.

mod chart;
mod checksums;
mod error;
mod programs;
mod provenance;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};

use crate::cluster::image::{ImageLabels, OWN_PROGRAMS, build_program_image, image_architecture};

pub use error::ReleaseError;

/// Where the sources are published.
const REPOSITORY: &str = "https://github.com/etcd-mainstay/etcd-mainstay";
const LICENSE: &str = "Apache-2.0";

/// What a release is built from.
#[derive(Clone, Debug)]
pub struct ReleaseSource {
    /// Version of the programs and of the chart.
    pub version: String,
    /// Commit of the sources.
    pub commit: String,
    /// Time of the commit in seconds since 1970; the time of every file.
    pub epoch: u64,
    /// Root directory of the sources.
    pub checkout: PathBuf,
    /// Output of `rustc --version --verbose`.
    pub toolchain: String,
}

/// Where the parts of a release are, and where it goes.
#[derive(Clone, Debug)]
pub struct ReleaseParts {
    /// Directory of the built programs, with their symbols.
    pub programs: PathBuf,
    /// Directory of the SBOMs `<program>.cdx.json`.
    pub sboms: Option<PathBuf>,
    /// The program Helm.
    pub helm: PathBuf,
    /// Directory of the artifacts. Replaced if it exists.
    pub output: PathBuf,
}

/// Packs a release.
pub async fn pack(source: &ReleaseSource, parts: &ReleaseParts) -> Result<(), ReleaseError> {
    let staging = parts.output.with_added_extension("incomplete");
    remove_dir(&staging)?;
    fs::create_dir_all(&staging).map_err(|from| ReleaseError::write(&staging, from))?;
    let images = pack_programs(source, &parts.programs, &staging).await?;
    let chart = chart::pack(source, &images, &staging)?;
    chart::render(&parts.helm, &chart, &staging).await?;
    if let Some(sboms) = &parts.sboms {
        sbom::copy(source, sboms, &staging)?;
    }
    provenance::write_statement(source, &staging).await?;
    checksums::write_sums(&staging)?;
    remove_dir(&parts.output)?;
    fs::rename(&staging, &parts.output).map_err(|from| ReleaseError::write(&parts.output, from))
}

/// An image of a release.
struct PackedImage {
    program: &'static str,
    digest: String,
}

async fn pack_programs(
    source: &ReleaseSource,
    programs: &Path,
    output: &Path,
) -> Result<Vec<PackedImage>, ReleaseError> {
    let labels = ImageLabels {
        version: source.version.clone(),
        revision: source.commit.clone(),
        created: format_time(source.epoch)?,
        source: REPOSITORY.to_owned(),
        licenses: LICENSE.to_owned(),
    };
    let tag = format!("v{}", source.version);
    let mut images = Vec::new();
    for program in OWN_PROGRAMS {
        let name = format!("{program}-{}-{}", source.version, platform());
        let stripped = programs::split_symbols(&programs.join(program), output, &name).await?;
        let image = build_program_image(program, &tag, &stripped).await?;
        let digest = image.write_oci(&output.join(format!("{name}.oci.tar")), &labels)?;
        images.push(PackedImage { program, digest });
    }
    Ok(images)
}

/// Operating system and architecture, as container images name them.
fn platform() -> String {
    format!("linux-{}", image_architecture())
}

fn format_time(epoch: u64) -> Result<String, ReleaseError> {
    let seconds = i64::try_from(epoch).map_err(|_| ReleaseError::Epoch { epoch })?;
    let time = jiff::Timestamp::from_second(seconds);
    time.map(|time| time.to_string())
        .map_err(|_| ReleaseError::Epoch { epoch })
}

fn remove_dir(path: &Path) -> Result<(), ReleaseError> {
    match fs::remove_dir_all(path) {
        Err(from) if from.kind() != std::io::ErrorKind::NotFound => {
            Err(ReleaseError::write(path, from))
        }
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ReleaseError> {
    fs::read(path).map_err(|source| ReleaseError::Read {
        path: path.to_owned(),
        source,
    })
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), ReleaseError> {
    fs::write(path, bytes).map_err(|from| ReleaseError::write(path, from))
}

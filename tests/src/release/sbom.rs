//! Copies the SBOMs, without the paths of this machine.

use std::path::Path;

use super::error::ReleaseError;
use super::{ReleaseSource, read, write};
use crate::cluster::image::OWN_PROGRAMS;

/// Stands for the directory of the sources, in SBOMs as in debug symbols.
const SOURCE_DIR: &str = "/source";

/// Copies the SBOM of every program. cargo-cyclonedx identifies packages of the workspace by their path.
pub(super) fn copy(source: &ReleaseSource, from: &Path, output: &Path) -> Result<(), ReleaseError> {
    let checkout = source.checkout.display().to_string();
    for program in OWN_PROGRAMS {
        let path = from.join(format!("{program}.cdx.json"));
        let text = String::from_utf8_lossy(&read(&path)?).into_owned();
        let text = text.replace(&format!("{checkout}/"), &format!("{SOURCE_DIR}/"));
        if text.contains(&checkout) {
            return Err(ReleaseError::MachinePath {
                path,
                found: checkout,
            });
        }
        let name = format!("{program}-{}.cdx.json", source.version);
        write(&output.join(name), text.as_bytes())?;
    }
    Ok(())
}

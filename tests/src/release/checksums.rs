//! Checksums of all artifacts.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::error::ReleaseError;
use super::{read, write};

/// The file of checksums, as `sha256sum --check` reads it.
const CHECKSUMS: &str = "SHA256SUMS";

/// Names and checksums of the files in a directory, sorted by name.
pub(super) fn list(directory: &Path) -> Result<Vec<(String, String)>, ReleaseError> {
    let failed = |source| ReleaseError::Read {
        path: directory.to_owned(),
        source,
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        found.push((name, digest(&entry.path())?));
    }
    found.sort();
    Ok(found)
}

/// SHA-256 of a file.
pub(super) fn digest(path: &Path) -> Result<String, ReleaseError> {
    Ok(hex::encode(Sha256::digest(read(path)?)))
}

/// Writes the checksums of all files in a directory.
pub(super) fn write_sums(directory: &Path) -> Result<(), ReleaseError> {
    let lines = list(directory)?
        .into_iter()
        .map(|(name, digest)| format!("{digest}  {name}\n"));
    let lines: String = lines.collect();
    write(&directory.join(CHECKSUMS), lines.as_bytes())
}

//! Reads a full snapshot to its last byte: decompresses it, compares its hash and finds its revision.

use std::collections::BTreeSet;
use std::io::{self, Read};

use mainstay_archive::catalogue::SnapshotObject;
use mainstay_archive::compression::open_decoder;
use mainstay_archive::full::{FullLayout, FullScanner, ScannedFull};
use mainstay_mvcc::{DatabaseStatus, DatabaseStatusError};

use super::ObjectReadOptions;
use super::outline::{Outline, OutlineError};
use crate::rebuild::{ObjectSource, RebuildError};

/// Read size in bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// Limit of reading the stream again. One pass suffices for every database etcd writes; a root bucket of several pages
/// needs one more for each of them.
const MAX_PASSES: usize = 16;

/// A full snapshot that was read completely.
#[derive(Debug)]
pub(crate) struct CheckedFull {
    /// Size of the database, and whether a hash was compared.
    pub(crate) layout: FullLayout,
    pub(crate) outline: Outline,
}

/// Reads a full snapshot and compares its hash.
///
/// # Errors
/// The error of a rebuild from this snapshot, with the object and the offset of the damage.
pub(crate) fn check_full(
    object: &SnapshotObject,
    stored: Box<dyn Read + Send>,
    options: &ObjectReadOptions,
) -> Result<CheckedFull, RebuildError> {
    scan_full(object, stored, options, Outline::new(&BTreeSet::new()))
}

/// Reads a full snapshot and the facts of its database, in as many passes as needed.
///
/// # Errors
/// As [`check_full`]; also if the database is invalid.
pub(crate) fn check_full_with_facts(
    object: &SnapshotObject,
    sources: &dyn ObjectSource,
    options: &ObjectReadOptions,
) -> Result<(CheckedFull, DatabaseStatus), RebuildError> {
    let mut keep = BTreeSet::new();
    loop {
        let stored = sources.open(object).map_err(|source| RebuildError::Open {
            object: object.name.to_string(),
            source,
        })?;
        let mut full = scan_full(object, stored, options, Outline::new(&keep))?;
        let source = match full.outline.facts() {
            Ok(facts) => return Ok((full, facts)),
            Err(OutlineError::PageNotKept { page }) => {
                // A page that is missing although it was kept means that the tree has a loop.
                if keep.len() < MAX_PASSES && keep.insert(page) {
                    continue;
                }
                return Err(structure_error(
                    object,
                    mainstay_bbolt::BboltError::PageLoop { page },
                ));
            }
            Err(OutlineError::Facts(source)) => source,
        };
        return Err(match source {
            DatabaseStatusError::Structure(source) => structure_error(object, source),
            source => RebuildError::BaseFacts {
                object: object.name.to_string(),
                source,
            },
        });
    }
}

fn structure_error(object: &SnapshotObject, source: mainstay_bbolt::BboltError) -> RebuildError {
    RebuildError::BaseStructure {
        object: object.name.to_string(),
        source,
    }
}

fn scan_full(
    object: &SnapshotObject,
    stored: Box<dyn Read + Send>,
    options: &ObjectReadOptions,
    mut outline: Outline,
) -> Result<CheckedFull, RebuildError> {
    let name = || object.name.to_string();
    let mut stream =
        open_decoder(&object.name.compression, stored, options.threads).map_err(|source| {
            RebuildError::Compression {
                object: name(),
                source,
            }
        })?;
    let mut scanner = FullScanner::default();
    let mut chunk = vec![0u8; CHUNK_BYTES];
    let structure = |source| structure_error(object, source);
    loop {
        let count = match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => {
                return Err(RebuildError::ReadBase {
                    object: name(),
                    offset: scanner.received(),
                    source,
                });
            }
        };
        for database in scanner.push(chunk.get(..count).unwrap_or_default()) {
            outline.push(database).map_err(structure)?;
        }
    }
    let ScannedFull { layout, rest } = scanner
        .finish(options.hash_check)
        .map_err(|damage| RebuildError::from_full_damage(name(), damage))?;
    outline.push(&rest).map_err(structure)?;
    Ok(CheckedFull { layout, outline })
}

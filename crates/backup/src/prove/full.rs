//! Reads a full snapshot to its last byte: decompresses it, compares its hash and finds its revision.

use std::collections::BTreeSet;
use std::io::{self, Read};

use mainstay_archive::catalogue::SnapshotObject;
use mainstay_archive::compression::open_decoder;
use mainstay_archive::full::{FullLayout, FullScanner, ScannedFull};
use mainstay_bbolt::BboltError;
use mainstay_mvcc::{DatabaseStatus, DatabaseStatusError};

use super::outline::{Outline, OutlineError};
use super::{ProofError, ReadOptions};
use crate::ObjectSource;

/// Read size in bytes; a sidecar takes this memory from its etcd.
const CHUNK_BYTES: usize = 256 << 10;
/// Limit of reading the stream again. One pass suffices for every database etcd writes; a root bucket of several pages
/// needs one more for each of them.
const MAX_PASSES: usize = 16;

/// How far the content of a full snapshot is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullDepth {
    /// The hash alone, in constant memory: enough for an object that the same etcd wrote.
    Hash,
    /// Also the pages, which must be those of a database.
    Pages,
}

/// Reads a full snapshot once and compares its hash.
///
/// # Errors
/// The error of a restore from this snapshot, with the object and the offset of the damage.
pub fn prove_full(
    object: &SnapshotObject,
    stored: Box<dyn Read + Send>,
    options: &ReadOptions,
    depth: FullDepth,
) -> Result<FullLayout, ProofError> {
    match depth {
        FullDepth::Hash => scan_full(object, stored, options, |_| Ok(())),
        FullDepth::Pages => {
            let mut outline = Outline::new(&BTreeSet::new());
            scan_full(object, stored, options, |database| outline.push(database))
        }
    }
}

/// Reads a full snapshot and the facts of its database, in as many passes as needed.
///
/// # Errors
/// As [`prove_full`]; also if the database is invalid.
pub(super) fn prove_full_with_facts(
    object: &SnapshotObject,
    source: &dyn ObjectSource,
    options: &ReadOptions,
) -> Result<(FullLayout, DatabaseStatus), ProofError> {
    let mut keep = BTreeSet::new();
    loop {
        let stored = source.open(object).map_err(|source| ProofError::Open {
            object: object.name.to_string(),
            source,
        })?;
        let mut outline = Outline::new(&keep);
        let layout = scan_full(object, stored, options, |database| outline.push(database))?;
        let fault = match outline.facts() {
            Ok(facts) => return Ok((layout, facts)),
            Err(OutlineError::PageNotKept { page }) => {
                // A page that is missing although it was kept means that the tree has a loop.
                if keep.len() < MAX_PASSES && keep.insert(page) {
                    continue;
                }
                return Err(structure_error(object, BboltError::PageLoop { page }));
            }
            Err(OutlineError::Facts(fault)) => fault,
        };
        return Err(match fault {
            DatabaseStatusError::Structure(source) => structure_error(object, source),
            source => ProofError::BaseFacts {
                object: object.name.to_string(),
                source,
            },
        });
    }
}

fn structure_error(object: &SnapshotObject, source: BboltError) -> ProofError {
    ProofError::BaseStructure {
        object: object.name.to_string(),
        source,
    }
}

/// Passes the database to `take` while it is read.
fn scan_full(
    object: &SnapshotObject,
    stored: Box<dyn Read + Send>,
    options: &ReadOptions,
    mut take: impl FnMut(&[u8]) -> Result<(), BboltError>,
) -> Result<FullLayout, ProofError> {
    let name = || object.name.to_string();
    let mut stream =
        open_decoder(&object.name.compression, stored, options.threads).map_err(|source| {
            ProofError::Compression {
                object: name(),
                source,
            }
        })?;
    let mut take =
        |database: &[u8]| take(database).map_err(|source| structure_error(object, source));
    let mut scanner = FullScanner::default();
    let mut chunk = vec![0u8; CHUNK_BYTES];
    loop {
        let count = match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => {
                return Err(ProofError::ReadBase {
                    object: name(),
                    offset: scanner.received(),
                    source,
                });
            }
        };
        for database in scanner.push(chunk.get(..count).unwrap_or_default()) {
            take(database)?;
        }
    }
    let ScannedFull { layout, rest } = scanner
        .finish(options.hash_check)
        .map_err(|damage| ProofError::from_full_damage(name(), damage))?;
    take(&rest)?;
    Ok(layout)
}

//! Reads a full snapshot to its last byte: decompresses it, compares its hash and finds its revision.

use std::collections::BTreeSet;
use std::io::{self, Read};

use mainstay_archive::catalogue::SnapshotObject;
use mainstay_archive::compression::open_decoder;
use mainstay_mvcc::{DatabaseStatus, DatabaseStatusError};
use sha2::{Digest, Sha256};

use super::ObjectReadOptions;
use super::outline::{Outline, OutlineError};
use crate::rebuild::{HashCheck, ObjectSource, RebuildError};

/// Read size in bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// Length of the SHA-256 that follows the database in a snapshot.
const HASH_LEN: usize = 32;
/// etcd writes a database in multiples of this size, so a remainder of [`HASH_LEN`] means that a hash follows.
const SECTOR_BYTES: u64 = 512;
/// Limit of reading the stream again. One pass suffices for every database etcd writes; a root bucket of several pages
/// needs one more for each of them.
const MAX_PASSES: usize = 16;

/// A full snapshot that was read completely.
#[derive(Debug)]
pub(crate) struct CheckedFull {
    /// Size of the database without the hash.
    pub(crate) bytes: u64,
    /// Whether the snapshot has a hash; if so, it was compared.
    pub(crate) is_hashed: bool,
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
    outline: Outline,
) -> Result<CheckedFull, RebuildError> {
    let name = || object.name.to_string();
    let mut stream =
        open_decoder(&object.name.compression, stored, options.threads).map_err(|source| {
            RebuildError::Compression {
                object: name(),
                source,
            }
        })?;
    let mut tail = FullScanner {
        hash: Sha256::new(),
        outline,
        trailer: Vec::new(),
        received: 0,
    };
    let mut chunk = vec![0u8; CHUNK_BYTES];
    loop {
        let count = match stream.read(&mut chunk) {
            Ok(0) => return tail.finish(object, options.hash_check),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => {
                let offset = tail.received;
                return Err(RebuildError::ReadBase {
                    object: name(),
                    offset,
                    source,
                });
            }
        };
        tail.push(chunk.get(..count).unwrap_or_default())
            .map_err(|source| structure_error(object, source))?;
    }
}

/// Hashes and outlines everything but the last 32 bytes, which may be the hash: the end of a stream is known only when it
/// is reached.
struct FullScanner {
    hash: Sha256,
    outline: Outline,
    trailer: Vec<u8>,
    received: u64,
}

impl FullScanner {
    fn push(&mut self, chunk: &[u8]) -> Result<(), mainstay_bbolt::BboltError> {
        self.received += chunk.len() as u64;
        let surplus = (self.trailer.len() + chunk.len()).saturating_sub(HASH_LEN);
        let from_held: Vec<u8> = self
            .trailer
            .drain(..surplus.min(self.trailer.len()))
            .collect();
        let (data, rest) = chunk.split_at(surplus - from_held.len());
        self.trailer.extend_from_slice(rest);
        self.update(&from_held)?;
        self.update(data)
    }

    fn update(&mut self, data: &[u8]) -> Result<(), mainstay_bbolt::BboltError> {
        self.hash.update(data);
        self.outline.push(data)
    }

    fn finish(
        mut self,
        object: &SnapshotObject,
        check: HashCheck,
    ) -> Result<CheckedFull, RebuildError> {
        let name = || object.name.to_string();
        let bytes = self.received;
        match bytes % SECTOR_BYTES {
            // No hash follows, so the held bytes are the end of the database.
            0 if bytes > 0 && check == HashCheck::Skipped => {
                let held = std::mem::take(&mut self.trailer);
                self.update(&held)
                    .map_err(|source| structure_error(object, source))?;
                Ok(CheckedFull {
                    bytes,
                    is_hashed: false,
                    outline: self.outline,
                })
            }
            0 if bytes > 0 => Err(RebuildError::BaseUnhashed { object: name() }),
            32 => {
                let computed = self.hash.finalize();
                if computed.as_slice() == self.trailer {
                    let bytes = bytes - HASH_LEN as u64;
                    return Ok(CheckedFull {
                        bytes,
                        is_hashed: true,
                        outline: self.outline,
                    });
                }
                Err(RebuildError::BaseHash {
                    object: name(),
                    stored: hex::encode(&self.trailer),
                    computed: hex::encode(computed),
                })
            }
            _ => Err(RebuildError::BaseLength {
                object: name(),
                bytes,
            }),
        }
    }
}

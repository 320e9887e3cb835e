//! Reads a full snapshot to its last byte: inflate, hash, outline.

use std::collections::BTreeSet;
use std::io::{self, Read};

use mainstay_archive::catalogue::Object;
use mainstay_archive::compression::decoder;
use mainstay_mvcc::{Facts, FactsError};
use sha2::{Digest, Sha256};

use super::How;
use super::outline::{Outline, OutlineError};
use crate::rebuild::{HashCheck, RebuildError, Sources};

/// Bytes handled at once.
const PIECE: usize = 1 << 20;
/// Length of the hash behind a snapshot.
const HASH_LEN: usize = 32;
/// A snapshot is a whole number of these, and the hash.
const SECTOR: u64 = 512;
/// One pass finds the revision of every database etcd writes; a root bucket of several pages needs
/// one more for each of them.
const MAX_PASSES: usize = 16;

/// A full snapshot that was read whole.
#[derive(Debug)]
pub struct Full {
    /// Bytes inside, without the hash.
    pub bytes: u64,
    /// A hash was there, and right.
    pub is_hashed: bool,
    /// What was kept of the database.
    pub outline: Outline,
}

/// Reads a full snapshot and compares its hash.
///
/// # Errors
/// As a rebuild from this snapshot: the object, and where it is damaged.
pub fn full(
    object: &Object,
    stored: Box<dyn Read + Send>,
    how: &How,
) -> Result<Full, RebuildError> {
    outlined(object, stored, how, Outline::new(&BTreeSet::new()))
}

/// Reads a full snapshot and finds where its database stands, in as many passes as that takes.
///
/// # Errors
/// As [`full`], and a database that cannot be read.
pub fn full_with_facts(
    object: &Object,
    sources: &dyn Sources,
    how: &How,
) -> Result<(Full, Facts), RebuildError> {
    let mut keep = BTreeSet::new();
    loop {
        let stored = sources.open(object).map_err(|source| RebuildError::Open {
            object: object.name.to_string(),
            source,
        })?;
        let mut full = outlined(object, stored, how, Outline::new(&keep))?;
        let source = match full.outline.facts() {
            Ok(facts) => return Ok((full, facts)),
            Err(OutlineError::NotKept { page }) => {
                if keep.len() < MAX_PASSES && keep.insert(page) {
                    continue;
                }
                return Err(structure(object, mainstay_bbolt::Error::Loop { page }));
            }
            Err(OutlineError::Facts(source)) => source,
        };
        return Err(match source {
            FactsError::Structure(source) => structure(object, source),
            source => RebuildError::BaseFacts {
                object: object.name.to_string(),
                source,
            },
        });
    }
}

fn structure(object: &Object, source: mainstay_bbolt::Error) -> RebuildError {
    RebuildError::BaseStructure {
        object: object.name.to_string(),
        source,
    }
}

fn outlined(
    object: &Object,
    stored: Box<dyn Read + Send>,
    how: &How,
    outline: Outline,
) -> Result<Full, RebuildError> {
    let name = || object.name.to_string();
    let mut stream = decoder(&object.name.compression, stored, how.threads).map_err(|source| {
        RebuildError::Compression {
            object: name(),
            source,
        }
    })?;
    let mut tail = Tail {
        hash: Sha256::new(),
        outline,
        held: Vec::new(),
        received: 0,
    };
    let mut piece = vec![0u8; PIECE];
    loop {
        let count = match stream.read(&mut piece) {
            Ok(0) => return tail.finish(object, how.hash_check),
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
        tail.push(piece.get(..count).unwrap_or_default())
            .map_err(|source| structure(object, source))?;
    }
}

/// Hashes and outlines everything but the last 32 bytes, which may be the hash.
struct Tail {
    hash: Sha256,
    outline: Outline,
    held: Vec<u8>,
    received: u64,
}

impl Tail {
    fn push(&mut self, piece: &[u8]) -> Result<(), mainstay_bbolt::Error> {
        self.received += piece.len() as u64;
        let surplus = (self.held.len() + piece.len()).saturating_sub(HASH_LEN);
        let from_held: Vec<u8> = self.held.drain(..surplus.min(self.held.len())).collect();
        let (data, rest) = piece.split_at(surplus - from_held.len());
        self.held.extend_from_slice(rest);
        self.take(&from_held)?;
        self.take(data)
    }

    fn take(&mut self, data: &[u8]) -> Result<(), mainstay_bbolt::Error> {
        self.hash.update(data);
        self.outline.push(data)
    }

    fn finish(mut self, object: &Object, check: HashCheck) -> Result<Full, RebuildError> {
        let name = || object.name.to_string();
        let bytes = self.received;
        match bytes % SECTOR {
            0 if bytes > 0 && check == HashCheck::Skipped => {
                let held = std::mem::take(&mut self.held);
                self.take(&held)
                    .map_err(|source| structure(object, source))?;
                Ok(Full {
                    bytes,
                    is_hashed: false,
                    outline: self.outline,
                })
            }
            0 if bytes > 0 => Err(RebuildError::BaseUnhashed { object: name() }),
            32 => {
                let computed = self.hash.finalize();
                if computed.as_slice() == self.held {
                    let bytes = bytes - HASH_LEN as u64;
                    return Ok(Full {
                        bytes,
                        is_hashed: true,
                        outline: self.outline,
                    });
                }
                Err(RebuildError::BaseHash {
                    object: name(),
                    stored: hex::encode(&self.held),
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
